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

export interface TheoryOptions {
  readonly pattern: PatternName;
  readonly topology: NetworkTopology;
  readonly messageBytes: number;
  readonly segmentBytes: number;
  /** All messages of all flows. */
  readonly messages: number;
  /** Gbps of one host, all its links together. */
  readonly hostGigabitsPerSecond: number;
}

export interface Theory {
  /** Most payload that all receivers together can get, in Gbps. */
  readonly goodputGbps: number;
  /** The part of one sending host. */
  readonly fairShareGbps: number;
  /** One message alone in the network, without asking the receiver first. Microseconds. */
  readonly messageMicroseconds: number;
  /** All messages, if they were offered at once and the narrowest place never idled. Microseconds. */
  readonly totalMicroseconds: number;
}

export function theory(options: TheoryOptions): Theory {
  const { pattern, topology, messageBytes, segmentBytes, messages, hostGigabitsPerSecond } = options;
  const wire = wireBytes(messageBytes, segmentBytes);
  const efficiency = messageBytes / wire;
  const receivers = pattern === 'permutation' ? topology.hosts : 1;
  const senders = pattern === 'permutation' ? topology.hosts : pattern === 'incast' ? topology.hosts - 1 : 1;
  const goodputGbps = receivers * hostGigabitsPerSecond * efficiency;
  const bytesPerMicrosecond = hostGigabitsPerSecond * 125;
  const farthest = { source: 0, destination: topology.hosts - 1 };
  const head = oneWayDelay(topology, farthest, Math.min(segmentBytes, messageBytes + DATA_HEADER_BYTES));
  // The first packet's own time on the first link is part of both.
  const rest = Math.max(0, wire - segmentBytes - WIRE_OVERHEAD_BYTES) / bytesPerMicrosecond;
  const others = ((messages / receivers - 1) * wire) / bytesPerMicrosecond;
  return {
    goodputGbps,
    fairShareGbps: goodputGbps / senders,
    messageMicroseconds: head + rest,
    totalMicroseconds: head + rest + others,
  };
}
