// An all-reduce along the hosts: sums go from host to host in the order of the ranks, and the result comes back the same way.
import { reductionFormats } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import type { CollectiveCall } from '../collective-call.ts';
import {
  type AwaitedRanks,
  type Movement,
  type MovementStep,
  PART_ALIGNMENT,
  type Piece,
  readsNothing,
  type SlotRange,
} from './movements.ts';

/** True if each host has as many ranks as the others, and they follow each other in rank order. */
export function canChain(hosts: Hosts): boolean {
  const size = hosts[0]!.length;
  return (
    hosts.length > 1 &&
    hosts.every((ranks, host) => ranks.length === size && ranks.every((rank, at) => rank === host * size + at))
  );
}

/** bf16 sums are rounded once, so what goes from host to host would have to be f32. */
export function isChainable({ dtype, reduction }: CollectiveCall): boolean {
  return Object.hasOwn(reductionFormats, dtype) && (dtype !== 'bf16' || reduction !== 'sum');
}

/**
 * Each rank of a host has a share of the piece. It takes that share's sum over the ranks of earlier hosts, adds those of its
 * own host, and hands it on; the last host has the result, which comes back from host to host. So each host puts the tensor
 * once in each direction, however many ranks it has, and additions keep the order of the ranks.
 */
export class ChainMovement implements Movement {
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
    const staged = awaited(others, this.#before);
    const handedBack = awaited([], this.#behind);
    const results = awaited(others, undefined);
    this.steps = [
      { reads: readsNothing, awaits: () => staged, take: (piece) => this.#addOwnHost(piece) },
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
    const { mover, me, call, offset, bytes, slot } = piece;
    const share = this.#shareBytes(piece);
    const [first, end] = [Math.min(bytes, this.#place * share), Math.min(bytes, (this.#place + 1) * share)];
    mover.copy(slot(me), call.input + offset, first);
    mover.copy(slot(me) + end, call.input + offset + end, bytes - end);
  }

  #addOwnHost(piece: Piece): void {
    const { mover, me, call, offset, bytes, slot } = piece;
    const share = this.#shareBytes(piece);
    const first = Math.min(bytes, this.#place * share);
    let sources = 0;
    if (this.#before !== undefined) mover.sources[sources++] = slot(this.#before) + first;
    for (const rank of this.#here) mover.sources[sources++] = (rank === me ? call.input + offset : slot(rank)) + first;
    mover.reduce(call, sources, slot(me) + first, Math.min(share, bytes - first));
  }

  #takeBack(piece: Piece): void {
    if (this.#behind === undefined) return;
    const { mover, me, bytes, slot } = piece;
    const share = this.#shareBytes(piece);
    const first = Math.min(bytes, this.#place * share);
    mover.copy(slot(me) + first, slot(this.#behind) + first, Math.min(share, bytes - first));
  }

  #collect(piece: Piece): void {
    const { mover, call, offset, bytes, slot } = piece;
    const share = this.#shareBytes(piece);
    for (let place = 0, first = 0; place < this.#here.length && first < bytes; place++, first += share) {
      mover.copy(call.output + offset + first, slot(this.#here[place]!) + first, Math.min(share, bytes - first));
    }
  }

  #readsShare(piece: Piece, doesRead: boolean, range: SlotRange): void {
    const share = doesRead ? this.#shareBytes(piece) : 0;
    range.first = Math.min(piece.bytes, this.#place * share);
    range.bytes = Math.min(share, piece.bytes - range.first);
  }

  #shareBytes({ bytes }: Piece): number {
    return alignUp(Math.ceil(bytes / this.#here.length), PART_ALIGNMENT);
  }
}

/** These, and one more that must be a post further. */
function awaited(ranks: readonly number[], further: number | undefined): AwaitedRanks {
  const all = further === undefined ? ranks : [...ranks, further];
  return { ranks: all, ahead: all.map((rank) => (rank === further ? 1 : 0)) };
}
