// Chooses the lanes of a connection that carry what: the turns of messages, and how large requests are cut. Pure: neither threads nor
// sockets, so that a simulated host with several engines takes the same decisions. Hot path: no allocation but for new flows.
import { PartTable } from '../part-table.ts';
import { PART_BYTES } from '../engine-commands.ts';

/** How large messages and reads are spread: whole ones go by turns, each is cut, or all of a flow stay on its home lane. */
export const spreads = ['turn', 'split', 'flow'] as const;
export type Spread = (typeof spreads)[number];

/** What a lane takes of a request: `bytes` from `offset` of it on. */
export interface LanePart {
  lane: number;
  offset: number;
  bytes: number;
}

/** What is counted of a flow. */
class LaneFlow {
  /** The lane of its writes, signals, flushes and small reads. */
  readonly home: number;
  /** Messages and receives so far. Both ends of a connection count them alike. */
  sends = 0;
  receives = 0;
  /** Large reads so far; the peer does not count them. */
  reads = 0;

  constructor(home: number) {
    this.home = home;
  }
}

export class LaneChoice {
  readonly lanes: number;
  /** What the last choice led to: the first `count` of `parts`. Filled in again by the next. */
  readonly parts: readonly LanePart[];
  count = 0;
  readonly #spread: Spread;
  readonly #flows = new Map<number, LaneFlow>();

  /** Both ends of a connection have the same number of lanes, and spread alike. */
  constructor(lanes: number, spread: Spread) {
    this.lanes = lanes;
    this.#spread = spread;
    this.parts = Array.from({ length: lanes }, () => ({ lane: 0, offset: 0, bytes: 0 }));
  }

  flow(id: number): LaneFlow {
    const known = this.#flows.get(id);
    if (known !== undefined) return known;
    const flow = new LaneFlow(homeLane(id, this.lanes));
    this.#flows.set(id, flow);
    return flow;
  }

  /**
   * Chooses the lanes that carry message number `turn` of a flow, or take it in. A message takes its place even if it fails
   * afterwards: the caller counts those that it has posted, and no others.
   */
  message(flow: LaneFlow, turn: number, bytes: number): void {
    if (this.#spread === 'turn') this.#whole((flow.home + turn) % this.lanes, bytes);
    else if (this.#spread === 'flow') this.#whole(flow.home, bytes);
    // Neither side knows what the other has posted, so that every lane has its part of each, however small.
    else {
      this.#cut(flow.home, this.lanes, bytes);
      this.count = this.lanes;
    }
  }

  /** The lanes that carry a read. */
  read(flow: LaneFlow, bytes: number): void {
    const most = Math.min(this.lanes, Math.floor(bytes / PART_BYTES));
    // One of fewer than two whole parts stays on the home lane; so does one that is no number.
    if (this.#spread === 'flow' || !(most >= 2)) {
      this.#whole(flow.home, bytes);
      return;
    }
    const first = (flow.home + flow.reads) % this.lanes;
    flow.reads = (flow.reads + 1) % this.lanes;
    if (this.#spread === 'turn') this.#whole(first, bytes);
    else this.#cut(first, most, bytes);
  }

  #whole(lane: number, bytes: number): void {
    this.count = 1;
    fill(this.parts[0] as LanePart, lane, 0, bytes);
  }

  #cut(first: number, most: number, bytes: number): void {
    const share = Math.max(1, Math.ceil(bytes / most / PART_BYTES)) * PART_BYTES;
    this.count = Math.ceil(bytes / share);
    for (let part = 0; part < most; part++) {
      const offset = Math.min(bytes, part * share);
      // A part of nothing begins nowhere.
      const start = offset < bytes ? offset : 0;
      fill(this.parts[part] as LanePart, (first + part) % this.lanes, start, Math.min(share, bytes - offset));
    }
  }
}

/** The lane of a flow's writes, signals, flushes and small reads, the same on both ends. */
export function homeLane(flow: number, lanes: number): number {
  return flow % lanes;
}

function fill(part: LanePart, lane: number, offset: number, bytes: number): void {
  part.lane = lane;
  part.offset = offset;
  part.bytes = bytes;
}

// How the parts of a prepared transfer are spread over lanes: by bytes, in their order, large ones cut.

/** Cuts are made at multiples of so many bytes of a part. */
const CUT_ALIGNMENT = 4096;

/** A run of bytes of a part. */
interface PartCut {
  readonly part: number;
  readonly offset: number;
  readonly bytes: number;
}

/** The parts of each lane. Tables without parts where there is too little for all; all of it is then on `home`. */
export function divideParts(table: PartTable, lanes: number, home: number): readonly PartTable[] {
  const total = table.bytes.reduce((sum, bytes) => sum + bytes, 0);
  const used = Math.min(lanes, Math.floor(total / PART_BYTES));
  const empty = PartTable.ofCount(0);
  const shares = Array.from({ length: lanes }, () => empty);
  if (used < 2) {
    shares[home] = table;
    return shares;
  }
  const cuts = cutParts(table, used, total);
  for (const [share, list] of cuts.entries()) shares[(home + share) % lanes] = tableOf(table, list);
  return shares;
}

function cutParts(table: PartTable, used: number, total: number): readonly PartCut[][] {
  const cuts: PartCut[][] = Array.from({ length: used }, () => []);
  let lane = 0;
  let before = 0;
  for (let part = 0; part < table.count; part++) {
    let offset = 0;
    const bytes = table.bytes[part]!;
    do {
      const left = bytes - offset;
      // What lanes up to this one are to have.
      const room = Math.ceil((total * (lane + 1)) / used) - before;
      const isLast = lane === used - 1;
      const cut = Math.ceil(room / CUT_ALIGNMENT) * CUT_ALIGNMENT;
      // Small remainders are not worth a request of their own.
      const taken = isLast || left <= cut + CUT_ALIGNMENT ? left : cut;
      (cuts[lane] as PartCut[]).push({ part, offset, bytes: taken });
      offset += taken;
      before += taken;
      while (lane < used - 1 && before * used >= total * (lane + 1)) lane++;
    } while (offset < bytes);
  }
  return cuts;
}

function tableOf(source: PartTable, cuts: readonly PartCut[]): PartTable {
  const table = PartTable.ofCount(cuts.length);
  for (const [at, { part, offset, bytes }] of cuts.entries()) {
    table.localOffset[at] = source.localOffset[part]! + offset;
    table.remoteOffset[at] = source.remoteOffset[part]! + offset;
    table.bytes[at] = bytes;
    table.local[at] = source.local[part]!;
    table.remote[at] = source.remote[part]!;
  }
  return table;
}
