// What each collective moves, piece by piece: into this rank's slot, out of the slots of the others, and results out again.
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import type { PeerMemory } from '../../group/peer-memory.ts';
import { algorithmFor, type AlgorithmTable } from '../algorithm-table.ts';
import type { CollectiveCall, CollectiveKind, ReducedDType } from '../collective-call.ts';
import type { RankBoard } from './rank-board.ts';
import type { CollectiveRegions, Mirrors, RankParts } from './window-regions.ts';

/** Addresses are those of tensors, and of the data of slots and channels; work is done in the order in which it is given. */
export interface Mover extends Disposable {
  /** Work is done when it was given: isSettled() always holds. */
  readonly isImmediate: boolean;
  /** Addresses of what reduce() adds up, by place. */
  readonly sources: { [place: number]: number };
  copy(to: number, from: number, bytes: number): void;
  /** The reduction of the first `count` of `sources`, as the call says. */
  reduce(call: CollectiveCall, count: number, out: number, bytes: number): void;
  /** isSettled() is about the work so far, until the next mark(). */
  mark(): void;
  /** True when it is done. Fails with what made it impossible. */
  isSettled(): boolean;
}

/** The mover of CPU ranks, for which nothing is ever under way. */
export class CpuMover implements Mover {
  readonly isImmediate: boolean = true;
  readonly sources: Uint32Array;
  readonly #kernels: CpuDevice['kernels'];
  readonly #storage: Storage;

  constructor(device: CpuDevice, ranks: number) {
    this.#kernels = device.kernels;
    this.#storage = device.allocate(ranks * 4);
    this.sources = new Uint32Array(device.memory.buffer, this.#storage.address, ranks);
  }

  copy(to: number, from: number, bytes: number): void {
    this.#kernels.copyBytes(to, from, bytes);
  }

  reduce({ dtype, reduction }: CollectiveCall, count: number, out: number, bytes: number): void {
    const format = reductionFormats[dtype as ReducedDType];
    this.#kernels.reduceRuns(out, this.#storage.address, count, bytes, format, reductions[reduction]);
  }

  mark(): void {}

  isSettled(): boolean {
    return true;
  }

  [Symbol.dispose](): void {
    this.#storage[Symbol.dispose]();
  }
}

// A mover reads and writes the data of slots and channels: in the windows, or in memory of GPUs beside them.

/** Offsets in a rank's part are those of its window. */
export interface DataPlaces {
  /** They are the windows themselves: what was written there can be put from there. */
  readonly areShared: boolean;
  /** The address of each rank's part, or of its mirror here, by rank of the group. */
  readonly addresses: readonly number[];
  /** The address of this rank's part of the window, for the mover: data go from there to other hosts. */
  readonly outgoing: number;
}

/** What carries out calls in steps works with. */
export interface StepParts {
  readonly parts: RankParts;
  readonly board: RankBoard;
  readonly regions: CollectiveRegions;
  /** Mirrors of a group on several hosts. */
  readonly mirrors: Mirrors | undefined;
  /** The mover, owned by whoever made it. */
  readonly mover: Mover;
  readonly places: DataPlaces;
}

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
  /** The begin of the piece in the unit, and its length. */
  readonly offset: number;
  readonly bytes: number;
  /** Bytes from one part of a slot to the next, where a slot has a part for each rank. */
  readonly stride: number;
  /** Address of a rank's slot, for the mover. */
  readonly slot: (rank: number) => number;
  /** All memory of the host in words, and the begin of a rank's slot in it, for Movement.movesNoData. */
  readonly words: Uint32Array;
  readonly wordOf: (rank: number) => number;
}

/** A range of a rank's slot, reused. */
export interface SlotRange {
  first: number;
  bytes: number;
}

/** Posts of certain ranks; reused. */
interface AwaitedRanks {
  readonly ranks: readonly number[];
  /** The number of posts that each rank of the list must be further than this rank; 0 for as far. */
  readonly ahead: readonly number[];
}

/** The posts that a step needs: every rank's, the root's, nobody's, or those of certain ranks. */
export type Awaited = 'all' | 'root' | 'none' | AwaitedRanks;

