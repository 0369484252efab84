// The cases of the expert-parallel bench across hosts: the carrier in both directions, EpBuffer and EPAll2AllLayer.
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { EpBuffer } from '../../../../ep/index.ts';
import type { World } from '../../../../world/index.ts';
import type { BenchGroup } from '../../interleaved.ts';
import { type BufferCalls, makeBufferCalls } from '../buffer-calls.ts';
import { countPairs, countTokens, tokensInRanks } from '../ep-traffic.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from '../ep-workload.ts';
import { type LayerCalls, makeLayerCalls } from '../layer-calls.ts';
import { type BenchNetwork, benchNetwork, sentPerCall } from './bench-network.ts';
import { combineCarrier, dispatchCarrier } from './carrier.ts';
import type { HostCaseTraffic } from './host-results.ts';
import { countHostRows, countTokensOfHosts, type HostRows } from './host-traffic.ts';
import type { HostCase } from './time-on-hosts.ts';
import type { CallPair } from './time-pairs.ts';

export interface EpHostCase extends HostCase, HostCaseTraffic {}

export interface EpHostCases extends AsyncDisposable {
  readonly group: BenchGroup;
  readonly cases: readonly EpHostCase[];
  readonly pairs: readonly CallPair[];
  readonly network: BenchNetwork;
  readonly buffer: EpBuffer;
}

export interface HostCaseOptions {
  readonly workload: EpWorkload;
  readonly withLayer: boolean;
  /** Of a GPU. */
  readonly numSms?: number | undefined;
}

const CARRIER = 'carrier';
const CARRIER_BACK = 'carrier back';

/** Collective, over ranks on several hosts. Makes everything, and checks that the carrier brings what it stands for. */
export async function makeHostCases(
  world: World,
  device: CpuDevice | CudaDevice,
  { workload, withLayer, numSms }: HostCaseOptions,
): Promise<EpHostCases> {
  const calls = await makeBufferCalls(world, device, workload, numSms === undefined ? {} : { numSms });
  const { group, buffer, routing, bf16 } = calls;
  const network = benchNetwork(buffer, device, bf16);
  const { hosts } = world.topology;
  const { topk, experts, ranks } = workload;
  const inRanks = tokensInRanks(routing.topkIdx, topk, experts / ranks, ranks);
  const counts = await world.allGather('bench-counts', countTokens(inRanks, ranks));
  const tokens = await world.allGather('bench-host-tokens', countTokensOfHosts(inRanks, hosts));
  const rows = countHostRows(hosts, counts, tokens);
  const { rank } = world;
  const there = dispatchCarrier(network.there, { rank, tokens, rowBytes: dispatchRowBytes(workload) });
  const back = combineCarrier(network.back, { rank, tokens, rowBytes: combineRowBytes(workload) });
  await there.check(group);
  await back.check(group);
  const { sentBytes, counted } = network;
  const sent = sentPerCall({ workload, tokens, world, routes: network.there.routes });
  const timed = {
    dispatch: counted(calls.dispatch, sent.dispatch),
    dispatchCached: counted(calls.dispatchCached, sent.cached),
    combine: counted(calls.combine, sent.combine),
  };
  const cases: EpHostCase[] = [
    {
      name: CARRIER,
      description: 'the bytes of dispatch alone, one put per peer and channel',
      rows,
      rowBytes: dispatchRowBytes(workload),
      run: counted(there.run, there.bytes),
      sentBytes,
    },
    {
      name: CARRIER_BACK,
      description: 'the bytes of combine alone',
      rows,
      rowBytes: combineRowBytes(workload),
      run: counted(back.run, back.bytes),
      sentBytes,
    },
    ...bufferCases({ ...calls, ...timed }, workload, rows).map((made) => ({ ...made, sentBytes })),
  ];
  const pairs: CallPair[] = [{ name: 'EpBuffer', dispatch: calls.dispatch, combine: calls.combine, tidy: calls.tidy }];
  let layer: LayerCalls | undefined;
  if (withLayer) {
    layer = await makeLayerCalls({ ...calls, world, device, workload, input: bf16 }, numSms ? { numSm: numSms } : {});
    const dispatch = untilDone(device, layer.dispatch);
    const combine = untilDone(device, layer.combine);
    const layerRuns = {
      ...layer,
      dispatch: counted(dispatch, sent.layerDispatch),
      combine: counted(combine, sent.layerCombine),
    };
    const choices = countPairs(routing.topkIdx, experts / ranks, ranks);
    const layerRows = countHostRows(hosts, await world.allGather('bench-choices', choices), tokens);
    cases.push(...layerCases(layerRuns, workload, { rows: layerRows, sentBytes: sentByLayer(layer, sentBytes) }));
    pairs.push({ name: 'EPAll2AllLayer', dispatch, combine, tidy: layer.tidy });
  }
  return {
    group,
    cases,
    pairs,
    network,
    buffer,
    async [Symbol.asyncDispose]() {
      await layer?.[Symbol.asyncDispose]();
      await calls[Symbol.asyncDispose]();
    },
  };
}

function bufferCases(calls: BufferCalls, workload: EpWorkload, rows: HostRows): Omit<EpHostCase, 'sentBytes'>[] {
  const sent = { rows, rowBytes: dispatchRowBytes(workload), carrier: CARRIER };
  return [
    {
      name: 'dispatch',
      description: 'EpBuffer.dispatch with choices and weights: counts, exchange, rows',
      ...sent,
      prepare: calls.tidy,
      run: calls.dispatch,
    },
    {
      name: 'dispatch cached',
      description: 'EpBuffer.dispatch with the handle of an earlier one: rows only',
      ...sent,
      run: calls.dispatchCached,
    },
    {
      name: 'combine',
      description: 'EpBuffer.combine of rows that were written into the window (combineInput)',
      rows,
      rowBytes: combineRowBytes(workload),
      carrier: CARRIER_BACK,
      prepare: calls.writeExpertOutput,
      run: calls.combine,
    },
  ];
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

function layerCases(
  calls: LayerCalls,
  workload: EpWorkload,
  { rows, sentBytes }: Pick<EpHostCase, 'rows' | 'sentBytes'>,
): EpHostCase[] {
  const moved = { rows, rowBytes: combineRowBytes(workload), sentBytes };
  return [
    {
      name: 'layer dispatch',
      description: 'EPAll2AllLayer.dispatch with weights: one row per (token, expert), grouped by expert',
      ...moved,
      carrier: CARRIER,
      prepare: calls.tidy,
      run: calls.dispatch,
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that were written into the window (combineInput)',
      ...moved,
      carrier: CARRIER_BACK,
      run: calls.combine,
    },
  ];
}
