// The word each rank shows at a barrier, so that ranks in different calls fail with a reason instead of mixing data.
import { networkPhases } from '../abi/network.ts';

/** What must agree besides the kind, and how an error tells it. */
const kinds = {
  none: () => 'no call',
  dispatch: () => 'dispatch',
  'cached dispatch': (detail, handle) => `cached dispatch of ${rowKind(detail)} rows with handle ${handle}`,
  combine: (detail, handle) =>
    `combine with handle ${handle} ${detail === 0 ? 'without topkWeights' : `with topkWeights of ${detail} columns`}`,
  'layer dispatch': () => 'layer dispatch',
  'layer combine': (_, handle) => `layer combine with descriptor ${handle}`,
  barrier: (detail) => (detail === 0 ? 'barrier' : 'barrier within the node'),
} as const satisfies Record<string, (detail: number, handle: number) => string>;

type CallKind = keyof typeof kinds;

const kindNames = Object.keys(kinds) as readonly CallKind[];

/** The barrier before the data moves, the one in the middle where there is one, the one after it. */
const phases = ['opening', 'middle', 'closing'] as const;

/** What a kernel waits for from another host, by networkPhases. */
const networkWaits: Readonly<Record<number, string>> = {
  [networkPhases.record]: 'record from another host',
  [networkPhases.rows]: 'rows from another host',
  [networkPhases.sums]: 'sums from another host',
};

export interface Call {
  readonly kind: CallKind;
  /** 0 to 255, see `kinds`: columns of weights, bytes of a row's element. */
  readonly detail?: number;
  /** Number of the dispatch whose handle is used; its low 16 bits count. */
  readonly handle?: number;
}

/** kind in bits 0-3, phase in bits 4-7, detail in bits 8-15, handle in bits 16-31. */
export function callWord({ kind, detail = 0, handle = 0 }: Call, phase: (typeof phases)[number]): number {
  const low = kindNames.indexOf(kind) | (phases.indexOf(phase) << 4) | ((detail & 0xff) << 8);
  return (low | ((handle & 0xffff) << 16)) >>> 0;
}

export function describeCall(word: number): string {
  const kind = kindNames[word & 0xf] ?? 'none';
  const phase = (word >>> 4) & 0xf;
  const awaited = networkWaits[phase] ?? `${phases[phase] ?? 'unknown'} barrier`;
  return `${kinds[kind]((word >>> 8) & 0xff, word >>> 16)} (${awaited})`;
}

function rowKind(bytes: number): string {
  return bytes === 1 ? 'fp8' : 'bf16';
}
