// The kind of device that the ranks of a job run on: all on their own GPUs, or all on the CPU.
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import { CpuDevice } from './cpu/cpu-device.ts';
import { CudaDevice } from './cuda/cuda-device.ts';
import { CUDA_SUCCESS, cudaError } from './cuda/cuda-context.ts';
import { attributes, formatUuid, OLDEST_CAPABILITY } from './cuda/device-properties.ts';
import type { DeviceKind } from './tensor.ts';
import { type CudaCall, type CudaDriver, cudaDriver } from '../native/cuda-driver.ts';
import type { Out } from '../native/library.ts';
import { type Settings, settingsTable } from '../settings/settings.ts';

// Finds the GPU that a rank would take without touching it: no context is made, so that looking costs the GPU nothing.

/** A GPU as the other ranks hear of it, in JSON. */
interface FoundGpu {
  /** Number among those that this process sees. */
  readonly ordinal: number;
  /** Tells GPUs apart whatever their number is in each process. */
  readonly uuid: string;
}

interface NoGpu {
  /** Why there is none, as the end of a sentence. */
  readonly missing: string;
}

/** GPU `machineRank` of those that this process sees, again from 0 where there are more ranks. Never throws. */
function findGpu(machineRank: number, driver: CudaDriver = cudaDriver): FoundGpu | NoGpu {
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
    const run = driver[name] as (...given: readonly unknown[]) => number;
    const status = run(...parameters);
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

/** What choosing needs of the ranks; a RankGroup is one, and so is a World. */
export interface DeviceGroup {
  /** This rank's position among all ranks on this machine, so that ranks of different groups take different GPUs. */
  readonly machineRank: number;
  /** World ranks by rank, for errors. */
  readonly ranks: readonly number[];
  readonly settings: Settings;
  /** Collective: result[r] is the value of rank r. */
  allGather<T>(name: string, value: T): Promise<T[]>;
}

/** The kind of device that all ranks of a group take, and why. */
export interface DeviceChoice {
  readonly kind: DeviceKind;
  /** The same on all ranks: "every rank has a GPU of its own", "rank 2 found no GPU: no driver library: ...". */
  readonly reason: string;
  /** Number of this rank's GPU among those that its process sees; 0 with `cpu`. */
  readonly ordinal: number;
  /** Ranks that share a GPU, with `cuda`: "ranks 0 and 2 share GPU-…"; left out if none do. */
  readonly sharing?: string;
}

type DeviceRequest = Settings['device'];

/**
 * Collective: every rank gets the same kind and reason. Rank m of a machine looks at GPU m of those that its process sees,
 * again from 0 where there are fewer. `auto` is `cuda` if every rank found a usable GPU (sm_80 or newer) that no other rank
 * uses, else `cpu`. With `cuda`, ranks may share a GPU; a rank without one fails all ranks with the same WL_UNSUPPORTED,
 * which names it. Ranks that ask for different kinds fail with WL_CONFIG_MISMATCH. `cpu` looks for nothing.
 * @param request What the setting `device` allows.
 * @param group The ranks that take part; a world is a group.
 */
export function chooseDevice(request: DeviceRequest, group: DeviceGroup): Promise<DeviceChoice>;
/** @internal By another driver. */
export function chooseDevice(request: DeviceRequest, group: DeviceGroup, driver: CudaDriver): Promise<DeviceChoice>;
export async function chooseDevice(
  request: DeviceRequest,
  group: DeviceGroup,
  driver: CudaDriver = cudaDriver,
): Promise<DeviceChoice> {
  if (typeof (group as Partial<DeviceGroup> | undefined)?.allGather !== 'function') {
    throw invalidArgument('group', group, 'a world, as join() returns, or a group of its ranks');
  }
  const { choices } = settingsTable.device;
  if (!choices.includes(request)) throw invalidArgument('device', request, choices.join(', '));
  const own: FoundGpu | NoGpu = request === 'cpu' ? { missing: 'not looked for' } : findGpu(group.machineRank, driver);
  const all = await group.allGather('weftline/device', { request, gpu: own });
  const { ranks } = group;
  requireOneRequest(
    all.map((rank) => rank.request),
    ranks,
  );
  if (request === 'cpu') return { kind: 'cpu', reason: 'asked for', ordinal: 0 };
  const obstacle = findMissing(
    all.map(({ gpu }) => gpu),
    ranks,
  );
  const sharing = findSharing(
    all.map(({ gpu }) => gpu),
    ranks,
  );
  if (request === 'cuda') {
    if (obstacle !== undefined) throw noGpu(obstacle);
    const reason = sharing === undefined ? 'asked for' : `asked for; ${sharing}`;
    return { kind: 'cuda', reason, ordinal: ordinalOf(own), ...(sharing === undefined ? {} : { sharing }) };
  }
  const reason = obstacle?.reason ?? (sharing && `fewer GPUs than ranks: ${sharing}`);
  if (reason !== undefined) return { kind: 'cpu', reason, ordinal: 0 };
  return { kind: 'cuda', reason: 'every rank has a GPU of its own', ordinal: ordinalOf(own) };
}

interface Obstacle {
  readonly rank: number;
  readonly reason: string;
}

function findMissing(gpus: readonly (FoundGpu | NoGpu)[], ranks: readonly number[]): Obstacle | undefined {
  for (const [index, gpu] of gpus.entries()) {
    const rank = ranks[index]!;
    if ('missing' in gpu) return { rank, reason: `rank ${rank} found no GPU: ${gpu.missing}` };
  }
  return undefined;
}

function findSharing(gpus: readonly (FoundGpu | NoGpu)[], ranks: readonly number[]): string | undefined {
  const owners = new Map<string, number>();
  for (const [index, gpu] of gpus.entries()) {
    if ('missing' in gpu) continue;
    const rank = ranks[index]!;
    const owner = owners.get(gpu.uuid);
    if (owner !== undefined) return `ranks ${owner} and ${rank} share ${gpu.uuid}`;
    owners.set(gpu.uuid, rank);
  }
  return undefined;
}

function requireOneRequest(requests: readonly DeviceRequest[], ranks: readonly number[]): void {
  const other = requests.findIndex((request) => request !== requests[0]);
  if (other === -1) return;
  const rank = ranks[other];
  throw new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `The ranks ask for different devices: ${requests[0]} on rank ${ranks[0]}, ${requests[other]} on rank ${rank}`,
    { details: { rank, rank0: requests[0], other: requests[other] } },
  );
}

