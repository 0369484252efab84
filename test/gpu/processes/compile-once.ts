// Compiles the self-test kernels into the cache that is given, then ends.
import { CudaDevice } from 'weftline';
import { selfTestKernels } from '#lib/device/cuda/kernels/bench.js';

const [cacheFolder = ''] = process.argv.slice(2);
await using device = await CudaDevice.create({ cacheFolder });
await device.loadKernels(selfTestKernels);
