// The expert-parallel bench of ranks on several hosts: calls beside the carrier alone, pairs in turn, where time goes.
import { addTraceSink, type TracePoint, type TraceSink } from '../../../core/trace.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { World } from '../../../world/index.ts';
import {
  type BenchCase,
  type BenchGroup,
  measureInTurn,
  percentilesOf,
  type Progress,
  type Samples,
  summarize,
  summarizeRates,
  summarizeRatios,
} from '../harness.ts';
import { recordRun } from '../machine.ts';
import type { EpBenchOptions } from './ep-bench.ts';
import { type LayerCalls, makeBufferCalls, makeLayerCalls } from './ep-calls.ts';
import {
  requireAddressSpace,
  checkEpWorkload,
  combineRowBytes,
  dispatchRowBytes,
  type EpWorkload,
  countHostRows,
  countTokensOfHosts,
  type HostRows,
  shareTokens,
} from './ep-workload.ts';
import { networkChoiceRowBytes, networkRowBytes, networkSumBytes } from '../../../abi/network.ts';
import { alignUp } from '../../../abi/layout.ts';
import { startCall } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { pollUntil } from '../../../device/cuda/cuda-event.ts';
import type { Device } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { CudaHostNetwork } from '../../../ep/across-hosts/cuda-host-network.ts';
import { ROW_WINDOW } from '../../../ep/across-hosts/host-exchange.ts';
import type { EpBuffer } from '../../../ep/index.ts';
import { HostNetwork } from '../../../group/network/host-network.ts';
import type { HostRoutes } from '../../../group/network/host-routes.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  time: 'Microseconds of the slowest rank, each by its own clock, from a barrier of all ranks to the end of its call.',
  network:
    'GB/s (1e9 bytes) of all ranks together that cross from host to host; counted is the least there can be: each row once per (token, host).',
  sent: 'Bytes that puts really carried, with what travels beside the rows.',
  carrier:
    'The same ranks send the same number of bytes over the same channels, as one contiguous put per peer and channel.',
  ratioToCarrier: 'Bandwidth of the call over that of the carrier in the same direction and iteration.',
  networkPhase:
    'From the first row that is queued or summed until nothing of the call is under way to or from the slowest rank; the rows of this host move meanwhile.',
  phases:
    'Time of the thread that calls, mean of the ranks: network is the whole of that phase and contains the ones from queue to own sums.',
  pairs: 'Calls in turn without a barrier; the median and 99th percentile of the rank that has the largest.',
} as const;

interface EpHostBenchOptions extends EpBenchOptions {
  /** Pairs of dispatch and combine in turn. */
  readonly pairs: number;
  /** Multiprocessors of each GPU. */
  readonly numSms?: number | undefined;
}

export type EpHostBenchReport = NonNullable<Awaited<ReturnType<typeof runEpHostBench>>>;

/**
 * Collective, over ranks on several hosts. Returns the result document on rank 0 and undefined elsewhere. Fails with
 * WL_INVALID_ARGUMENT, with WL_MEMORY or WL_SHARED_MEMORY when the windows do not fit, and with WL_CHECK when the carrier
 * brought other bytes than were sent.
 */
export async function runEpHostBench(
  world: World,
  device: CpuDevice | CudaDevice,
  options: EpHostBenchOptions,
  progress?: Progress,
) {
  const { workload, iterations, warmup } = options;
  const { hosts } = world.topology;
  checkEpWorkload(workload);
  if (device.kind === 'cpu') {
    const ranksOfHosts = hosts.map(({ length }) => length);
    requireAddressSpace(workload, options.layer, device.space.limit, ranksOfHosts);
  }
  await using made = await makeCases(world, device, options);
  const { group, cases, network } = made;
  const head = {
    schema: 'weftline.bench.ep.hosts/1' as const,
    method,
    device: device.kind,
    ...(device.kind === 'cuda' && { numSms: made.buffer.config.numSms }),
    workload,
    /** Ranks of each host. */
    hosts,
    /** Backends that carry between hosts, and channels per peer. */
    carriers: network.carriers,
    channels: network.channels,
    warmup,
    iterations,
  };
  return await recordRun(world, head, async () => {
    const samples = await timeOnHosts(group, cases, { warmup, iterations, progress });
    const pairs = [];
    for (const pair of made.pairs) pairs.push(await timePairs(group, pair, options.pairs));
    return { pairs, cases: summarizeHostCases(samples, cases) };
  });
}

