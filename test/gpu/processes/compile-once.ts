// Compiles the self-test kernels into the cache that is given, then ends.
import { CudaDevice } from 'weftline';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

const [cacheFolder = ''] = process.argv.slice(2);
await using device = await CudaDevice.create({ cacheFolder });
await device.loadKernels(kernelFiles.selfTest);
