// Endpoints that are bound to a GPU.
import assert from 'node:assert/strict';
import { CudaDevice, cudaDeviceCount } from 'weftline';
import { DescriptorList, Endpoint } from 'weftline/agent';
import { gpuTest, noise } from './support/gpu.ts';

gpuTest('an endpoint is bound to its GPU: it opens it, and takes memory of no other', async () => {
  const count = cudaDeviceCount();
  const beyond = Endpoint.create({ localGpuIndex: count });
  await assert.rejects(beyond, { code: 'WL_INVALID_ARGUMENT', message: /below \d+, the number of GPUs/ });
  const last = count - 1;
  const endpoint = await Endpoint.create({ localGpuIndex: last, backends: ['local'] });
  assert.equal(endpoint.device?.context.ordinal, last);
  const tensor = await endpoint.device.tensor('u8', [4096], noise(4096));
  const region = await endpoint.register(tensor);
  assert.equal(DescriptorList.of(region).length, 1);
  await endpoint.register(new Uint8Array(64));
  if (count > 1) {
    await using other = await CudaDevice.create({ ordinal: 0 });
    using foreign = other.empty('u8', [64]);
    await assert.rejects(endpoint.register(foreign), {
      code: 'WL_INVALID_ARGUMENT',
      message: /memory of GPU \d+, or the host/,
    });
  }
  await endpoint.close();
  // Bound to none, it opens none.
  await using free = await Endpoint.create({ backends: ['local'] });
  assert.equal(free.device, undefined);
});