/** Phases in the order in which a call comes to them; those of the layer stand for the same parts of its calls. */
const phases = {
  'ep.dispatch.counts': 'counts',
  'layer.dispatch.counts': 'counts',
  'ep.dispatch.network': 'network',
  'ep.combine.network': 'network',
  'ep.dispatch.queue': 'queue',
  'ep.dispatch.local': 'local rows',
  'ep.dispatch.forward': 'forward',
  'ep.combine.host-sums': 'host sums',
  'ep.combine.own-sums': 'own sums',
  'ep.closing': 'closing',
  'layer.closing': 'closing',
} as const satisfies Partial<Record<TracePoint, string>>;

type Phase = (typeof phases)[keyof typeof phases];

export const phaseNames: readonly Phase[] = [...new Set(Object.values(phases))];

/** How long this thread is between the begins and the ends of the trace points of one call. */
export class PhaseTimes implements TraceSink {
  /** Microseconds since the last reset. */
  readonly microseconds = {} as Record<Phase, number>;
  readonly #begins: Partial<Record<Phase, number>> = {};

  constructor() {
    this.reset();
  }

  reset(): void {
    for (const phase of phaseNames) this.microseconds[phase] = 0;
  }

  begin(point: TracePoint): void {
    if (point in phases) this.#begins[phases[point as keyof typeof phases]] = performance.now();
  }

