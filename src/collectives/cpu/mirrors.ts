// Keeps the mirrors of this rank's part on other hosts as they must be: what it writes there for others to read is put into
// them, and what it counts is counted in them, in the same order.
import type { HostNetwork } from '../../group/network/host-network.ts';
import type { NetworkLink } from '../../group/network/network-link.ts';
import type { OutQueue } from '../../group/network/out-queue.ts';
import { type MirroredRegions, mirrorOffset } from './rank-parts.ts';

/** To another host. */
interface Way {
  /** Ranks of that host, ascending. */
  readonly ranks: readonly number[];
  readonly link: NetworkLink;
  readonly queue: OutQueue;
  /** Of the mirror, in the window's mapping there. */
  readonly offset: number;
}

export class Mirrors {
  readonly ways: readonly Way[];
  readonly network: HostNetwork;
  /** Of this rank's part. */
  readonly #address: number;
  readonly #wayOf: readonly (Way | undefined)[];
  /** Whether a rank of another host has closed its side. */
  readonly #hasClosed: (rank: number) => boolean;

  /** `mirrors`: offset of the mirrors in each rank's part. `hasClosed`: as this host has heard. */
  constructor(
    network: HostNetwork,
    {
      address,
      regions,
      mirrors,
      hasClosed,
    }: {
      readonly address: number;
      readonly regions: MirroredRegions;
      readonly mirrors: number;
      readonly hasClosed: (rank: number) => boolean;
    },
  ) {
    const { routes, group, channels } = network;
    this.network = network;
    this.#address = address;
    this.#hasClosed = (rank) => hasClosed(rank) || (routes.peers.includes(rank) && network.link(rank).isClosed);
    this.ways = routes.ways.map(({ forwarder, slot, ranks }, number) => ({
      ranks,
      link: network.link(forwarder),
      // One channel for each: counts must come behind what they count.
      queue: network.link(forwarder).queues[number % channels]!,
      offset: network.offsetAt(forwarder, 0, mirrorOffset(mirrors, slot, regions)),
    }));
    this.#wayOf = group.ranks.map((_, rank) => this.ways.find(({ ranks }) => ranks.includes(rank)));
  }

  /** True for ranks of other hosts. */
  has(rank: number): boolean {
    return this.#wayOf[rank] !== undefined;
  }

  /** Hot path, as all below. Bytes of this rank's part, for the ranks of one host. They must not change until those have read them. */
  put({ queue, offset }: Way, at: number, bytes: number): void {
    queue.put(this.#address + at, 0, offset + at, bytes);
  }

  /** The same, for all hosts. */
  putToAll(at: number, bytes: number): void {
    for (const way of this.ways) this.put(way, at, bytes);
  }

  /** The same, for the host of a rank; nothing if that is this host. */
  putTo(rank: number, at: number, bytes: number): void {
    const way = this.#wayOf[rank];
    if (way !== undefined) this.put(way, at, bytes);
  }

  /** One has been added to the word at the beginning of a 64-bit cell: so it is on the other hosts. */
  countAtAll(at: number): void {
    for (const { queue, offset } of this.ways) queue.signal(0, offset + at);
  }

  /** The same, on the host of a rank. */
  countAt(rank: number, at: number): void {
    const way = this.#wayOf[rank];
    way?.queue.signal(0, way.offset + at);
  }

  /** Takes in what has come, posts what there is room for. */
  advance(): void {
    this.network.advance();
  }

  /** Everything was handed to the carrier, which needs no further call for it. */
  get isPosted(): boolean {
    for (const way of this.ways) if (!this.#isPosted(way)) return false;
    return true;
  }

  /** Ranks to whose hosts something waits to be posted, and which may need it. */
  unposted(): number[] {
    return this.ways.flatMap((way) => (this.#isPosted(way) ? [] : way.ranks.filter((rank) => !this.#hasClosed(rank))));
  }

  /** The rank that takes it in may have closed its side: others of its host may still need it, until they have too. */
  #isPosted({ link, queue, ranks }: Way): boolean {
    return queue.isPosted || link.isGone || ranks.every(this.#hasClosed);
  }
}
