// The carrier alone: the rows' bytes go between the same ranks over the same channels as one contiguous put per peer and
// channel. No call can be faster on the network. CPU ranks put from a tensor into windows, GPUs between pinned windows.
import { networkChoiceRowBytes, networkRowBytes, networkSumBytes } from '../../../abi/network.ts';
import { alignUp } from '../../../abi/layout.ts';
import { startCall } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { pollUntil } from '../../../device/cuda/cuda-event.ts';
import type { Device } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { CudaHostNetwork } from '../../../ep/across-hosts/cuda-host-network.ts';
import { ROW_WINDOW } from '../../../ep/across-hosts/host-exchange.ts';
import type { EpBuffer } from '../../../ep/index.ts';
import { HostNetwork } from '../../../group/network/host-network.ts';
import type { HostRoutes } from '../../../group/network/host-routes.ts';
import type { World } from '../../../world/index.ts';
import type { BenchGroup } from '../harness.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from './ep-workload.ts';

export interface BenchNetwork {
  /** Backends that carry, and channels per peer. */
  readonly carriers: readonly string[];
  readonly channels: number;
  readonly there: CarrierRoad;
  readonly back: CarrierRoad;
  /** Bytes that this rank's puts have carried so far. */
  readonly sentBytes: () => number;
  /** A run that sends so many bytes, for a network that does not count them itself. */
  readonly counted: (run: () => Promise<void>, bytes: number) => () => Promise<void>;
}

/** `source`: of the bytes that the carrier of CPU ranks sends. */
export function benchNetwork(buffer: EpBuffer, device: Device, source: Tensor<'bf16'>): BenchNetwork {
  const network = buffer.hostNetwork;
  if (network instanceof HostNetwork && device instanceof CpuDevice) {
    const road = cpuRoad({ device, buffer, network, source });
    const carriers = [...new Set(network.carriers.values())];
    const sentBytes = (): number => network.sentBytes;
    return { carriers, channels: network.channels, there: road, back: road, sentBytes, counted: (run) => run };
  }
  if (network === undefined || network instanceof HostNetwork) {
    throw new WeftlineError('WL_INTERNAL', 'The buffer of ranks on several hosts has no network');
  }
  let sent = 0;
  const { settings } = buffer.group;
  return {
    carriers: [...new Set(network.proxy.carriers.values())],
    channels: network.proxy.channels,
    there: pinnedRoad(network, 'there', settings),
    back: pinnedRoad(network, 'back', settings),
    sentBytes: () => sent,
    counted: (run, bytes) => async () => {
      await run();
      sent += bytes;
    },
  };
}

type SentPerCall = Readonly<Record<'dispatch' | 'cached' | 'combine' | 'layerDispatch' | 'layerCombine', number>>;

/** Bytes that a rank with a GPU puts to other hosts in one call, with all that travels beside its rows. */
export function sentPerCall(of: {
  readonly workload: EpWorkload;
  /** [source][host]: rows that cross. */
  readonly tokens: readonly (readonly number[])[];
  readonly world: Pick<World, 'rank' | 'topology'>;
  readonly routes: HostRoutes;
}): SentPerCall {
  const { hidden, topk, dtype } = of.workload;
  const { rank, topology } = of.world;
  const rowBytes = hidden * (dtype === 'bf16' ? 2 : 1);
  const row = { rowBytes, scaleBytes: dispatchRowBytes(of.workload) - rowBytes };
  const sum = networkSumBytes(combineRowBytes(of.workload), 0);
  const sent = { dispatch: 0, cached: 0, combine: 0, layerDispatch: 0, layerCombine: 0 };
  for (const { host } of of.routes.ways) {
    const rows = of.tokens[rank]![host]!;
    const ranks = topology.hosts[host]!.length;
    const choices = { topkBytes: topk * 4, weightBytes: topk * 4, places: ranks };
    sent.dispatch += rows * networkRowBytes({ ...row, ...choices });
    sent.cached += rows * networkRowBytes({ ...row, topkBytes: 0, weightBytes: 0, places: 0 });
    sent.layerDispatch += rows * networkChoiceRowBytes({ rowBytes: hidden * 2, topk, ranks, weightBytes: 4 });
  }
  for (const source of of.routes.served) sent.combine += of.tokens[source.rank]![topology.hostIndex]! * sum;
  return { ...sent, layerCombine: sent.combine };
}

