// The expert-parallel bench of ranks on several hosts: calls beside the carrier alone, pairs in turn, where time goes.
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { World } from '../../../../world/index.ts';
import { loadAverage, machineDocument } from '../../machine.ts';
import type { EpBenchOptions } from '../ep-bench.ts';
import { requireAddressSpace } from '../ep-memory.ts';
import { checkEpWorkload } from '../ep-workload.ts';
import { sampleMachine } from '../sample-machine.ts';
import { makeHostCases } from './host-cases.ts';
import { type EpHostBenchReport, hostMethod, summarizeHostCases } from './host-results.ts';
import { timeOnHosts } from './time-on-hosts.ts';
import { type PairPeriod, timePairs } from './time-pairs.ts';

export interface EpHostBenchOptions extends EpBenchOptions {
  /** Of dispatch and combine in turn. */
  readonly pairs: number;
  /** Multiprocessors of each GPU. */
  readonly numSms?: number | undefined;
}

/**
 * Collective, over ranks on several hosts. Returns the result document on rank 0 and undefined elsewhere. Fails with
 * WL_INVALID_ARGUMENT, with WL_MEMORY or WL_SHARED_MEMORY when the windows do not fit, and with WL_CHECK when the carrier
 * brought other bytes than were sent.
 */
export async function runEpHostBench(
  world: World,
  device: CpuDevice | CudaDevice,
  options: EpHostBenchOptions,
  progress?: (done: number, total: number) => void,
): Promise<EpHostBenchReport | undefined> {
  const { workload, iterations, warmup } = options;
  const { hosts } = world.topology;
  checkEpWorkload(workload);
  if (device.kind === 'cpu') {
    const ranksOfHosts = hosts.map(({ length }) => length);
    requireAddressSpace(workload, options.layer, device.space.limit, ranksOfHosts);
  }
  await using made = await makeHostCases(world, device, { workload, withLayer: options.layer, numSms: options.numSms });
  const { group, cases, network } = made;
  const before = await sampleMachine(world);
  const loadBefore = loadAverage();
  const times = await timeOnHosts(group, cases, { warmup, iterations, progress });
  const pairs: PairPeriod[] = [];
  for (const pair of made.pairs) pairs.push(await timePairs(group, pair, options.pairs));
  const loadAfter = loadAverage();
  const after = await sampleMachine(world);
  // Nobody releases its windows while others still work.
  await world.barrier('bench-done');
  if (before === undefined || after === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.hosts/1',
    date: new Date().toISOString(),
    method: hostMethod,
    device: device.kind,
    ...(device.kind === 'cuda' && { numSms: made.buffer.config.numSms }),
    workload,
    hosts,
    carriers: network.carriers,
    channels: network.channels,
    warmup,
    iterations,
    machine: machineDocument(),
    settings: world.settings,
    loadAverage: { before: loadBefore, after: loadAfter },
    placement: { before, after },
    pairs,
    cases: summarizeHostCases(times, cases),
  };
}
