// Whether kernels of a GPU may add to words in memory of another one: over NVLink they may, over PCIe as a rule not.
import { WeftlineError } from '../../core/errors.ts';
import type { Out } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';
import { CUDA_SUCCESS } from './cuda-status.ts';

/** CUpointer_attribute: the device on which the memory was allocated. */
const DEVICE_ORDINAL = 9;
/** CUdevice_P2PAttribute. */
const NATIVE_ATOMICS_SUPPORTED = 3;

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
