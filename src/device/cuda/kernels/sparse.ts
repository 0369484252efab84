// The kernels of sparse all-reduces, and the plain read that the one which marks blocks is measured against.
import { reductionFormats } from '../../../abi/element-formats.ts';
import {
  benchReadArguments,
  sparseIndexArguments,
  sparseMarkArguments,
  sparseMoveArguments,
  sparseShareArguments,
  sparseSumArguments,
  sparseTellArguments,
} from '../../../abi/collectives.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const sparseBlockKernels = defineKernelFile({
  file: 'sparse-blocks.cu',
  constants: {},
  kernels: {
    sparseMark: sparseMarkArguments,
    sparseSurvey: sparseIndexArguments,
    sparseIndex: sparseIndexArguments,
    sparseGather: sparseMoveArguments,
    sparseScatter: sparseMoveArguments,
    sparseTell: sparseTellArguments,
    benchRead: benchReadArguments,
  },
  hot: true,
});

export const sparseDirectKernels = defineKernelFile({
  file: 'sparse-direct.cu',
  constants: { FORMAT: { choices: Object.values(reductionFormats) } },
  kernels: { sparseShare: sparseShareArguments, sparseSum: sparseSumArguments },
  hot: true,
});
