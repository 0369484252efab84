// What DeviceHost.create() and createWriteReq() take.
import type { BackendName } from '../../agent/index.ts';
import { checkAgentName } from '../../agent/metadata.ts';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';

/** What a DeviceHost is made with. */
export interface DeviceHostOptions {
  /** What peers call it. */
  readonly name: string;
  /** The device whose kernels communicate. */
  readonly device?: CpuDevice | CudaDevice;
  /** Several GPUs in its place, each once. What is registered names one of them by its ordinal. */
  readonly devices?: readonly CudaDevice[];
  /** Peers must have the same; see Agent. */
  readonly token?: string;
  /** The agent's backends that may carry what kernels cannot write directly; all by default. */
  readonly backends?: readonly BackendName[];
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string;
  /** Listens there for peers that exchange metadata, at `host`; 0 takes any free port. Without it, no peer can connect. */
  readonly port?: number;
  /** False: also what kernels could write directly goes through the queues. */
  readonly direct?: boolean;
  /** Command queues of each device; channel c uses queue c % queues. 4 by default. */
  readonly queues?: number;
  /** Commands of each queue, a power of two; 1024 by default. */
  readonly queueCapacity?: number;
  /** Deadline of kernels' waits, and of connecting to a peer; the setting `timeoutMs` by default. */
  readonly timeoutMs?: number;
  /** @internal For tests: host memory is staged as memory of GPUs is. */
  readonly stagesHostMemory?: boolean;
}

const deviceHostOptionNames: OptionNames<DeviceHostOptions> = {
  name: true,
  device: true,
  devices: true,
  token: true,
  backends: true,
  host: true,
  port: true,
  direct: true,
  queues: true,
  queueCapacity: true,
  timeoutMs: true,
  stagesHostMemory: true,
};

/**
 * Fails with WL_INVALID_ARGUMENT for what no thread can be sent. The agent, which is made in a thread, looks at which
 * backends and addresses there are.
 */
export function checkDeviceHostOptions(options: DeviceHostOptions): void {
  checkOptions(options, deviceHostOptionNames, 'options of DeviceHost.create');
  const { name, host, backends } = options;
  checkAgentName(name, (why) => invalidArgument('name', name, why));
  if (host !== undefined && typeof host !== 'string') throw invalidArgument('host', host, 'a numeric address');
  if (backends === undefined) return;
  const isList = Array.isArray(backends) && backends.every((backend) => typeof backend === 'string');
  if (!isList) throw invalidArgument('backends', backends, 'a list of names');
}

/** How the writes of a request go. */
export interface WriteRequestOptions {
  /**
   * Only this request adds to counters of the peer's ranges, which are 0 now; for puts of 8 bytes, too. What goes through
   * a queue into memory of a GPU is then written by a stream, in half the time of a kernel that copies and adds.
   */
  readonly soleWriter?: boolean;
}

export const writeRequestOptionNames: OptionNames<WriteRequestOptions> = { soleWriter: true };
