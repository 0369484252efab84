// The word each rank shows at a barrier, so that ranks in different calls fail with a reason instead of mixing data.

const kinds = ['none', 'dispatch', 'cached dispatch', 'combine', 'layer dispatch', 'layer combine', 'barrier'] as const;

export type CallKind = (typeof kinds)[number];

/** The barrier before the data moves, the one in the middle where there is one, the one after it. */
export type CallPhase = 'opening' | 'middle' | 'closing';

const phases: readonly CallPhase[] = ['opening', 'middle', 'closing'];

/** `detail` is whatever must agree in this kind of call, at most 16 bits (bytes per row element, top-k, flags). */
export function callWord(kind: CallKind, phase: CallPhase, detail = 0): number {
  return kinds.indexOf(kind) | (phases.indexOf(phase) << 4) | ((detail & 0xffff) << 8);
}

export function describeCall(word: number): string {
  const kind = kinds[word & 0xf] ?? `call ${word & 0xf}`;
  const phase = phases[(word >> 4) & 0xf] ?? 'unknown';
  return `${kind} (${phase} barrier, detail ${word >>> 8})`;
}
