// The kernels of Communicator.
import {
  benchReadArguments,
  collectiveArguments,
  messageArguments,
  runArguments,
  sparseIndexArguments,
  sparseMarkArguments,
  sparseMoveArguments,
  sparseShareArguments,
  sparseSumArguments,
  sparseTellArguments,
} from '../../../abi/collectives.ts';
import { reductionFormats } from '../../../abi/element-formats.ts';
import { defineKernelFile } from '../kernel-file.ts';

// The kernels of sparse all-reduces, and the plain read that the one which marks blocks is measured against.

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

export const collectiveCopyKernels = defineKernelFile({
  file: 'collective-copies.cu',
  constants: {},
  kernels: { collectiveCopies: collectiveArguments },
  hot: true,
});

export const collectiveReductionKernels = defineKernelFile({
  file: 'collective-reductions.cu',
  constants: { FORMAT: { choices: Object.values(reductionFormats) } },
  kernels: { collectiveReductions: collectiveArguments },
  hot: true,
});

export const collectiveMessageKernels = defineKernelFile({
  file: 'collective-messages.cu',
  constants: {},
  kernels: { collectiveMessages: messageArguments },
  hot: true,
});

export const collectiveRunKernels = defineKernelFile({
  file: 'collective-runs.cu',
  constants: { FORMAT: { choices: Object.values(reductionFormats) } },
  kernels: { collectiveRuns: runArguments },
  hot: true,
});