/** What ranks do once this one has posted. */
export interface MovementStep {
  /** What another rank reads, in this step or a later one, of what this rank's slot has since its last post. */
  reads(piece: Piece, rank: number, range: SlotRange): void;
  /** The ranks whose slots `take` reads. */
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

function readsNothing(_piece: Piece, _rank: number, range: SlotRange): void {
  range.first = 0;
  range.bytes = 0;
}

/** The root reads so, other ranks nothing. */
function forRoot(reads: MovementStep['reads']): MovementStep['reads'] {
  return (piece, rank, range) => (rank === piece.call.root ? reads : readsNothing)(piece, rank, range);
}

/** The root takes so, other ranks nothing. */
function atRoot(take: MovementStep['take']): MovementStep['take'] {
  return (piece) => {
    if (isRoot(piece)) take(piece);
  };
}

function readsPart({ bytes, stride }: Piece, rank: number, range: SlotRange): void {
  range.first = rank * stride;
  range.bytes = bytes;
}

function stageWhole({ mover, me, call, offset, bytes, slot }: Piece): void {
  mover.copy(slot(me), call.input + offset, bytes);
}

/** Stages for each other rank its part. */
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

/** The part of a piece that one of so many ranks reduces for all. */
function shareBytes({ bytes }: Piece, sharers: number): number {
  return alignUp(Math.ceil(bytes / sharers), PART_ALIGNMENT);
}

/** A rank's share of the piece. */
function readsShare(piece: Piece, rank: number, range: SlotRange): void {
  const share = shareBytes(piece, piece.ranks);
  range.first = Math.min(piece.bytes, rank * share);
  range.bytes = Math.min(share, piece.bytes - range.first);
}

/** What this rank reduced. */
function readsResult(piece: Piece, _rank: number, range: SlotRange): void {
  readsShare(piece, piece.me, range);
}

/** All but this rank's own share, which nobody else reads. */
function stageOtherShares(piece: Piece): void {
  stageAllBut(piece, piece.me, shareBytes(piece, piece.ranks));
}

/** All of the piece but the share at that place. */
function stageAllBut({ mover, me, call, offset, bytes, slot }: Piece, place: number, share: number): void {
  const [first, end] = [Math.min(bytes, place * share), Math.min(bytes, (place + 1) * share)];
  mover.copy(slot(me), call.input + offset, first);
  mover.copy(slot(me) + end, call.input + offset + end, bytes - end);
}

/** The result comes to lie in this rank's slot, from which all take it. */
function reduceShare(piece: Piece): void {
  const { mover, ranks, me, call, offset, bytes, slot } = piece;
  const share = shareBytes(piece, ranks);
  const first = Math.min(bytes, me * share);
  for (let rank = 0; rank < ranks; rank++) {
    mover.sources[rank] = (rank === me ? call.input + offset : slot(rank)) + first;
  }
  mover.reduce(call, ranks, slot(me) + first, Math.min(share, bytes - first));
}

function takeShares(piece: Piece): void {
  const { mover, ranks, call, offset, bytes, slot } = piece;
  const share = shareBytes(piece, ranks);
  for (let rank = 0, first = 0; rank < ranks && first < bytes; rank++, first += share) {
    mover.copy(call.output + offset + first, slot(rank) + first, Math.min(share, bytes - first));
  }
}

const barrier: Movement = {
  hasParts: false,
  stages: () => false,
  stage: () => {},
  steps: [{ reads: readsNothing, awaits: all, take: () => {} }],
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
  steps: [{ reads: readsWhole, awaits: all, take: reduceSlots }],
};

/** Every rank reduces a share, then all gather the shares: each element is added up once. */
const allReduceByShares: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageOtherShares,
  steps: [
    { reads: readsShare, awaits: all, take: reduceShare },
    { reads: readsResult, awaits: all, take: takeShares },
  ],
};

const reduceAtOnce: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageWhole,
  steps: [{ reads: forRoot(readsWhole), awaits: rootOnly, take: atRoot(reduceSlots) }],
};

