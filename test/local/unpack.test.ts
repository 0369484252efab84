// Unpacking and packing on the CPU device.
import { CpuDevice } from 'weftline';
import { testUnpack } from '../support/unpack-conformance.ts';

testUnpack({
  name: 'cpu',
  skip: false,
  open: () => CpuDevice.create({ addressSpaceMiB: 256 }),
  configs: [{}, { smallKernel: true, numSms: 4, pool: { memory: 'copied' } }],
});
