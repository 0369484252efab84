// The carrier alone: the rows' bytes go between the same ranks over the same channels as one contiguous put per peer and
// channel. No call can be faster on the network.
import { WeftlineError } from '../../../../core/errors.ts';
import type { HostRoutes } from '../../../../group/network/host-routes.ts';
import { alignUp } from '../../../../abi/layout.ts';
import type { BenchGroup } from '../../interleaved.ts';

/** Parts of a put that several channels share begin at such addresses. */
const PART_ALIGNMENT = 4096;

/** What one put brings from where to where. */
export interface CarrierPut {
  readonly peer: number;
  /** Of the sender among its puts: on its way to a host, or back to a source. */
  readonly from: number;
  /** In the receiver's memory: its own for each sender. */
  readonly slot: number;
  readonly bytes: number;
}

/** A part of a put, which one channel carries: `first` and `bytes` of it. */
export interface CarrierPart {
  readonly channel: number;
  readonly first: number;
  readonly bytes: number;
}

/** Where the bytes lie and what carries them. */
export interface CarrierRoad {
  readonly routes: HostRoutes;
  readonly channels: number;
  /** Before the first put of a turn. */
  readonly begin?: () => Promise<void>;
  readonly put: (put: CarrierPut, part: CarrierPart) => void;
  /** Resolves when all that was put is at the peers. */
  readonly delivered: () => Promise<void>;
  /** Bytes that a put brings. */
  readonly source: (put: CarrierPut) => Uint8Array;
  /** Where they come to lie at this rank. */
  readonly arrival: (slot: number, bytes: number) => Uint8Array;
}

export interface CarrierRows {
  readonly rank: number;
  readonly rowBytes: number;
  /** [source][host]: rows that cross. */
  readonly tokens: readonly (readonly number[])[];
}

export interface Carrier {
  /** Done when everything that this rank has sent is delivered. */
  readonly run: () => Promise<void>;
  /** Bytes that a run sends. */
  readonly bytes: number;
  /** Collective. Fails with WL_CHECK when other bytes are at a receiver than were sent. */
  readonly check: (group: BenchGroup) => Promise<void>;
}

/** To the forwarders of other hosts, as a dispatch sends. */
export function dispatchCarrier(road: CarrierRoad, { rank, rowBytes, tokens }: CarrierRows): Carrier {
  const { ways, served, host } = road.routes;
  const puts = ways.map((way, from) => ({
    peer: way.forwarder,
    from,
    slot: way.slot,
    bytes: tokens[rank]![way.host]! * rowBytes,
  }));
  const arrivals = served.map((source, slot) => ({
    peer: source.rank,
    slot,
    bytes: tokens[source.rank]![host]! * rowBytes,
  }));
  return carrier(road, puts, arrivals);
}

/** From the forwarders back to the sources, as a combine sends. */
export function combineCarrier(road: CarrierRoad, { rank, rowBytes, tokens }: CarrierRows): Carrier {
  const { ways, served, host } = road.routes;
  const puts = served.map((source, from) => ({
    peer: source.rank,
    from,
    slot: source.way,
    bytes: tokens[source.rank]![host]! * rowBytes,
  }));
  const arrivals = ways.map((way, slot) => ({ peer: way.forwarder, slot, bytes: tokens[rank]![way.host]! * rowBytes }));
  return carrier(road, puts, arrivals);
}

function carrier(
  road: CarrierRoad,
  puts: readonly CarrierPut[],
  arrivals: readonly Omit<CarrierPut, 'from'>[],
): Carrier {
  const run = async (): Promise<void> => {
    await road.begin?.();
    for (const put of puts) {
      const part = alignUp(Math.ceil(put.bytes / road.channels), PART_ALIGNMENT);
      for (let channel = 0; channel < road.channels; channel++) {
        const first = Math.min(put.bytes, channel * part);
        const bytes = Math.min(put.bytes, first + part) - first;
        if (bytes > 0) road.put(put, { channel, first, bytes });
      }
    }
    await road.delivered();
  };
  const check = async (group: BenchGroup): Promise<void> => {
    for (const { slot, bytes } of arrivals) road.arrival(slot, bytes).fill(0);
    await group.barrier('carrier-wiped');
    await run();
    await group.barrier('carrier-sent');
    const sums = puts.map((put) => ({ peer: put.peer, sum: checksum(road.source(put)) }));
    const sent = await group.allGather('carrier-sums', sums);
    for (const { peer, slot, bytes } of arrivals) {
      const expected = sent[peer]!.find((put) => put.peer === group.rank)?.sum;
      if (checksum(road.arrival(slot, bytes)) === expected) continue;
      throw new WeftlineError(
        'WL_CHECK',
        `The carrier left other bytes at rank ${group.rank} than rank ${peer} sent, of ${bytes}`,
        { details: { rank: group.rank, peer, bytes } },
      );
    }
    await group.barrier('carrier-checked');
  };
  return { run, bytes: puts.reduce((sum, { bytes }) => sum + bytes, 0), check };
}

/** Of whole words. */
function checksum({ buffer, byteOffset, length }: Uint8Array): number {
  let sum = 0;
  for (const word of new Int32Array(buffer, byteOffset, Math.floor(length / 4))) sum = (Math.imul(sum, 31) + word) | 0;
  return sum;
}
