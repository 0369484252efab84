// The kernels of Communicator.
import { collectiveArguments, messageArguments, runArguments } from '../../../abi/collectives.ts';
import { reductionFormats } from '../../../abi/element-formats.ts';
import { defineKernelFile } from '../kernel-file.ts';

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
