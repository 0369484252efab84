// What each collective moves, piece by piece: into this rank's slot, out of the slots of the others, and results out again.
import { alignUp } from '../../abi/layout.ts';
import type { CollectiveCall, CollectiveKind } from '../collective-call.ts';
import type { Mover } from './mover.ts';

/** Parts of a slot, and shares of a piece that ranks reduce, begin on cache lines. */
export const PART_ALIGNMENT = 64;

/** A piece of a call, reused from piece to piece. The unit is what `CollectiveCall.count` counts, in bytes. */
export interface Piece {
  readonly mover: Mover;
  readonly ranks: number;
  readonly me: number;
  readonly call: CollectiveCall;
  readonly elementBytes: number;
  readonly unitBytes: number;
  /** Where it begins in the unit, and its length. */
  readonly offset: number;
  readonly bytes: number;
  /** From one part of a slot to the next, where a slot has a part for each rank. */
  readonly stride: number;
  /** Address of a rank's slot, for the mover. */
  readonly slot: (rank: number) => number;
  /** Of Movement.movesNoData: all memory of the host in words, and where a rank's slot begins in it. */
  readonly words: Uint32Array;
  readonly wordOf: (rank: number) => number;
}

/** A range of a rank's slot, reused. */
export interface SlotRange {
  first: number;
  bytes: number;
}

/** Of certain ranks; reused. */
export interface AwaitedRanks {
  readonly ranks: readonly number[];
  /** By rank of the list: how many posts further than this rank it must be; 0 for as far. */
  readonly ahead: readonly number[];
}

/** Whose posts a step needs: every rank's, the root's, nobody's, or those of certain ranks. */
export type Awaited = 'all' | 'root' | 'none' | AwaitedRanks;

/** What ranks do once this one has posted. */
export interface MovementStep {
  /** What another rank reads, in this step or a later one, of what this rank's slot has since its last post. */
  reads(piece: Piece, rank: number, range: SlotRange): void;
  /** Whose slots `take` reads. */
  awaits(piece: Piece): Awaited;
  take(piece: Piece): void;
}

export interface Movement {
  /** A slot holds a part for each rank. */
  readonly hasParts: boolean;
  /** The host writes and reads the words of this piece by itself; nothing of it moves. */
  readonly movesNoData?: boolean;
  /** Whether this rank writes to its slot. */
  stages(piece: Piece): boolean;
  stage(piece: Piece): void;
  /** One after another; before each of them the rank posts. What one leaves in its slot others take in the next. */
  readonly steps: readonly MovementStep[];
}

const yes = (): boolean => true;
const all = (): Awaited => 'all';
const isRoot = ({ me, call }: Piece): boolean => me === call.root;
const rootOnly = (piece: Piece): Awaited => (isRoot(piece) ? 'all' : 'none');

function readsWhole({ bytes }: Piece, _rank: number, range: SlotRange): void {
  range.first = 0;
  range.bytes = bytes;
}

export function readsNothing(_piece: Piece, _rank: number, range: SlotRange): void {
  range.first = 0;
  range.bytes = 0;
}

function rootReadsWhole(piece: Piece, rank: number, range: SlotRange): void {
  if (rank === piece.call.root) readsWhole(piece, rank, range);
  else readsNothing(piece, rank, range);
}

function readsPart({ bytes, stride }: Piece, rank: number, range: SlotRange): void {
  range.first = rank * stride;
  range.bytes = bytes;
}

function stageWhole({ mover, me, call, offset, bytes, slot }: Piece): void {
  mover.copy(slot(me), call.input + offset, bytes);
}

/** To each other rank its part. */
function stageParts({ mover, ranks, me, call, unitBytes, offset, bytes, stride, slot }: Piece): void {
  const to = slot(me);
  for (let rank = 0; rank < ranks; rank++) {
    if (rank !== me) mover.copy(to + rank * stride, call.input + rank * unitBytes + offset, bytes);
  }
}

function reduceSlots({ mover, ranks, call, offset, bytes, slot }: Piece): void {
  for (let rank = 0; rank < ranks; rank++) mover.sources[rank] = slot(rank);
  mover.reduce(call, ranks, call.output + offset, bytes);
}

/** The part of a piece that a rank reduces for all. */
function shareBytes({ bytes, ranks }: Piece): number {
  return alignUp(Math.ceil(bytes / ranks), PART_ALIGNMENT);
}

/** A rank's share of the piece. */
function readsShare(piece: Piece, rank: number, range: SlotRange): void {
  const share = shareBytes(piece);
  range.first = Math.min(piece.bytes, rank * share);
  range.bytes = Math.min(share, piece.bytes - range.first);
}

/** What this rank reduced. */
function readsResult(piece: Piece, _rank: number, range: SlotRange): void {
  readsShare(piece, piece.me, range);
}

/** All but this rank's own share, which nobody else reads. */
function stageOtherShares(piece: Piece): void {
  const { mover, me, call, offset, bytes, slot } = piece;
  const share = shareBytes(piece);
  const [first, end] = [Math.min(bytes, me * share), Math.min(bytes, (me + 1) * share)];
  mover.copy(slot(me), call.input + offset, first);
  mover.copy(slot(me) + end, call.input + offset + end, bytes - end);
}

