// The cases of the expert-parallel bench across hosts: the carrier in both directions, EpBuffer and EPAll2AllLayer.
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { HostNetwork } from '../../../../collective/network/host-network.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { World } from '../../../../world/index.ts';
import type { BenchGroup } from '../../interleaved.ts';
import { type BufferCalls, makeBufferCalls } from '../buffer-calls.ts';
import { countPairs, countTokens, tokensInRanks } from '../ep-traffic.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from '../ep-workload.ts';
import { type LayerCalls, makeLayerCalls } from '../layer-calls.ts';
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
  readonly network: HostNetwork;
}

const CARRIER = 'carrier';
const CARRIER_BACK = 'carrier back';

/** Collective, over ranks on several hosts. Makes everything, and checks that the carrier brings what it stands for. */
export async function makeHostCases(
  world: World,
  device: CpuDevice,
  workload: EpWorkload,
  withLayer: boolean,
): Promise<EpHostCases> {
  const calls = await makeBufferCalls(world, device, workload);
  const { group, buffer, routing, bf16 } = calls;
  const network = buffer.hostNetwork;
  if (network === undefined)
    throw new WeftlineError('WL_INTERNAL', 'The buffer of ranks on several hosts has no network');
  const { hosts } = world.topology;
  const { topk, experts, ranks } = workload;
  const inRanks = tokensInRanks(routing.topkIdx, topk, experts / ranks, ranks);
  const counts = await world.allGather('bench-counts', countTokens(inRanks, ranks));
  const tokens = await world.allGather('bench-host-tokens', countTokensOfHosts(inRanks, hosts));
  const rows = countHostRows(hosts, counts, tokens);
  const carriers = { device, buffer, network, source: bf16, tokens };
  const there = dispatchCarrier({ ...carriers, rowBytes: dispatchRowBytes(workload) });
  const back = combineCarrier({ ...carriers, rowBytes: combineRowBytes(workload) });
  await there.check(group);
  await back.check(group);
  const sentBytes = (): number => network.sentBytes;
  const cases: EpHostCase[] = [
    {
      name: CARRIER,
      description: 'the bytes of dispatch alone, one put per peer and channel',
      rows,
      rowBytes: dispatchRowBytes(workload),
      run: there.run,
      sentBytes,
    },
    {
      name: CARRIER_BACK,
      description: 'the bytes of combine alone',
      rows,
      rowBytes: combineRowBytes(workload),
      run: back.run,
      sentBytes,
    },
    ...bufferCases(calls, workload, rows).map((made) => ({ ...made, sentBytes })),
  ];
  const pairs: CallPair[] = [{ name: 'EpBuffer', dispatch: calls.dispatch, combine: calls.combine, tidy: calls.tidy }];
  let layer: LayerCalls | undefined;
  if (withLayer) {
    layer = await makeLayerCalls({ ...calls, world, device, workload, input: bf16 });
    const choices = countPairs(routing.topkIdx, experts / ranks, ranks);
    const layerRows = countHostRows(hosts, await world.allGather('bench-choices', choices), tokens);
    cases.push(...layerCases(layer, workload, layerRows));
    pairs.push({ name: 'EPAll2AllLayer', dispatch: layer.dispatch, combine: layer.combine, tidy: layer.tidy });
  }
  return {
    group,
    cases,
    pairs,
    network,
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

function layerCases(calls: LayerCalls, workload: EpWorkload, rows: HostRows): EpHostCase[] {
  const { memory } = calls.layer.context;
  const moved = {
    rows,
    rowBytes: combineRowBytes(workload),
    sentBytes: () => (memory.kind === 'cpu' ? (memory.network?.exchange.network.sentBytes ?? 0) : 0),
  };
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
