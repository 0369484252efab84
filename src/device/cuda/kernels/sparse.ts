// The kernels of sparse all-reduces, and the plain read that the one which marks blocks is measured against.
import {
  benchReadArguments,
  sparseIndexArguments,
  sparseMarkArguments,
  sparseMoveArguments,
  sparseTellArguments,
} from '../../../abi/sparse-arguments.ts';
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