function noGpu({ rank, reason }: Obstacle): WeftlineError {
  return new WeftlineError('WL_UNSUPPORTED', `Cannot run on GPUs: ${reason}; use --device cpu or WEFTLINE_DEVICE=cpu`, {
    details: { rank },
    rank,
  });
}

function ordinalOf(gpu: FoundGpu | NoGpu): number {
  return 'ordinal' in gpu ? gpu.ordinal : 0;
}

// Opens the device that the ranks of a job chose together; the one place that knows all kinds.

/**
 * Collective: chooses a kind for all ranks (see chooseDevice) and opens this rank's device with the group's settings. A
 * world is a group. Fails as chooseDevice() and the devices' own create() do.
 * @param request What the setting `device` allows.
 * @param group The ranks that take part.
 */
export async function openDevice(request: Settings['device'], group: DeviceGroup): Promise<CpuDevice | CudaDevice> {
  return openChosenDevice(await chooseDevice(request, group), group.settings);
}

/**
 * Opens what chooseDevice() chose; local. Fails with what the device's own create() does.
 * @param choice From chooseDevice().
 * @param settings The group's.
 */
export function openChosenDevice(choice: DeviceChoice, settings: Settings): Promise<CpuDevice | CudaDevice> {
  log('device', 'info', `${choice.kind === 'cpu' ? 'the CPU' : `GPU ${choice.ordinal}`}: ${choice.reason}`);
  if (choice.kind === 'cpu') return CpuDevice.create(settings);
  return CudaDevice.create({ ...settings, ordinal: choice.ordinal });
}