interface CpuRoadOptions {
  readonly device: CpuDevice;
  readonly buffer: EpBuffer;
  readonly network: HostNetwork;
  /** Where the bytes come from; as many rows as any rank has tokens. */
  readonly source: Tensor<'bf16'>;
}

/** From a tensor, straight into the receivers' regions of rows. */
function cpuRoad({ device, buffer, network, source }: CpuRoadOptions): CarrierRoad {
  const { offset } = buffer.size.regions.rows;
  const slotBytes = source.bytes;
  const { group } = network;
  const regionAt = buffer.peerRowAddress(group.rank, 0);
  return {
    routes: network.routes,
    channels: network.channels,
    // Nothing is under way between two cases.
    begin: async () => {
      if (!network.hasMemory(device.memory.buffer.byteLength)) await network.useMemory();
    },
    put: ({ peer, slot }, { channel, first, bytes }) => {
      const to = network.offsetAt(peer, ROW_WINDOW, offset + slot * slotBytes + first);
      network.link(peer).queues[channel]!.put(source.address + first, ROW_WINDOW, to, bytes);
    },
    delivered: () => {
      const waiting = {
        isDone: () => network.isDelivered,
        awaits: (peer: number) => !network.link(peer).isDelivered,
        describe: () => `What rank ${group.worldRank} sent in the carrier's turn was not delivered`,
      };
      return network.until(waiting, startCall({}, group.settings.timeoutMs));
    },
    source: ({ bytes }) => device.hostView('u8', source.address, bytes),
    arrival: (slot, bytes) => device.hostView('u8', regionAt + slot * slotBytes, bytes),
  };
}

/** Between the slots of the pinned windows that the same rows go through in a call. */
function pinnedRoad(
  network: CudaHostNetwork,
  direction: 'there' | 'back',
  { timeoutMs }: { readonly timeoutMs: number },
): CarrierRoad {
  const [from, to] = direction === 'there' ? (['out', 'in'] as const) : (['in', 'out'] as const);
  const { proxy } = network;
  return {
    routes: network.routes,
    channels: proxy.channels,
    put: (put, { channel, first, bytes }) => {
      const [source, target] = [network.slotOffset(from, put.from), network.slotOffset(to, put.slot)];
      if (proxy.put(put.peer, channel, { from: source + first, to: target + first, bytes })) return;
      throw new WeftlineError('WL_BUSY', 'The host has more puts under way than its queue holds');
    },
    delivered: async () => {
      proxy.wake();
      await pollUntil(() => proxy.isDelivered, { timeoutMs, what: 'What the carrier sent in its turn' });
    },
    source: (put) => network.hostView(network.slotOffset(from, put.from), put.bytes),
    arrival: (slot, bytes) => network.hostView(network.slotOffset(to, slot), bytes),
  };
}

/** Parts of a put that several channels share begin at such addresses. */
const PART_ALIGNMENT = 4096;

/** What one put brings from where to where. */
interface CarrierPut {
  readonly peer: number;
  /** Of the sender among its puts: on its way to a host, or back to a source. */
  readonly from: number;
  /** In the receiver's memory: its own for each sender. */
  readonly slot: number;
  readonly bytes: number;
}

/** A part of a put, which one channel carries: `first` and `bytes` of it. */
interface CarrierPart {
  readonly channel: number;
  readonly first: number;
  readonly bytes: number;
}

/** Where the bytes lie and what carries them. */
interface CarrierRoad {
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

interface CarrierRows {
  readonly rank: number;
  readonly rowBytes: number;
  /** [source][host]: rows that cross. */
  readonly tokens: readonly (readonly number[])[];
}

interface Carrier {
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
