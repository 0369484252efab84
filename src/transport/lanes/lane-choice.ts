// Which lanes of a connection carry what: the turns of messages, and how large requests are cut. Pure: neither threads nor
// sockets, so that a simulated host with several engines takes the same decisions. Hot path: no allocation but for new flows.

import { PART_BYTES } from '../../abi/transport-command.ts';

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
   * Which lanes carry message number `turn` of a flow, or take it in. A message takes its place even if it fails
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

  /** Which lanes carry a write or a read. */
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
      // Where a part of nothing begins means nothing.
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
