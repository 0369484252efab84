// The RDMA devices that libibverbs finds on this machine.
import { ibvDevice } from './c-structs.ts';
import { WeftlineError } from '../../core/errors.ts';
import { viewAt } from '../library.ts';
import { NativeBlock } from '../native-block.ts';
import { nativeError } from '../native-error.ts';
import { openVerbs } from './library.ts';

const ENOSYS = 38;
const ENOENT = 2;
const MAX_DEVICES = 1024;

/**
 * Names of the devices in the library's order. None is an empty list, as on a machine without the kernel's part.
 * Fails with WL_UNSUPPORTED without libibverbs.
 */
export function verbsDeviceNames(): readonly string[] {
  return withDevices((devices) => devices.map(({ name }) => name));
}

/** The context (ibv_context) of a device. Fails with WL_UNSUPPORTED if there is no such device. */
export function openVerbsDevice(name: string): number {
  return withDevices((devices) => {
    const device = devices.find((each) => each.name === name);
    if (device === undefined) {
      const there = devices.map((each) => each.name).join(', ') || 'none, or none that this process may use';
      throw new WeftlineError('WL_UNSUPPORTED', `There is no RDMA device ${name} on this machine: it has ${there}`, {
        details: { device: name },
      });
    }
    const context = openVerbs().calls.ibv_open_device(device.address);
    if (context < 0) {
      throw nativeError(
        'ibv_open_device',
        `opening the RDMA device ${name}; may this user open /dev/infiniband?`,
        context,
      );
    }
    return context;
  });
}

interface Device {
  readonly name: string;
  readonly address: number;
}

/** Addresses of devices hold while the list does; contexts outlive it. */
function withDevices<T>(use: (devices: readonly Device[]) => T): T {
  const { calls } = openVerbs();
  const count = new NativeBlock(4);
  const list = calls.ibv_get_device_list(count.address);
  // Without the kernel's part there is no list, or the errno says that there is no such thing.
  if (list === -ENOSYS || list === -ENOENT) return use([]);
  if (list < 0) throw nativeError('ibv_get_device_list', 'listing the RDMA devices', list);
  try {
    const devices = Math.min(count.words[0]!, MAX_DEVICES);
    if (devices === 0) return use([]);
    const addresses = new BigUint64Array(viewAt(list, devices * 8));
    return use(Array.from(addresses, (address) => ({ name: nameOf(Number(address)), address: Number(address) })));
  } finally {
    calls.ibv_free_device_list(list);
  }
}

function nameOf(device: number): string {
  const bytes = new Uint8Array(viewAt(device + ibvDevice.offset.name, 64));
  return Buffer.from(bytes.subarray(0, bytes.indexOf(0))).toString('latin1');
}
