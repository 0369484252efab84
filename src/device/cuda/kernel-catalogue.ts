// Every file of kernels/cuda: what `weftline compile` fills a bundle with and what the tests compile.
import type { KernelFile } from './kernel-file.ts';
import { benchKernels } from './kernels/bench.ts';
import { channelKernels } from './kernels/channel.ts';
import {
  collectiveCopyKernels,
  collectiveMessageKernels,
  collectiveReductionKernels,
  collectiveRunKernels,
} from './kernels/collectives.ts';
import { benchDeviceApiKernels, twoProcessKernels } from './kernels/device-api.ts';
import { epCombineKernels, epDispatchKernels, epLayoutKernels } from './kernels/ep.ts';
import {
  layerCallKernels,
  layerCombineKernels,
  layerDispatchKernels,
  layerPlaceKernels,
  layerPrepareKernels,
} from './kernels/layer.ts';
import { lowLatencyCombineKernels, lowLatencyDispatchKernels } from './kernels/low-latency.ts';
import { fp8RowsKernels } from './kernels/fp8-rows.ts';
import { groupedProductKernels, moeExpertsKernels } from './kernels/moe.ts';
import { selfTestKernels } from './kernels/self-test.ts';
import { sparseBlockKernels, sparseDirectKernels } from './kernels/sparse.ts';
import { traceClockKernels } from './kernels/trace.ts';
import { benchUnpackKernels, persistentUnpackKernels, unpackKernels } from './kernels/unpack.ts';

export const kernelCatalogue: readonly KernelFile[] = [
  selfTestKernels,
  traceClockKernels,
  epLayoutKernels,
  epDispatchKernels,
  epCombineKernels,
  layerPrepareKernels,
  layerPlaceKernels,
  layerDispatchKernels,
  layerCombineKernels,
  layerCallKernels,
  lowLatencyDispatchKernels,
  lowLatencyCombineKernels,
  collectiveCopyKernels,
  collectiveReductionKernels,
  collectiveMessageKernels,
  collectiveRunKernels,
  fp8RowsKernels,
  groupedProductKernels,
  moeExpertsKernels,
  benchKernels,
  channelKernels,
  twoProcessKernels,
  benchDeviceApiKernels,
  unpackKernels,
  persistentUnpackKernels,
  benchUnpackKernels,
  sparseBlockKernels,
  sparseDirectKernels,
];
