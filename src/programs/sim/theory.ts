// What a network could do at best: bytes on the wire, fair shares, and times that no transport can beat.
import { DATA_HEADER_BYTES } from '../../abi/transport-packet.ts';
import type { PatternName } from './traffic.ts';
import { WIRE_OVERHEAD_BYTES } from './simulated-io.ts';
import { routeOf, type NetworkTopology } from './topology.ts';

/** Bytes that a message takes on each link of its route, headers of all layers included. */
export function wireBytes(messageBytes: number, segmentBytes: number): number {
  const packets = Math.max(1, Math.ceil(messageBytes / (segmentBytes - DATA_HEADER_BYTES)));
  return messageBytes + packets * (DATA_HEADER_BYTES + WIRE_OVERHEAD_BYTES);
}

/** Microseconds from the first bit of a packet leaving its source to the last one reaching the destination, on idle links. */
export function oneWayDelay(
  topology: NetworkTopology,
  { source, destination }: { readonly source: number; readonly destination: number },
  packetBytes: number,
): number {
  let time = 0;
  for (const link of routeOf(topology, source, destination, 0)) {
    const { delay, gigabitsPerSecond } = topology.links[link] as NetworkTopology['links'][number];
    time += delay + (packetBytes + WIRE_OVERHEAD_BYTES) / (gigabitsPerSecond * 125);
  }
  return time;
}

/** A rail that is down for all hosts from one time to another. */
export interface RailOutage {
  readonly from: number;
  /** Infinity if it never recovers. */
  readonly to: number;
}

interface TheoryOptions {
  readonly pattern: PatternName;
  readonly topology: NetworkTopology;
  readonly messageBytes: number;
  readonly segmentBytes: number;
  /** All messages of all flows. */
  readonly messages: number;
  /** Paths of a connection: with fewer than there are rails, some rails are idle. */
  readonly paths: number;
  /** Gbps of one host, all its links together. */
  readonly hostGigabitsPerSecond: number;
  readonly outage?: RailOutage;
}

export interface Theory {
  /** Most payload that all receivers together can get while all rails are up, in Gbps. */
  readonly goodputGbps: number;
  /** The part of one sending host. */
  readonly fairShareGbps: number;
  /** One message alone in the network, without asking the receiver first. Microseconds. */
  readonly messageMicroseconds: number;
  /** All messages, if they were offered at once and the narrowest place never idled. Microseconds. */
  readonly totalMicroseconds: number;
}

const hostsAtBothEnds: ReadonlySet<PatternName> = new Set(['permutation', 'all-to-all']);

export function theory(options: TheoryOptions): Theory {
  const { pattern, topology, messageBytes, segmentBytes, messages, paths, hostGigabitsPerSecond, outage } = options;
  const wire = wireBytes(messageBytes, segmentBytes);
  const efficiency = messageBytes / wire;
  const areAll = hostsAtBothEnds.has(pattern);
  const receivers = areAll ? topology.hosts : 1;
  const senders = areAll ? topology.hosts : pattern === 'incast' ? topology.hosts - 1 : 1;
  const rails = Math.min(paths, topology.rails);
  const railRate = (hostGigabitsPerSecond * 125) / topology.rails;
  const goodputGbps = (receivers * hostGigabitsPerSecond * efficiency * rails) / topology.rails;
  const farthest = { source: 0, destination: topology.hosts - 1 };
  const head = oneWayDelay(topology, farthest, Math.min(segmentBytes, messageBytes + DATA_HEADER_BYTES));
  // The first packet's own time on the first link is part of both.
  const rest = Math.max(0, wire / rails - segmentBytes - WIRE_OVERHEAD_BYTES) / railRate;
  const others = ((messages / receivers - 1) * wire) / (rails * railRate);
  return {
    goodputGbps,
    fairShareGbps: goodputGbps / senders,
    messageMicroseconds: head + rest,
    totalMicroseconds: delayedBy(outage, head + rest + others, (rails - 1) / rails),
  };
}

/** When work that takes so long with all rails is over, if `share` of the rails work during the outage. */
function delayedBy(outage: RailOutage | undefined, microseconds: number, share: number): number {
  if (outage === undefined || microseconds <= outage.from) return microseconds;
  const left = microseconds - outage.from;
  const done = share * (outage.to - outage.from);
  if (share > 0 && left <= done) return outage.from + left / share;
  return Number.isFinite(outage.to) ? outage.to + left - done : Number.POSITIVE_INFINITY;
}
