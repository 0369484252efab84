// Chooses the lanes of a connection that carry what: the turns of messages, and how large requests are cut. Pure: neither threads nor
// sockets, so that a simulated host with several engines takes the same decisions. Hot path: no allocation but for new flows.
import { PartTable } from '../part-table.ts';
import { PART_BYTES } from '../engine-commands.ts';
import { type GatePool, NONE } from './gates.ts';

/** How large requests are spread: whole ones go by turns, each is cut, or all of a flow stay on its home lane. */
export const spreads = ['turn', 'split', 'flow'] as const;
export type Spread = (typeof spreads)[number];

/** What a lane takes of a request: `bytes` from `offset` of it on. */
export interface LanePart {
  lane: number;
  offset: number;
  bytes: number;
}

/** What is counted of a flow. */
export class LaneFlow {
  /** The lane of its signals, flushes and small one-sided requests. */
  readonly home: number;
  /** Messages and receives so far. Both ends of a connection count them alike. */
  sends = 0;
  receives = 0;
  /** Large one-sided requests so far; the peer does not count them. */
  oneSided = 0;

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

  /** What the engines will refuse goes to the home lane, where it takes no turn. */
  refused(flow: LaneFlow, bytes: number): void {
    this.#whole(flow.home, bytes);
  }

  /** The lanes that carry a write or a read. */
  oneSided(flow: LaneFlow, bytes: number): void {
    const most = Math.min(this.lanes, Math.floor(bytes / PART_BYTES));
    // One of fewer than two whole parts stays on the home lane; so does one that is no number.
    if (this.#spread === 'flow' || !(most >= 2)) {
      this.#whole(flow.home, bytes);
      return;
    }
    const first = (flow.home + flow.oneSided) % this.lanes;
    flow.oneSided = (flow.oneSided + 1) % this.lanes;
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

/** The lane of a flow's signals, flushes and small one-sided requests, the same on both ends. */
export function homeLane(flow: number, lanes: number): number {
  return flow % lanes;
}

function fill(part: LanePart, lane: number, offset: number, bytes: number): void {
  part.lane = lane;
  part.offset = offset;
  part.bytes = bytes;
}

// The order of flows over several lanes, on the side that posts: writes on other lanes than their flow's home hold a gate
// shut, for which signals and flushes of the flow wait.

export class FlowOrder {
  readonly #pool: GatePool;
  /** The gate of each flow's writes since the last signal or flush that had to wait. */
  readonly #gates = new Map<number, number>();

  constructor(pool: GatePool) {
    this.#pool = pool;
  }

  /** The gate of a flow's writes on other lanes than its home. NONE if no gate is left: they then stay on the home lane. */
  gateFor(flow: number): number {
    const known = this.#gates.get(flow);
    if (known !== undefined) return known;
    let gate = this.#pool.take();
    if (gate === NONE && this.#sweep()) gate = this.#pool.take();
    if (gate !== NONE) this.#gates.set(flow, gate);
    return gate;
  }

  /** Hot path. The gate that a signal or flush of the flow must wait for; NONE if it may go at once. */
  fence(flow: number): number {
    const gate = this.#gates.size === 0 ? undefined : this.#gates.get(flow);
    return gate === undefined || this.#pool.isOpen(gate) ? NONE : gate;
  }

  /**
   * A signal or flush waits for the flow's gate, whoever posted it frees the gate when it has ended: later writes get
   * another, so that it does not wait for those as well.
   */
  pass(flow: number): void {
    this.#gates.delete(flow);
  }

  /** Gives back the gates that nobody waits for. */
  close(): void {
    for (const gate of this.#gates.values()) this.#pool.free(gate);
    this.#gates.clear();
  }

  /** Gives back gates without parts. True if there were any. */
  #sweep(): boolean {
    const before = this.#gates.size;
    for (const [flow, gate] of this.#gates) {
      if (!this.#pool.isOpen(gate)) continue;
      this.#gates.delete(flow);
      this.#pool.free(gate);
    }
    return this.#gates.size < before;
  }
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