const reduceByShares: Movement = {
  hasParts: false,
  stages: yes,
  stage: stageOtherShares,
  steps: [
    { reads: readsShare, awaits: all, take: reduceShare },
    { reads: forRoot(readsResult), awaits: rootOnly, take: atRoot(takeShares) },
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
type FixedKind = Exclude<CollectiveKind, 'allToAllv'>;

const atOnce: Readonly<Record<FixedKind, Movement>> = {
  barrier,
  broadcast,
  allGather,
  allToAll,
  reduceScatter,
  allReduce: allReduceAtOnce,
  reduce: reduceAtOnce,
};

const inShares: Readonly<Record<'allReduce' | 'reduce', Movement>> = {
  allReduce: allReduceByShares,
  reduce: reduceByShares,
};

// An all-reduce along the hosts: sums go from host to host in the order of the ranks, and the result comes back the same way.

/** True if each host has as many ranks as the others, and they follow each other in rank order. */
function canChain(hosts: Hosts): boolean {
  const size = hosts[0]!.length;
  return (
    hosts.length > 1 &&
    hosts.every((ranks, host) => ranks.length === size && ranks.every((rank, at) => rank === host * size + at))
  );
}

/** bf16 sums are rounded once, so what goes from host to host would have to be f32. */
function isChainable({ dtype, reduction }: CollectiveCall): boolean {
  return Object.hasOwn(reductionFormats, dtype) && (dtype !== 'bf16' || reduction !== 'sum');
}

/**
 * Each rank of a host has a share of the piece. It takes that share's sum over the ranks of earlier hosts, adds those of its
 * own host, and hands it on; the last host has the result, which comes back from host to host. So each host puts the tensor
 * once in each direction, however many ranks it has, and additions keep the order of the ranks.
 */
class ChainMovement implements Movement {
  readonly hasParts = false;
  readonly steps: readonly MovementStep[];
  /** Ranks of this host, and this one's place among them. */
  readonly #here: readonly number[];
  readonly #place: number;
  /** Ranks of the hosts before and behind that have the same share. */
  readonly #before: number | undefined;
  readonly #behind: number | undefined;

  /** `hosts` can chain. */
  constructor(hosts: Hosts, me: number) {
    const host = hosts.findIndex((ranks) => ranks.includes(me));
    this.#here = hosts[host]!;
    this.#place = this.#here.indexOf(me);
    this.#before = hosts[host - 1]?.[this.#place];
    this.#behind = hosts[host + 1]?.[this.#place];
    const others = this.#here.filter((rank) => rank !== me);
    const sums = awaited(others, this.#before);
    const handedBack = awaited([], this.#behind);
    const results = awaited(others, undefined);
    this.steps = [
      { reads: readsNothing, awaits: () => sums, take: (piece) => this.#addOwnHost(piece) },
      {
        reads: (piece, rank, range) => this.#readsShare(piece, rank === this.#behind, range),
        awaits: () => handedBack,
        take: (piece) => this.#takeBack(piece),
      },
      {
        reads: (piece, rank, range) => this.#readsShare(piece, rank === this.#before, range),
        awaits: () => results,
        take: (piece) => this.#collect(piece),
      },
    ];
  }

  stages(): boolean {
    return true;
  }

  /** All but this rank's own share, which nobody else on this host reads. */
  stage(piece: Piece): void {
    stageAllBut(piece, this.#place, shareBytes(piece, this.#here.length));
  }

  #addOwnHost(piece: Piece): void {
    const { mover, me, call, offset, bytes, slot } = piece;
    const share = shareBytes(piece, this.#here.length);
    const first = Math.min(bytes, this.#place * share);
    let sources = 0;
    if (this.#before !== undefined) mover.sources[sources++] = slot(this.#before) + first;
    for (const rank of this.#here) mover.sources[sources++] = (rank === me ? call.input + offset : slot(rank)) + first;
    mover.reduce(call, sources, slot(me) + first, Math.min(share, bytes - first));
  }

  #takeBack(piece: Piece): void {
    if (this.#behind === undefined) return;
    const { mover, me, bytes, slot } = piece;
    const share = shareBytes(piece, this.#here.length);
    const first = Math.min(bytes, this.#place * share);
    mover.copy(slot(me) + first, slot(this.#behind) + first, Math.min(share, bytes - first));
  }

  #collect(piece: Piece): void {
    const { mover, call, offset, bytes, slot } = piece;
    const share = shareBytes(piece, this.#here.length);
    for (let place = 0, first = 0; place < this.#here.length && first < bytes; place++, first += share) {
      mover.copy(call.output + offset + first, slot(this.#here[place]!) + first, Math.min(share, bytes - first));
    }
  }

  #readsShare(piece: Piece, doesRead: boolean, range: SlotRange): void {
    const share = doesRead ? shareBytes(piece, this.#here.length) : 0;
    range.first = Math.min(piece.bytes, this.#place * share);
    range.bytes = Math.min(share, piece.bytes - range.first);
  }
}

/** These, and one more that must be a post further. */
function awaited(ranks: readonly number[], further: number | undefined): AwaitedRanks {
  const members = further === undefined ? ranks : [...ranks, further];
  return { ranks: members, ahead: members.map((rank) => (rank === further ? 1 : 0)) };
}

// A large allToAll between ranks of one host: each reads its parts where they lie, out of the tensors of the others.
//
// First all tell where their tensors are; then they read, and tell that they have. A rank whose call is in place cannot let
// others read its tensor while it receives into it: then all see that, and move the call through the window instead.

/** Reads between ranks that can read each other's tensors. */
export interface DirectReads {
  readonly memory: PeerMemory;
  /** Bytes of a rank's tensor, above which it pays. */
  readonly fromBytes: number;
  /** Fails with the reason if a rank gave up the window. */
  throwIfUnusable(): void;
}

/** Stands for an address: the call is in place. No tensor lies there. */
const IN_PLACE = 0;

const staged = atOnce.allToAll;
const stagedStep = staged.steps[0]!;

export class DirectMovement implements Movement, MovementStep {
  readonly hasParts = true;
  readonly steps: readonly MovementStep[] = [this];
  readonly #direct: DirectReads;
  readonly #onPhase: (unitBytes: number) => void;
  #phase: 'addresses' | 'done' | 'staged' = 'addresses';

  /** `onPhase` is told the bytes that each part has in the next phase. */
  constructor(direct: DirectReads, onPhase: (unitBytes: number) => void) {
    this.#direct = direct;
    this.#onPhase = onPhase;
  }

  /** Hot path. Whether all ranks move an allToAll of so many bytes this way. */
  takes(bytes: number): boolean {
    return bytes > this.#direct.fromBytes;
  }

  begin(): void {
    this.#phase = 'addresses';
  }

  stages(): boolean {
    return this.#phase !== 'done';
  }

  awaits(): 'all' {
    return 'all';
  }

  stage(piece: Piece): void {
    if (this.#phase === 'staged') {
      staged.stage(piece);
      return;
    }
    const { me, call, words, wordOf } = piece;
    words[wordOf(me)] = call.input === call.output ? IN_PLACE : call.input;
  }

  reads(piece: Piece, rank: number, range: SlotRange): void {
    if (this.#phase === 'staged') {
      stagedStep.reads(piece, rank, range);
      return;
    }
    range.first = 0;
    range.bytes = this.#phase === 'addresses' ? 4 : 0;
  }

  take(piece: Piece): void {
    if (this.#phase === 'staged') stagedStep.take(piece);
    else if (this.#phase === 'addresses') this.#takeAddresses(piece);
  }

  #takeAddresses({ mover, ranks, me, call, elementBytes, words, wordOf }: Piece): void {
    let isDirect = true;
    for (let rank = 0; rank < ranks; rank++) isDirect &&= words[wordOf(rank)] !== IN_PLACE;
    const bytes = call.count * elementBytes;
    if (!isDirect) {
      this.#phase = 'staged';
      this.#onPhase(bytes);
      return;
    }
    const { input, output } = call;
    mover.copy(output + me * bytes, input + me * bytes, bytes);
    // Each begins with its neighbour, so that not all read the same tensor.
    for (let step = 1; step < ranks; step++) {
      const rank = (me + step) % ranks;
      this.#direct.memory.read(rank, words[wordOf(rank)]! + me * bytes, output + rank * bytes, bytes);
    }
    // ORDER: behind the reads. A rank whose call failed meanwhile has told the next phase already, and its caller may have changed
    // the tensor since; it gave up the window before that.
    this.#direct.throwIfUnusable();
    // ORDER: the post of the next phase tells that this rank has read; only when all have may the call end, because its
    // caller may then change the input. The posts before made the inputs visible.
    this.#phase = 'done';
    this.#onPhase(PART_ALIGNMENT);
  }
}

// The table of algorithms, and what is possible among these hosts, say which movement carries out a call.

export class MovementChoice {
  readonly #table: AlgorithmTable;
  readonly #chain: ChainMovement | undefined;

  constructor(table: AlgorithmTable, hosts: Hosts, me: number) {
    this.#table = table;
    if (canChain(hosts)) this.#chain = new ChainMovement(hosts, me);
  }

  /** Hot path. Of a call of a fixed kind. */
  of(call: CollectiveCall, unitBytes: number): Movement {
    const kind = call.kind as FixedKind;
    if (kind !== 'allReduce' && kind !== 'reduce') return atOnce[kind];
    const algorithm = algorithmFor(this.#table[kind], unitBytes);
    if (algorithm === 'oneStep') return atOnce[kind];
    if (algorithm === 'chain' && kind === 'allReduce' && this.#chain !== undefined && isChainable(call))
      return this.#chain;
    return inShares[kind];
  }
}
