// Chooses the lanes of a connection that carry what: the turns of messages, and how large requests are cut. Pure: neither threads nor
// sockets, so that a simulated host with several engines takes the same decisions. Hot path: no allocation but for new flows.
import { PartTable, PartWriter } from '../part-table.ts';
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

// How the parts of a prepared transfer are spread over lanes: by bytes, in their order, large ranges cut.

/** Cuts are made at multiples of so many bytes of a range. */
const CUT_ALIGNMENT = 4096;

/** The parts of each lane. Tables without parts where there is too little for all; all of it is then on `home`. */
export function divideParts(table: PartTable, lanes: number, home: number): readonly PartTable[] {
  const used = lanesFor(table.sums().bytes, lanes);
  const rows = used < 2 ? 0 : Math.ceil(table.count / used) + 1;
  const writers = Array.from({ length: lanes }, () => new PartWriter(PartTable.withRoom(rows), false));
  if (used < 2) return writers.map((writer, lane) => (lane === home ? table : writer.finish()));
  return divideInto(writers, table, home);
}

/** Rows of a lane's table beside those of the whole: where it begins and where it ends, parts may be cut. */
export const CUT_ROWS = 4;

/** The same into tables of others, one of each lane, which have room for all rows and CUT_ROWS more. */
export function divideInto(writers: readonly PartWriter[], table: PartTable, home: number): readonly PartTable[] {
  const { bytes: total } = table.sums();
  for (const writer of writers) writer.restart();
  const used = Math.max(1, lanesFor(total, writers.length));
  spreadRows(table, total, (share) => writers[(home + share) % writers.length] as PartWriter, used);
  return writers.map((writer) => writer.finish());
}

function lanesFor(bytes: number, lanes: number): number {
  return Math.min(lanes, Math.floor(bytes / PART_BYTES));
}

// oxlint-disable-next-line max-params -- they are few and of different types
function spreadRows(table: PartTable, total: number, writerOf: (share: number) => PartWriter, used: number): void {
  let share = 0;
  let before = 0;
  let writer = writerOf(0);
  for (let row = 0; row < table.count; row++) {
    const bytes = table.bytes[row]!;
    const ranges = table.ranges[row]!;
    const [local, localOffset, localStride] = [table.local[row]!, table.localOffset[row]!, table.localStride[row]!];
    const [remote, remoteOffset, remoteStride] = [
      table.remote[row]!,
      table.remoteOffset[row]!,
      table.remoteStride[row]!,
    ];
    for (let [range, offset] = [0, 0]; range < ranges;) {
      const left = bytes - offset;
      // What lanes up to this one are to have.
      const room = share === used - 1 ? Number.POSITIVE_INFINITY : Math.ceil((total * (share + 1)) / used) - before;
      const cut = Math.ceil(room / CUT_ALIGNMENT) * CUT_ALIGNMENT;
      // Small remainders are not worth a request of their own.
      const isCut = left > cut + CUT_ALIGNMENT;
      const taken = isCut ? cut : left;
      const whole = isCut || offset > 0 ? 1 : Math.max(1, Math.min(ranges - range, Math.floor(room / taken)));
      const from = localOffset + range * localStride + offset;
      const to = remoteOffset + range * remoteStride + offset;
      writer.add(local, from, localStride, remote, to, remoteStride, taken, whole);
      before += taken * whole;
      [range, offset] = isCut ? [range, offset + taken] : [range + whole, 0];
      while (share < used - 1 && before * used >= total * (share + 1)) writer = writerOf(++share);
    }
  }
}