/** The result comes to lie in this rank's slot, from which all take it. */
function reduceShare(piece: Piece): void {
  const { mover, ranks, me, call, offset, bytes, slot } = piece;
  const share = shareBytes(piece);
  const first = Math.min(bytes, me * share);
  for (let rank = 0; rank < ranks; rank++) {
    mover.sources[rank] = (rank === me ? call.input + offset : slot(rank)) + first;
  }
  mover.reduce(call, ranks, slot(me) + first, Math.min(share, bytes - first));
}

function takeShares(piece: Piece): void {
  const { mover, ranks, call, offset, bytes, slot } = piece;
  const share = shareBytes(piece);
  for (let rank = 0, first = 0; rank < ranks && first < bytes; rank++, first += share) {
    mover.copy(call.output + offset + first, slot(rank) + first, Math.min(share, bytes - first));
  }
}

const barrier: Movement = {
  hasParts: false,
  stages: () => false,
  stage: () => {},
  steps: [
    {
      reads: readsNothing,
      awaits: all,
      take: () => {},
    },
  ],
};

const broadcast: Movement = {
  hasParts: false,
  stages: isRoot,
  stage: stageWhole,
  steps: [
    {
      reads: readsWhole,
      awaits: (piece) => (isRoot(piece) ? 'none' : 'root'),
      take: (piece) => {
        const { mover, call, offset, bytes, slot } = piece;
        const from = isRoot(piece) ? call.input + offset : slot(call.root);
        if (from !== call.output + offset) mover.copy(call.output + offset, from, bytes);
      },
    },
  ],
};

const allGather: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageWhole,
  steps: [
    {
      reads: readsWhole,
      awaits: all,
      take: ({ mover, ranks, me, call, unitBytes, offset, bytes, slot }) => {
        for (let rank = 0; rank < ranks; rank++) {
          const to = call.output + rank * unitBytes + offset;
          const from = rank === me ? call.input + offset : slot(rank);
          if (from !== to) mover.copy(to, from, bytes);
        }
      },
    },
  ],
};

const allToAll: Movement = {
  hasParts: true,
  stages: yes,
  stage: stageParts,
  steps: [
    {
      reads: readsPart,
      awaits: all,
      take: ({ mover, ranks, me, call, unitBytes, offset, bytes, stride, slot }) => {
        for (let rank = 0; rank < ranks; rank++) {
          const at = rank * unitBytes + offset;
          const from = rank === me ? call.input + at : slot(rank) + me * stride;
          if (from !== call.output + at) mover.copy(call.output + at, from, bytes);
        }
      },
    },
  ],
};

const reduceScatter: Movement = {
  hasParts: true,
  stages: yes,
  stage: stageParts,
  steps: [
    {
      reads: readsPart,
      awaits: all,
      take: (piece) => {
        const { mover, ranks, me, call, unitBytes, offset, bytes, stride, slot } = piece;
        for (let rank = 0; rank < ranks; rank++) {
          mover.sources[rank] = rank === me ? call.input + me * unitBytes + offset : slot(rank) + me * stride;
        }
        mover.reduce(call, ranks, call.output + offset, bytes);
      },
    },
  ],
};

/** Every rank reduces everything: one step, for little data. */
const allReduceAtOnce: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageWhole,
  steps: [
    {
      reads: readsWhole,
      awaits: all,
      take: reduceSlots,
    },
  ],
};

/** Every rank reduces a share, then all gather the shares: each element is added up once. */
const allReduceByShares: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageOtherShares,
  steps: [
    {
      reads: readsShare,
      awaits: all,
      take: reduceShare,
    },
    { reads: readsResult, awaits: all, take: takeShares },
  ],
};

const reduceAtOnce: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageWhole,
  steps: [
    {
      reads: rootReadsWhole,
      awaits: rootOnly,
      take: (piece) => {
        if (isRoot(piece)) reduceSlots(piece);
      },
    },
  ],
};

const reduceByShares: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageOtherShares,
  steps: [
    {
      reads: readsShare,
      awaits: all,
      take: reduceShare,
    },
    {
      reads: (piece, rank, range) => {
        if (rank === piece.call.root) readsResult(piece, rank, range);
        else readsNothing(piece, rank, range);
      },
      awaits: rootOnly,
      take: (piece) => {
        if (isRoot(piece)) takeShares(piece);
      },
    },
  ],
};

/** A rank by itself: its output is its input. */
export const alone: Movement = {
  hasParts: false,
  stages: () => false,
  stage: () => {},
  steps: [
    {
      reads: readsNothing,
      awaits: () => 'none',
      take: ({ mover, call, elementBytes, offset, bytes }) => {
        const { input, output } = call;
        if (call.kind === 'allToAllv') {
          const to = output + call.recvOffsets[0]! * elementBytes;
          mover.copy(to, input + call.sendOffsets[0]! * elementBytes, call.sendCounts[0]! * elementBytes);
        } else if (input !== output) mover.copy(output + offset, input + offset, bytes);
      },
    },
  ],
};

/** What moves a call in one step, and what does in shares; allToAllv has its own. */
export type FixedKind = Exclude<CollectiveKind, 'allToAllv'>;

export const atOnce: Readonly<Record<FixedKind, Movement>> = {
  barrier,
  broadcast,
  allGather,
  allToAll,
  reduceScatter,
  allReduce: allReduceAtOnce,
  reduce: reduceAtOnce,
};

export const inShares: Readonly<Record<'allReduce' | 'reduce', Movement>> = {
  allReduce: allReduceByShares,
  reduce: reduceByShares,
};
