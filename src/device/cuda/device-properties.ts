// What one GPU is: read once from the driver.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_SUCCESS, type CudaContext } from './cuda-context.ts';
import type { Out } from '../../native/library.ts';

// Whether kernels of a GPU may use memory of another one, and add to words there: over NVLink they may, over PCIe as a rule not.

/** CUpointer_attribute: the device on which the memory was allocated. */
const DEVICE_ORDINAL = 9;
/** CUdevice_P2PAttribute. */
const NATIVE_ATOMICS_SUPPORTED = 3;

/** True if kernels of a GPU can use what this process took at that address. Lets them use memory of another GPU. */
export function letKernelsReach(context: CudaContext, address: number): boolean {
  const [ordinal, peer, can, owner]: [Out, Out, Out, Out] = [[0], [0], [0], [0]];
  context.call('cuPointerGetAttribute', ordinal, DEVICE_ORDINAL, address);
  if (ordinal[0] === context.ordinal) return true;
  context.call('cuDeviceGet', peer, ordinal[0]);
  context.call('cuDeviceCanAccessPeer', can, context.device, peer[0]);
  if (can[0] !== 1) return false;
  // Whoever took the memory keeps its context.
  context.call('cuDevicePrimaryCtxRetain', owner, peer[0]);
  const status = context.status('cuCtxEnablePeerAccess', owner[0], 0);
  context.call('cuDevicePrimaryCtxRelease', peer[0]);
  if (status !== CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
    context.check('cuCtxEnablePeerAccess', status, `access to GPU ${ordinal[0]}`);
  }
  return true;
}

/**
 * Why kernels cannot add atomically to memory that is mapped at `address`, as the end of a sentence that names both GPUs. Undefined
 * where they can: on this GPU, and on a peer whose link carries atomic operations; and where the driver cannot tell.
 */
export function whyNoPeerAtomics(context: CudaContext, address: number): string | undefined {
  const owner: Out = [0];
  if (context.status('cuPointerGetAttribute', owner, DEVICE_ORDINAL, address) !== CUDA_SUCCESS) return undefined;
  if (owner[0] === context.ordinal) return undefined;
  const peer: Out = [0];
  if (context.status('cuDeviceGet', peer, owner[0]) !== CUDA_SUCCESS) return undefined;
  const value: Out = [0];
  const status = context.status('cuDeviceGetP2PAttribute', value, NATIVE_ATOMICS_SUPPORTED, context.device, peer[0]);
  if (status !== CUDA_SUCCESS || value[0] === 1) return undefined;
  return `GPU ${context.ordinal} cannot add to memory of GPU ${owner[0]}: the link between them carries no atomic operations, as PCIe does not`;
}

/** Fails with WL_UNSUPPORTED where `what` needs such additions and the GPUs cannot make them. */
export function requirePeerAtomics(context: CudaContext, address: number, what: string): void {
  const reason = whyNoPeerAtomics(context, address);
  if (reason !== undefined) throw noPeerAtomics(reason, what);
}

/** `what` needs additions that the GPUs cannot make, for that reason. */
export function noPeerAtomics(reason: string, what: string): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `${what} needs GPUs that count in each other's memory, but ${reason}. Use GPUs that NVLink joins ("nvidia-smi topo -m" shows which), or ranks on CPUs`,
    { details: { reason } },
  );
}

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
  /** The name that nvidia-smi shows: GPU-xxxxxxxx-xxxx-.... */
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
    name: textOf(name),
    uuid: formatUuid(uuid),
    pciBusId: textOf(pciBusId),
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
function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.subarray(0, bytes.indexOf(0))).toString('latin1');
}

export function formatUuid(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes).toString('hex');
  return `GPU-${[hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')}`;
}

// Names of GPU architectures as the compilers know them.

/** Compute capability, major and minor, that the kernels need at least. */
export const OLDEST_CAPABILITY = 80;

/** sm_90 has instructions that only its architecture-specific target allows. */
const specific: ReadonlySet<string> = new Set(['sm_90']);

/** The compiler's target for a device. */
export function architectureOf(capability: { readonly major: number; readonly minor: number }): string {
  return parseArchitecture(`sm_${capability.major}${capability.minor}`);
}

/** "sm_90" and "90" mean sm_90a here; "sm_80" stays. Fails with WL_INVALID_ARGUMENT. */
export function parseArchitecture(text: string): string {
  const digits = /^(?:sm_)?(\d{2,3})a?$/.exec(text)?.[1];
  if (digits === undefined || Number(digits) < OLDEST_CAPABILITY)
    throw invalidArgument('architecture', text, `sm_${OLDEST_CAPABILITY} or newer, as sm_90`);
  const name = `sm_${digits}`;
  return specific.has(name) ? `${name}a` : name;
}

/** Flags of every kernel, nvcc's and NVRTC's alike. No fast math: results equal those of the CPU device. */
export function compileFlags(architecture: string): string[] {
  return [`-arch=${architecture}`, '-std=c++17', '-lineinfo'];
}

// The version of the NVIDIA driver, from what its kernel module tells of itself.

/** File in which the kernel module tells its version. */
export const driverVersionFile = '/proc/driver/nvidia/version';

/** "580.95.05", or undefined when the text is something else. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module.*?\s(\d+(?:\.\d+)+)\s/.exec(text)?.[1];
}