  end(point: TracePoint): void {
    if (!(point in phases)) return;
    const phase = phases[point as keyof typeof phases];
    this.microseconds[phase] += (performance.now() - this.#begins[phase]!) * 1000;
  }
}

interface HostCase extends BenchCase, HostTraffic {
  /** Bytes that this rank has put to other hosts so far, where the case puts them. */
  readonly sentBytes: () => number;
}

/** What one case moves in one iteration, over all ranks. */
interface HostTraffic {
  readonly name: string;
  readonly description: string;
  readonly rows: HostRows;
  readonly rowBytes: number;
  /** Name of the case that sends as many bytes bare; that one itself has none. */
  readonly carrier?: string;
}

type HostSamples = Samples<'microseconds' | 'sentBytes' | Phase>;

/** Collective. The clocks of hosts have nothing in common: every rank times itself. */
async function timeOnHosts(
  group: BenchGroup,
  cases: readonly HostCase[],
  rounds: Parameters<typeof measureInTurn>[2],
): Promise<HostSamples[]> {
  const sink = new PhaseTimes();
  const removeSink = addTraceSink(sink);
  try {
    return await measureInTurn(group, cases, rounds, async ({ prepare, run, sentBytes }) => {
      await prepare?.();
      await group.barrier('bench');
      sink.reset();
      const sentBefore = sentBytes();
      const begin = performance.now();
      await run();
      const microseconds = (performance.now() - begin) * 1000;
      return { microseconds, sentBytes: sentBytes() - sentBefore, ...sink.microseconds };
    });
  } finally {
    removeSink();
  }
}

export function summarizeHostCases(samples: readonly HostSamples[], cases: readonly HostTraffic[]) {
  /** What the carrier would take in each iteration for so many bytes. */
  const carried = (bare: number, bytes: number): number[] => {
    const moved = cases[bare]!.rows.network * cases[bare]!.rowBytes;
    return samples[bare]!.slowest('microseconds').map((time) => (moved === 0 ? 0 : (time * bytes) / moved));
  };
  return cases.map(({ name, description, rows, rowBytes, carrier: bareName }, index) => {
    const of = samples[index]!;
    const own = of.slowest('microseconds');
    const network = of.slowest('network');
    const networkBytes = rows.network * rowBytes;
    const bare = cases.findIndex((other) => other.name === bareName);
    const knownPhases: Partial<Record<Phase, number>> = {};
    for (const phase of phaseNames) {
      const { median } = summarize(of.across(phase, (all) => total(all) / all.length));
      if (median > 0) knownPhases[phase] = median;
    }
    return {
      name,
      description,
      rows,
      rowBytes,
      /** The least that can cross. */
      networkBytes,
      /** Bytes of rows that move from rank to rank within a host. */
      hostBytes: (rows.ownHost + rows.forwarded) * rowBytes,
      sentBytes: summarize(of.across('sentBytes', total)).median,
      microseconds: summarize(own),
      networkGBps: summarizeRates(networkBytes, own),
      ...(bare !== -1 && { ratioToCarrier: summarizeRatios(carried(bare, networkBytes), own) }),
      // Kernels do not tell.
      ...(bare !== -1 &&
        network.every((time) => time > 0) && {
          networkPhase: {
            microseconds: summarize(network),
            networkGBps: summarizeRates(networkBytes, network),
            ratioToCarrier: summarizeRatios(carried(bare, networkBytes), network),
          },
        }),
      /** Medians, those that the case has. */
      phases: knownPhases,
    };
  });
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

/** The headline: dispatch and combine in turn, as the layers of a model call them, without a barrier between. */
interface CallPair {
  readonly name: string;
  readonly dispatch: () => Promise<void>;
  readonly combine: () => Promise<void>;
  readonly tidy: () => void;
}

const WARMUP_PAIRS = 2;

/** Collective; every rank gets the same: microseconds from the end of one pair to that of the next one. */
async function timePairs(group: BenchGroup, { name, dispatch, combine, tidy }: CallPair, pairs: number) {
  const periods: number[] = [];
  await group.barrier('pairs');
  let before = performance.now();
  for (let pair = -WARMUP_PAIRS; pair < pairs; pair++) {
    await dispatch();
    await combine();
    tidy();
    const now = performance.now();
    if (pair >= 0) periods.push((now - before) * 1000);
    before = now;
  }
  const all = await group.allGather('bench-pairs-periods', percentilesOf(periods));
  return { name, pairs, p50: Math.max(...all.map(({ p50 }) => p50)), p99: Math.max(...all.map(({ p99 }) => p99)) };
}

/** Collective. Makes everything, and checks that the carrier brings what it stands for. */
async function makeCases(
  world: World,
  device: CpuDevice | CudaDevice,
  { workload, layer: withLayer, numSms }: EpHostBenchOptions,
) {
  const calls = await makeBufferCalls(world, device, workload, numSms === undefined ? {} : { numSms });
  const { group, buffer, routing, bf16 } = calls;
  const network = benchNetwork(buffer, device, bf16);
  const { sentBytes, counted } = network;
  const { hosts } = world.topology;
  const { inRanks, counts } = await shareTokens(world, routing.topkIdx, workload);
  const tokens = await world.allGather('bench-host-tokens', countTokensOfHosts(inRanks, hosts));
  const { rank } = world;
  const there = dispatchCarrier(network.there, { rank, tokens, rowBytes: dispatchRowBytes(workload) });
  const back = combineCarrier(network.back, { rank, tokens, rowBytes: combineRowBytes(workload) });
  await there.check(group);
  await back.check(group);
  const sent = sentPerCall({ workload, tokens, world, routes: network.there.routes });
  const rows = countHostRows(hosts, counts, tokens);
  const outward = { rows, rowBytes: dispatchRowBytes(workload), sentBytes };
  const inward = { rows, rowBytes: combineRowBytes(workload), sentBytes };
  const cases: HostCase[] = [
    {
      ...outward,
      name: 'carrier',
      description: 'the bytes of dispatch alone, one put per peer and channel',
      run: counted(there.run, there.bytes),
    },
    {
      ...inward,
      name: 'carrier back',
      description: 'the bytes of combine alone',
      run: counted(back.run, back.bytes),
    },
    { ...outward, ...calls.dispatch, carrier: 'carrier', run: counted(calls.dispatch.run, sent.dispatch) },
    { ...outward, ...calls.dispatchCached, carrier: 'carrier', run: counted(calls.dispatchCached.run, sent.cached) },
    { ...inward, ...calls.combine, carrier: 'carrier back', run: counted(calls.combine.run, sent.combine) },
  ];
  const { tidy } = calls;
  const pairs: CallPair[] = [{ name: 'EpBuffer', dispatch: calls.dispatch.run, combine: calls.combine.run, tidy }];
  const options = numSms === undefined ? {} : { numSms };
  const layer = withLayer ? await makeLayerCalls({ ...calls, world, device, workload }, options) : undefined;
  if (layer !== undefined) {
    const dispatch = untilDone(device, layer.dispatch.run);
    const combine = untilDone(device, layer.combine.run);
    pairs.push({ name: 'EPAll2AllLayer', dispatch, combine, tidy: layer.tidy });
    const moved = {
      rows: countHostRows(hosts, layer.pairsOfRanks, tokens),
      rowBytes: combineRowBytes(workload),
      sentBytes: sentByLayer(layer, sentBytes),
    };
    cases.push(
      { ...moved, ...layer.dispatch, carrier: 'carrier', run: counted(dispatch, sent.layerDispatch) },
      { ...moved, ...layer.combine, carrier: 'carrier back', run: counted(combine, sent.layerCombine) },
    );
  }
  return {
    group,
    cases,
    pairs,
    network,
    buffer,
    async [Symbol.asyncDispose](): Promise<void> {
      await layer?.[Symbol.asyncDispose]();
      await calls[Symbol.asyncDispose]();
    },
  };
}

/** Calls of a GPU return before their results are there. */
function untilDone(device: CpuDevice | CudaDevice, run: () => Promise<void>): () => Promise<void> {
  if (device.kind === 'cpu') return run;
  return async () => {
    await run();
    await device.stream.idle();
  };
}

/** The network of a layer of CPU ranks counts for itself. */
function sentByLayer({ layer }: LayerCalls, counted: () => number): () => number {
  const { memory } = layer.context;
  return memory.kind === 'cpu' ? () => memory.network?.exchange.network.sentBytes ?? 0 : counted;
}

// The carrier alone: the rows' bytes go between the same ranks over the same channels as one contiguous put per peer and channel.
// No call can be faster on the network. CPU ranks put from a tensor into windows, GPUs between pinned windows.

interface BenchNetwork {
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
    const road = cpuRoad(device, { buffer, network }, source);
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
function sentPerCall(of: {
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

/** Carries rows from a tensor, which has as many as any rank has tokens, straight into the receivers' regions of rows. */
function cpuRoad(
  device: CpuDevice,
  { buffer, network }: { readonly buffer: EpBuffer; readonly network: HostNetwork },
  source: Tensor<'bf16'>,
): CarrierRoad {
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
    source: async ({ bytes }) => device.hostView('u8', source.address, bytes),
    arrival: async (slot, bytes) => device.hostView('u8', regionAt + slot * slotBytes, bytes),
    wipe: async (slot, bytes) => void device.hostView('u8', regionAt + slot * slotBytes, bytes).fill(0),
  };
}

/** Between the slots of the windows that the same rows go through in a call. */
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
      const [source, target] = [network.slotOffset(from, put.at), network.slotOffset(to, put.slot)];
      if (proxy.put(put.peer, channel, { from: source + first, to: target + first, bytes })) return;
      throw new WeftlineError('WL_BUSY', 'The host has more puts under way than its queue holds');
    },
    delivered: async () => {
      proxy.wake();
      await pollUntil(() => proxy.isDelivered, { timeoutMs, what: 'What the carrier sent in its turn' });
    },
    source: (put) => network.readWindow(network.slotOffset(from, put.at), put.bytes),
    arrival: (slot, bytes) => network.readWindow(network.slotOffset(to, slot), bytes),
    wipe: (slot, bytes) => network.wipeWindow(network.slotOffset(to, slot), bytes),
  };
}

/** Parts of a put that several channels share begin at such addresses. */
const PART_ALIGNMENT = 4096;

/** What goes to a peer in one direction, and comes from it in the other. */
interface CarrierPut {
  readonly peer: number;
  /** The slot in this rank's memory: its own for each peer. */
  readonly at: number;
  /** The slot in the peer's memory. */
  readonly slot: number;
  readonly bytes: number;
}

/** A part of a put, which one channel carries: `first` and `bytes` of it. */
interface CarrierPart {
  readonly channel: number;
  readonly first: number;
  readonly bytes: number;
}

/** The places of the bytes, and what carries them. */
interface CarrierRoad {
  readonly routes: HostRoutes;
  readonly channels: number;
  /** Called before the first put of a turn. */
  readonly begin?: () => Promise<void>;
  readonly put: (put: CarrierPut, part: CarrierPart) => void;
  /** Resolves when all that was put is at the peers. */
  readonly delivered: () => Promise<void>;
  /** Bytes that a put brings. */
  readonly source: (put: CarrierPut) => Promise<Uint8Array>;
  /** What lies at the place of this rank where they come to lie. */
  readonly arrival: (slot: number, bytes: number) => Promise<Uint8Array>;
  /** Fills that place with zeros. */
  readonly wipe: (slot: number, bytes: number) => Promise<void>;
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

/** What goes to the forwarders of other hosts, as a dispatch sends it, and from them back to the sources, as a combine does. */
function endsOf({ routes }: CarrierRoad, { rank, rowBytes, tokens }: CarrierRows) {
  const { ways, served, host } = routes;
  return {
    forwarders: ways.map(({ forwarder: peer, slot, host: to }, at) => {
      return { peer, at, slot, bytes: tokens[rank]![to]! * rowBytes };
    }),
    sources: served.map(({ rank: peer, way: slot }, at) => {
      return { peer, at, slot, bytes: tokens[peer]![host]! * rowBytes };
    }),
  };
}

export function dispatchCarrier(road: CarrierRoad, rows: CarrierRows): Carrier {
  const { forwarders, sources } = endsOf(road, rows);
  return carrier(road, forwarders, sources);
}

export function combineCarrier(road: CarrierRoad, rows: CarrierRows): Carrier {
  const { forwarders, sources } = endsOf(road, rows);
  return carrier(road, sources, forwarders);
}

function carrier(road: CarrierRoad, puts: readonly CarrierPut[], arrivals: readonly CarrierPut[]): Carrier {
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
    for (const { at, bytes } of arrivals) await road.wipe(at, bytes);
    await group.barrier('carrier-wiped');
    await run();
    await group.barrier('carrier-sent');
    const sums: { readonly peer: number; readonly sum: number }[] = [];
    for (const put of puts) sums.push({ peer: put.peer, sum: checksum(await road.source(put)) });
    const sent = await group.allGather('carrier-sums', sums);
    for (const { peer, at, bytes } of arrivals) {
      const expected = sent[peer]!.find((put) => put.peer === group.rank)?.sum;
      if (checksum(await road.arrival(at, bytes)) === expected) continue;
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

/** A checksum of whole words. */
function checksum({ buffer, byteOffset, length }: Uint8Array): number {
  let sum = 0;
  for (const word of new Int32Array(buffer, byteOffset, Math.floor(length / 4))) sum = (Math.imul(sum, 31) + word) | 0;
  return sum;
}
