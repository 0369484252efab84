// Unpacking and packing on a GPU: what the CPU device does, in every configuration of the kernels.
import { CudaDevice } from 'weftline';
import { testUnpack } from '../support/unpack-conformance.js';
import { cacheFolder, noGpu } from './support/gpu.js';

testUnpack({
  name: 'cuda',
  skip: noGpu,
  open: () => CudaDevice.create({ cacheFolder, timeoutMs: 20_000 }),
  configs: [
    {},
    { smallKernel: true, numSms: 3 },
    { smallKernel: false, numSms: 3 },
    { smallKernel: true, pool: { memory: 'copied' } },
  ],
});
