// What one GPU is: read once from the driver.
import type { Out } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';

/** CUdevice_attribute. */
export const attributes = {
  clockKiloHertz: 13,
  multiprocessors: 16,
  l2CacheBytes: 38,
  capabilityMajor: 75,
  capabilityMinor: 76,
  sharedBytesPerMultiprocessor: 81,
  cooperativeLaunch: 95,
  sharedBytesPerBlock: 97,
} as const;

export interface DeviceProperties {
  readonly name: string;
  /** As nvidia-smi shows it: GPU-xxxxxxxx-xxxx-.... */
  readonly uuid: string;
  readonly pciBusId: string;
  readonly totalBytes: number;
  readonly capability: { readonly major: number; readonly minor: number };
  readonly multiprocessors: number;
  readonly clockKiloHertz: number;
  readonly l2CacheBytes: number;
  /** Most dynamic shared memory of one block, after opting in. */
  readonly sharedBytesPerBlock: number;
  readonly sharedBytesPerMultiprocessor: number;
  readonly cooperativeLaunch: boolean;
  /** CUDA 13 on this driver: 13000. */
  readonly driverVersion: number;
}

export function readDeviceProperties(context: CudaContext): DeviceProperties {
  const value: Out = [0];
  const read = (attribute: keyof typeof attributes): number => {
    context.call('cuDeviceGetAttribute', value, attributes[attribute], context.device);
    return value[0];
  };
  const name = new Uint8Array(256);
  context.call('cuDeviceGetName', name, name.length, context.device);
  const uuid = new Uint8Array(16);
  context.call('cuDeviceGetUuid', uuid, context.device);
  const pciBusId = new Uint8Array(32);
  context.call('cuDeviceGetPCIBusId', pciBusId, pciBusId.length, context.device);
  const total: Out = [0];
  context.call('cuDeviceTotalMem', total, context.device);
  const version: Out = [0];
  context.call('cuDriverGetVersion', version);
  return Object.freeze({
    name: text(name),
    uuid: formatUuid(uuid),
    pciBusId: text(pciBusId),
    totalBytes: total[0],
    capability: { major: read('capabilityMajor'), minor: read('capabilityMinor') },
    multiprocessors: read('multiprocessors'),
    clockKiloHertz: read('clockKiloHertz'),
    l2CacheBytes: read('l2CacheBytes'),
    sharedBytesPerBlock: read('sharedBytesPerBlock'),
    sharedBytesPerMultiprocessor: read('sharedBytesPerMultiprocessor'),
    cooperativeLaunch: read('cooperativeLaunch') === 1,
    driverVersion: version[0],
  });
}

/** Up to the first zero byte. */
function text(bytes: Uint8Array): string {
  return Buffer.from(bytes.subarray(0, bytes.indexOf(0))).toString('latin1');
}

export function formatUuid(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes).toString('hex');
  return `GPU-${[hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')}`;
}
