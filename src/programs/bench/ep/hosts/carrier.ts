// The carrier alone: the rows' bytes go between the same ranks over the same channels as one contiguous put per peer and
// channel. No call can be faster on the network.
import { startCall } from '../../../../core/deadline.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { HostNetwork } from '../../../../collective/network/host-network.ts';
import { ROW_WINDOW } from '../../../../ep/across-hosts/host-exchange.ts';
import type { EpBuffer } from '../../../../ep/index.ts';
import { alignUp } from '../../../../abi/layout.ts';
import type { BenchGroup } from '../../interleaved.ts';

/** Parts of a put that several channels share begin at such addresses. */
const PART_ALIGNMENT = 4096;

export interface CarrierOptions {
  readonly device: CpuDevice;
  readonly buffer: EpBuffer;
  readonly network: HostNetwork;
  /** Where the bytes come from; as many rows as any rank has tokens. */
  readonly source: Tensor<'bf16'>;
  readonly rowBytes: number;
  /** [source][host]: rows that cross. */
  readonly tokens: readonly (readonly number[])[];
}

/** What one put brings from where to where. */
interface Put {
  readonly peer: number;
  /** In the receiver's region of rows: its own for each sender. */
  readonly slot: number;
  readonly bytes: number;
}

export interface Carrier {
  /** Done when everything that this rank has sent is delivered. */
  readonly run: () => Promise<void>;
  /** Collective. Fails with WL_CHECK when other bytes are at a receiver than were sent. */
  readonly check: (group: BenchGroup) => Promise<void>;
}

/** To the forwarders of other hosts, as a dispatch sends. */
export function dispatchCarrier(options: CarrierOptions): Carrier {
  const { network, rowBytes, tokens } = options;
  const { ways, served, host } = network.routes;
  const { rank } = network.group;
  return carrier(options, {
    puts: ways.map((way) => ({
      peer: way.forwarder,
      slot: way.slot,
      bytes: tokens[rank]![way.host]! * rowBytes,
    })),
    arrivals: served.map((source, slot) => ({
      peer: source.rank,
      slot,
      bytes: tokens[source.rank]![host]! * rowBytes,
    })),
  });
}

/** From the forwarders back to the sources, as a combine sends. */
export function combineCarrier(options: CarrierOptions): Carrier {
  const { network, rowBytes, tokens } = options;
  const { ways, served, host } = network.routes;
  const { rank } = network.group;
  return carrier(options, {
    puts: served.map((source) => ({
      peer: source.rank,
      slot: source.way,
      bytes: tokens[source.rank]![host]! * rowBytes,
    })),
    arrivals: ways.map((way, slot) => ({ peer: way.forwarder, slot, bytes: tokens[rank]![way.host]! * rowBytes })),
  });
}

function carrier(
  { device, buffer, network, source }: CarrierOptions,
  { puts, arrivals }: { readonly puts: readonly Put[]; readonly arrivals: readonly Put[] },
): Carrier {
  const { offset } = buffer.size.regions.rows;
  const slotBytes = source.bytes;
  const { timeoutMs } = network.group.settings;
  const run = async (): Promise<void> => {
    const wait = startCall({}, timeoutMs);
    // Nothing is under way between two cases.
    if (!network.hasMemory(device.memory.buffer.byteLength)) await network.useMemory();
    for (const put of puts) queuePut(network, put, { from: source.address, to: offset + put.slot * slotBytes });
    const waiting = {
      isDone: () => network.isDelivered,
      awaits: (peer: number) => !network.link(peer).isDelivered,
      describe: () => `What rank ${network.group.worldRank} sent in the carrier's turn was not delivered`,
    };
    await network.until(waiting, wait);
  };
  const checksumOf = (address: number, bytes: number): number =>
    checksum(device.hostView('i32', address, Math.floor(bytes / 4)));
  const check = async (group: BenchGroup): Promise<void> => {
    const regionAt = buffer.peerRowAddress(group.rank, 0);
    for (const { slot, bytes } of arrivals) device.hostView('u8', regionAt + slot * slotBytes, bytes).fill(0);
    await group.barrier('carrier-wiped');
    await run();
    await group.barrier('carrier-sent');
    const sums = puts.map(({ peer, bytes }) => ({ peer, sum: checksumOf(source.address, bytes) }));
    const sent = await group.allGather('carrier-sums', sums);
    for (const { peer, slot, bytes } of arrivals) {
      const expected = sent[peer]!.find((put) => put.peer === group.rank)?.sum;
      if (checksumOf(regionAt + slot * slotBytes, bytes) === expected) continue;
      throw new WeftlineError(
        'WL_CHECK',
        `The carrier left other bytes at rank ${group.rank} than rank ${peer} sent, of ${bytes}`,
        { details: { rank: group.rank, peer, bytes } },
      );
    }
    await group.barrier('carrier-checked');
  };
  return { run, check };
}

/** In as many parts as there are channels. */
function queuePut(
  network: HostNetwork,
  { peer, bytes }: Put,
  { from, to }: { readonly from: number; readonly to: number },
): void {
  const { queues } = network.link(peer);
  const part = alignUp(Math.ceil(bytes / queues.length), PART_ALIGNMENT);
  for (const [index, queue] of queues.entries()) {
    const first = Math.min(bytes, index * part);
    const length = Math.min(bytes, first + part) - first;
    queue.put(from + first, ROW_WINDOW, network.offsetAt(peer, ROW_WINDOW, to + first), length);
  }
}

function checksum(words: Int32Array): number {
  let sum = 0;
  for (const word of words) sum = (Math.imul(sum, 31) + word) | 0;
  return sum;
}
