// A DeviceHost in a process of its own, which says what others need to write to it and waits to be killed: argv = way.
import { CpuDevice, CudaDevice, cudaDeviceCount } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { backendNames } from '#lib/agent/backends/backend-table.js';

export interface DeviceHostPeer {
  /** base64 */
  readonly metadata: string;
  readonly data: string;
  readonly counter: string;
}

const way = process.argv[2];
const isCuda = process.env['WEFTLINE_TEST_DEVICE'] === 'cuda';
const device = isCuda
  ? await CudaDevice.create({ ordinal: Math.min(1, cudaDeviceCount() - 1) })
  : await CpuDevice.create({ addressSpaceMiB: 64 });
const backend = backendNames.find((name) => name === way);
const host = await DeviceHost.create({
  name: 'victim',
  device,
  direct: false,
  ...(backend === undefined ? {} : { backends: [backend] }),
});
const encode = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64');
const data = await host.allocate(1 << 20);
const counter = await host.allocate(64);
const said: DeviceHostPeer = {
  metadata: encode(await host.getMetadata()),
  data: encode(host.serializeXferDescs({ memory: data })),
  counter: encode(host.serializeXferDescs({ memory: counter })),
};
process.send?.(said);
setInterval(() => {}, 1000);
