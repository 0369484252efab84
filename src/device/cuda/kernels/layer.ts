// The kernels of EPAll2AllLayer.
import {
  layerCombineArguments,
  layerDispatchArguments,
  layerPlaceArguments,
  layerPrepareArguments,
  layerSumArguments,
} from '../../../abi/layer-arguments.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const layerPrepareKernels = defineKernelFile({
  file: 'layer-prepare.cu',
  constants: {},
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
  constants: {},
  kernels: { layerDispatch: layerDispatchArguments },
  hot: true,
});

export const layerCombineKernels = defineKernelFile({
  file: 'layer-combine.cu',
  constants: {},
  kernels: { layerCombine: layerCombineArguments, layerSumRepeated: layerSumArguments },
  hot: true,
});
