// The kernels of EPAll2AllLayer.
import { elementFormats } from '../../../abi/element-formats.ts';
import {
  layerBarrierArguments,
  layerCombineArguments,
  layerDispatchArguments,
  layerPlaceArguments,
  layerPrepareArguments,
  layerSumArguments,
  layerWidenArguments,
} from '../../../abi/ep-layer.ts';
import { defineKernelFile } from '../kernel-file.ts';

/** 1 for a group on several hosts. */
const hosts = { HOSTS: { choices: [0, 1] } } as const;

export const layerPrepareKernels = defineKernelFile({
  file: 'layer-prepare.cu',
  constants: hosts,
  kernels: { layerPrepare: layerPrepareArguments },
  hot: true,
});

export const layerPlaceKernels = defineKernelFile({
  file: 'layer-place.cu',
  constants: {},
  kernels: { layerPlace: layerPlaceArguments },
  hot: false,
});

export const layerDispatchKernels = defineKernelFile({
  file: 'layer-dispatch.cu',
  constants: hosts,
  kernels: { layerDispatch: layerDispatchArguments },
  hot: true,
});

export const layerCombineKernels = defineKernelFile({
  file: 'layer-combine.cu',
  constants: { ELEMENT: { choices: Object.values(elementFormats) }, ...hosts },
  kernels: { layerCombine: layerCombineArguments, layerSumRepeated: layerSumArguments },
  hot: true,
});

export const layerCallKernels = defineKernelFile({
  file: 'layer-calls.cu',
  constants: {},
  kernels: { layerBarrier: layerBarrierArguments, layerWiden: layerWidenArguments },
  hot: false,
});
