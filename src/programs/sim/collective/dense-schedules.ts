// All-reduces by a ring, by halving and doubling, and by a tree; an all-to-all in turns.
import { invalidArgument } from '../../../core/errors.ts';
import { type CollectiveSchedule, partBytes, requireParts } from './collective-schedule.ts';

/** Reduce-scatter, then all-gather: n - 1 steps each, in which every host sends a part to the next one. */
export function ringAllReduce(hosts: number, bytes: number): CollectiveSchedule {
  const steps = 2 * (hosts - 1);
  /** In step s host h sends part h - s. */
  const partOf = (host: number, step: number): number => (((host - step) % hosts) + hosts) % hosts;
  const size = (host: number, step: number): number => partBytes(bytes, hosts, partOf(host, step));
  return {
    name: 'ring',
    hosts,
    messages: hosts * steps,
    steps: { count: steps, bytes: bytes / hosts },
    usesConnectionsOnce: false,
    begin: (send) => {
      for (let host = 0; host < hosts; host++) send(host, (host + 1) % hosts, size(host, 0), 0);
    },
    arrived: (_source, host, step, send) => {
      if (step + 1 < steps) send(host, (host + 1) % hosts, size(host, step + 1), step + 1);
    },
  };
}

/** log2(n) exchanges of halves, quarters, … with hosts that are further and further away, then the same back. A power of two. */
export function halvingAllReduce(hosts: number, bytes: number): CollectiveSchedule {
  const levels = Math.log2(hosts);
  if (!Number.isInteger(levels)) throw invalidArgument('hosts of halving and doubling', hosts, 'a power of two');
  const steps = 2 * levels;
  const levelOf = (step: number): number => (step < levels ? step : steps - 1 - step);
  const size = (step: number): number => Math.ceil(bytes / 2 ** (levelOf(step) + 1));
  /** By host: the step it is in, and the steps whose message has come early. */
  const at = new Uint32Array(hosts);
  const come = new Uint32Array(hosts);
  return {
    name: 'halving',
    hosts,
    messages: hosts * steps,
    steps: { count: steps, bytes: 0 },
    usesConnectionsOnce: false,
    begin: (send) => {
      for (let host = 0; host < hosts; host++) send(host, host ^ 1, size(0), 0);
    },
    arrived: (_source, host, tag, send) => {
      come[host]! |= 1 << tag;
      while (((come[host]! >>> at[host]!) & 1) === 1) {
        const step = at[host]! + 1;
        at[host] = step;
        if (step < steps) send(host, host ^ (1 << levelOf(step)), size(step), step);
      }
    },
  };
}

interface TreeShape {
  readonly fanIn: number;
  readonly pieceBytes: number;
}

/** Up a tree of hosts, each of which adds up what comes from below, then down again, piece by piece. */
export function treeAllReduce(hosts: number, bytes: number, { fanIn, pieceBytes }: TreeShape): CollectiveSchedule {
  requireParts(hosts, bytes, pieceBytes);
  const pieces = Math.max(1, Math.ceil(bytes / pieceBytes));
  const parent = (host: number): number => Math.floor((host - 1) / fanIn);
  const firstChild = (host: number): number => host * fanIn + 1;
  const childrenOf = (host: number): number => Math.max(0, Math.min(fanIn, hosts - firstChild(host)));
  const left = Uint16Array.from({ length: hosts * pieces }, (_, at) => childrenOf(Math.floor(at / pieces)));
  const size = (piece: number): number => partBytes(bytes, pieces, piece);
  let depth = 0;
  for (let host = hosts - 1; host > 0; host = parent(host)) depth++;
  return {
    name: `tree of fan-in ${fanIn}`,
    hosts,
    messages: 2 * (hosts - 1) * pieces,
    steps: { count: 2 * depth, bytes: size(0) },
    usesConnectionsOnce: false,
    begin: (send) => {
      for (let host = 1; host < hosts; host++) {
        for (let piece = 0; childrenOf(host) === 0 && piece < pieces; piece++)
          send(host, parent(host), size(piece), piece);
      }
    },
    arrived: (source, host, piece, send) => {
      if (source > host) {
        const at = host * pieces + piece;
        left[at]! -= 1;
        if (left[at] !== 0) return;
        if (host !== 0) return send(host, parent(host), size(piece), piece);
      }
      for (let child = 0; child < childrenOf(host); child++) send(host, firstChild(host) + child, size(piece), piece);
    },
  };
}

/** In turn t host h sends its part to host h + t, `window` turns ahead of what has come. `bytes`: of a host, its own part among them. */
export function turnsAllToAll(hosts: number, bytes: number, window: number): CollectiveSchedule {
  const turns = hosts - 1;
  const size = Math.ceil(bytes / hosts);
  const ahead = Math.min(window, turns);
  /** By host: turns that it has begun. */
  const begun = new Uint32Array(hosts).fill(ahead);
  return {
    name: `${ahead} turns at a time`,
    hosts,
    messages: hosts * turns,
    steps: { count: Math.ceil(turns / ahead), bytes: size },
    usesConnectionsOnce: true,
    begin: (send) => {
      for (let turn = 1; turn <= ahead; turn++) {
        for (let host = 0; host < hosts; host++) send(host, (host + turn) % hosts, size, turn);
      }
    },
    arrived: (_source, host, _turn, send) => {
      const turn = begun[host]! + 1;
      if (turn > turns) return;
      begun[host] = turn;
      send(host, (host + turn) % hosts, size, turn);
    },
  };
}
