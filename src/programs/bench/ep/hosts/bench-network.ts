// The way to other hosts that the calls of a bench go by, whatever the device: roads for carriers, and what was sent.
import { networkChoiceRowBytes, networkRowBytes, networkSumBytes } from '../../../../abi/ep-network.ts';
import type { HostRoutes } from '../../../../group/network/host-routes.ts';
import { HostNetwork } from '../../../../group/network/host-network.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { Device } from '../../../../device/device.ts';
import { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { EpBuffer } from '../../../../ep/index.ts';
import type { World } from '../../../../world/index.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from '../ep-workload.ts';
import type { CarrierRoad } from './carrier.ts';
import { cpuRoad, pinnedRoad } from './carrier-roads.ts';

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
