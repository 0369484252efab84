// Makes the engine of an EpBuffer on GPUs: the ranks agree, compile, then make windows and, on several hosts, links together.
import { EP_SYNC_BYTES, epScratch } from '../../../abi/ep.ts';
import { agreeOn } from '../../../group/agree.ts';
import { CudaCalls, requireCudaLimits } from '../../../group/cuda-calls.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { TensorSet } from '../../../device/device.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { bufferSize, type EpBufferConfig, type SizesByDevice } from '../buffer-size.ts';
import type { EpEngine } from '../engine.ts';
import type { EpScope } from '../call-arguments.ts';
import { CudaHostNetwork, requireNetworkLimits } from '../../across-hosts/cuda-host-network.ts';
import { type CallHooks, CudaEpEngine, type EngineParts } from './cuda-engine.ts';
import { CudaHostPlan, type CudaLaunches, loadLaunches } from './cuda-launches.ts';

/** Collective: agrees on the configuration, compiles the kernels, makes the window. */
export async function createCudaEngine(
  group: RankGroup,
  device: CudaDevice,
  config: Required<EpBufferConfig>,
  wait: CallWait,
): Promise<{ readonly scope: EpScope; readonly engine: EpEngine }> {
  const { hosts } = group.topology;
  const prepare = (): SizesByDevice['cuda'] => {
    requireCudaLimits('EpBuffer', group, config.numExperts);
    requireNetworkLimits('EpBuffer', { hosts });
    const ranksOfHosts = hosts.map(({ length }) => length);
    return bufferSize(config, group.size, ranksOfHosts, 'cuda');
  };
  const agreement = { what: 'EpBuffer', config: { ...config, device: device.kind }, prepare };
  const size = await agreeOn(group, agreement, wait);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  // Compiling may fail or take long on one rank alone, so the ranks meet again after it.
  const launches = await loadLaunches(scope).catch((error: unknown) => error as Error);
  const parts = await agreeOn(
    group,
    { what: 'EpBuffer kernels', config: {}, prepare: () => prepareParts(scope, launches), release: releaseParts },
    wait,
  );
  const made: { window?: CudaWindow; calls?: CudaCalls } = {};
  const hooks: CallHooks = {};
  try {
    const bytes = EP_SYNC_BYTES + size.bytes;
    const window = await CudaWindow.create({ ...wait, group, device, name: 'ep', bytes });
    made.window = window;
    const calls = new CudaCalls(group, device, {
      findFailure: () => hooks.findFailure?.(),
      onGiveUp: () => hooks.network?.giveUp(),
    });
    made.calls = calls;
    const { network: networkSize } = size;
    if (networkSize !== undefined) {
      const of = { group, device, name: 'ep', calls, maxTokensPerRank: config.maxTokensPerRank };
      const isWide = config.combinePrecision === 'f32';
      hooks.network = await CudaHostNetwork.create({ ...wait, ...of, size: networkSize, isWide });
    }
    return { scope, engine: new CudaEpEngine(scope, { ...parts, window, calls, hooks }) };
  } catch (error) {
    hooks.network?.giveUp();
    await hooks.network?.close();
    made.calls?.[Symbol.dispose]();
    made.window?.[Symbol.dispose]();
    releaseParts(parts);
    throw error;
  }
}

/** What an engine has before its window. */
type Parts = Pick<EngineParts, 'launches' | 'hostPlan' | 'counter' | 'scratch'>;

function prepareParts(scope: EpScope<CudaDevice>, launches: CudaLaunches | Error): Parts {
  if (launches instanceof Error) throw launches;
  const { set, made } = TensorSet.make(scope.device, (tensors) => ({
    counter: tensors.empty('i32', [1]),
    scratch: tensors.empty('u8', [epScratch.size]),
  }));
  try {
    for (const tensor of [made.counter, made.scratch]) scope.device.setBytes(tensor, 0);
    return { launches, ...made, hostPlan: new CudaHostPlan(scope) };
  } catch (error) {
    set[Symbol.dispose]();
    throw error;
  }
}

function releaseParts({ counter, scratch, hostPlan }: Parts): void {
  for (const part of [counter, scratch, hostPlan]) part[Symbol.dispose]();
}
