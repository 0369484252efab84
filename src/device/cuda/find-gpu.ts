// Which GPU a rank would take, without touching it: no context is made, so that looking costs the GPU nothing.
import { WeftlineError } from '../../core/errors.ts';
import { type CudaCall, type CudaDriver, cudaDriver } from '../../native/cuda-driver.ts';
import type { Out } from '../../native/library.ts';
import { CUDA_SUCCESS, cudaError } from './cuda-status.ts';
import { attributes, formatUuid } from './device-properties.ts';
import { OLDEST_CAPABILITY } from './jit/architecture.ts';

/** As JSON it travels to the other ranks. */
export interface FoundGpu {
  /** Number among those that this process sees. */
  readonly ordinal: number;
  /** Tells GPUs apart whatever their number is in each process. */
  readonly uuid: string;
}

export interface NoGpu {
  /** Why there is none, as the end of a sentence. */
  readonly missing: string;
}

/** GPU `machineRank` of those that this process sees, again from 0 where there are more ranks. Never throws. */
export function findGpu(machineRank: number, driver: CudaDriver = cudaDriver): FoundGpu | NoGpu {
  try {
    return look(machineRank, driver);
  } catch (error) {
    return { missing: error instanceof Error ? error.message : String(error) };
  }
}

function look(machineRank: number, driver: CudaDriver): FoundGpu | NoGpu {
  const cell: Out = [0];
  let ordinal = 0;
  const call = <Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): number => {
    const status: number = driver[name](...parameters);
    if (status !== CUDA_SUCCESS) throw cudaError(driver, { call: name, status, device: ordinal });
    return cell[0];
  };
  try {
    call('cuInit', 0);
  } catch (error) {
    if (!(error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED')) throw error;
    const { name } = error.details;
    return { missing: typeof name === 'string' ? `no driver library (${name})` : error.message };
  }
  const gpus = call('cuDeviceGetCount', cell);
  if (gpus === 0) return { missing: 'no GPU is visible: see CUDA_VISIBLE_DEVICES, and --gpus of the container' };
  ordinal = machineRank % gpus;
  const device = call('cuDeviceGet', cell, ordinal);
  const major = call('cuDeviceGetAttribute', cell, attributes.capabilityMajor, device);
  const minor = call('cuDeviceGetAttribute', cell, attributes.capabilityMinor, device);
  if (major * 10 + minor < OLDEST_CAPABILITY) {
    return { missing: `GPU ${ordinal} is sm_${major}${minor}, needed is sm_${OLDEST_CAPABILITY} or newer` };
  }
  const uuid = new Uint8Array(16);
  call('cuDeviceGetUuid', uuid, device);
  return { ordinal, uuid: formatUuid(uuid) };
}
