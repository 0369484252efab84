// allToAllv: the ranks tell each other their counts in a first piece, check them, and move the rest as allToAll does.
import { WeftlineError } from '../../core/errors.ts';
import type { Movement, MovementStep, Piece, SlotRange } from './movements.ts';

/** `worldRanks`: by rank of the window, for errors. `onCounts` is told the most bytes that any rank sends to any other. */
export class VariableMovement implements Movement, MovementStep {
  readonly hasParts = true;
  readonly steps: readonly MovementStep[] = [this];
  readonly #worldRanks: readonly number[];
  readonly #onCounts: (mostBytes: number) => void;
  #hasCounts = false;

  constructor(worldRanks: readonly number[], onCounts: (mostBytes: number) => void) {
    this.#worldRanks = worldRanks;
    this.#onCounts = onCounts;
  }

  begin(): void {
    this.#hasCounts = false;
  }

  get isSaid(): boolean {
    return !this.#hasCounts;
  }

  stages(): boolean {
    return true;
  }

  awaits(): 'all' {
    return 'all';
  }

  stage({ mover, ranks, me, call, elementBytes, offset, bytes, stride, slot, words, wordOf }: Piece): void {
    const { sendCounts, sendOffsets } = call;
    if (!this.#hasCounts) {
      words.set(sendCounts, wordOf(me));
      return;
    }
    const to = slot(me);
    for (let rank = 0; rank < ranks; rank++) {
      const left = sendCounts[rank]! * elementBytes - offset;
      if (rank === me || left <= 0) continue;
      const from = call.input + sendOffsets[rank]! * elementBytes + offset;
      mover.copy(to + rank * stride, from, Math.min(left, bytes));
    }
  }

  reads({ ranks, call, elementBytes, offset, bytes, stride }: Piece, rank: number, range: SlotRange): void {
    if (this.#hasCounts) {
      range.first = rank * stride;
      range.bytes = Math.max(0, Math.min(call.sendCounts[rank]! * elementBytes - offset, bytes));
      return;
    }
    range.first = 0;
    range.bytes = ranks * 4;
  }

  take(piece: Piece): void {
    if (this.#hasCounts) this.#takeParts(piece);
    else this.#takeCounts(piece);
  }

  #takeCounts({ ranks, me, call, elementBytes, words, wordOf }: Piece): void {
    let most = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const counts = wordOf(rank);
      for (let to = 0; to < ranks; to++) most = Math.max(most, words[counts + to]!);
      const sent = words[counts + me]!;
      const expected = call.recvCounts[rank]!;
      if (sent !== expected) throw this.#mismatch(rank, me, { sent, expected, dtype: call.dtype });
    }
    this.#hasCounts = true;
    this.#onCounts(most * elementBytes);
  }

  #takeParts({ mover, ranks, me, call, elementBytes, offset, bytes, stride, slot }: Piece): void {
    const { sendOffsets, recvCounts, recvOffsets } = call;
    for (let rank = 0; rank < ranks; rank++) {
      const left = recvCounts[rank]! * elementBytes - offset;
      if (left <= 0) continue;
      const to = call.output + recvOffsets[rank]! * elementBytes + offset;
      const own = call.input + sendOffsets[me]! * elementBytes + offset;
      const from = rank === me ? own : slot(rank) + me * stride;
      if (from !== to) mover.copy(to, from, Math.min(left, bytes));
    }
  }

  #mismatch(
    rank: number,
    me: number,
    { sent, expected, dtype }: { readonly sent: number; readonly expected: number; readonly dtype: string },
  ): WeftlineError {
    const [from, to] = [this.#worldRanks[rank], this.#worldRanks[me]];
    return new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `allToAllv: rank ${from} sends ${sent} ${dtype} to rank ${to}, which expects ${expected} from it; sendCounts[${me}] of rank ${from} and recvCounts[${rank}] of rank ${to} must be equal`,
      { details: { operation: 'allToAllv', rank: from, peer: to, sent, expected, dtype } },
    );
  }
}
