// Maps the memory that its parent names, inverts every byte of it, and tells the parent.
import { once } from 'node:events';
import { CudaDevice, Tensor } from 'weftline';

const [{ handle, bytes }] = (await once(process, 'message')) as [{ readonly handle: string; readonly bytes: number }];
{
  await using device = await CudaDevice.create();
  using storage = device.openPeerMemory(handle, bytes);
  const tensor = new Tensor(storage, 'u8', [bytes]);
  const values = await tensor.toHost();
  await tensor.fromHost(values.map((byte) => byte ^ 0xff));
}
process.send?.({ ok: true });
process.disconnect();
