// Every file of kernels/cuda: what `weftline compile` fills a bundle with and what the tests compile.
import type { KernelFile } from './kernel-file.ts';
import { benchKernels, selfTestKernels } from './kernels/bench.ts';
import { benchDeviceApiKernels, channelKernels, twoProcessKernels } from './kernels/device-api.ts';
import {
  collectiveCopyKernels,
  collectiveMessageKernels,
  collectiveReductionKernels,
  collectiveRunKernels,
  sparseBlockKernels,
  sparseDirectKernels,
} from './kernels/collectives.ts';
import {
  epCombineKernels,
  epDispatchKernels,
  epLayoutKernels,
  lowLatencyCombineKernels,
  lowLatencyDispatchKernels,
} from './kernels/ep.ts';
import {
  layerCallKernels,
  layerCombineKernels,
  layerDispatchKernels,
  layerPlaceKernels,
  layerPrepareKernels,
} from './kernels/layer.ts';
import { fp8RowsKernels, groupedProductKernels, moeExpertsKernels } from './kernels/moe.ts';
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
