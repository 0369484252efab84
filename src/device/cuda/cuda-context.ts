// The primary context of one GPU in this process: the way every driver call goes, and what remembers a lost device.
import { WeftlineError } from '../../core/errors.ts';
import { type CudaCall, type CudaDriver, cudaDriver } from '../../native/cuda-driver.ts';
import type { Out } from '../../native/library.ts';

// What the status numbers of the CUDA driver mean: which are no errors, which end the device for this process, and why.

export const CUDA_SUCCESS = 0;
export const CUDA_ERROR_OUT_OF_MEMORY = 2;
export const CUDA_ERROR_NOT_READY = 600;
export const CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;

/** After one of these every later call of the process fails too: only a new process can use the device again. */
const stickyStatuses: ReadonlySet<number> = new Set([214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721]);

const likelyMistakes: Readonly<Record<number, string>> = {
  1: 'an argument is out of range, or memory was freed before this call',
  2: 'other processes use the memory too (nvidia-smi shows them), or buffers are sized for more tokens than needed',
  3: 'the driver was not initialised',
  34: 'the stub library of the toolkit was loaded in place of the driver: remove the stubs folder from LD_LIBRARY_PATH',
  46: 'another process holds the device exclusively',
  100: 'no GPU is visible: see CUDA_VISIBLE_DEVICES, and --gpus of the container',
  101: 'there is no GPU of this number: see CUDA_VISIBLE_DEVICES',
  200: 'the kernel was compiled by an NVRTC that is newer than the driver, or the file is damaged',
  201: 'the context was released, or this thread never made it current',
  209: 'the kernel was compiled for another architecture: compile for that of this device',
  217: 'the two GPUs have no path to each other: NVLink or PCIe peer access is needed',
  222: 'the kernel was compiled by an NVRTC that is newer than the driver: update the driver',
  400: 'a stream, event or module was closed before this call',
  500: 'the name is not in the module: an entry must be declared extern "C"',
  700: 'a kernel read or wrote memory that is not there: run with compute-sanitizer to find where',
  701: 'the block has more threads than the registers of the kernel allow, or too much shared memory',
  702: 'a kernel ran longer than the display driver allows',
  716: 'a kernel accessed an address that is not a multiple of the access size',
  718: 'the kernel jumped outside its code',
  719: 'a kernel failed, or memory of a peer process that has ended was accessed',
  720: 'a cooperative grid must fit the device at once: use fewer blocks or less shared memory',
  801: 'this device or driver lacks the feature',
  802: 'the fabric of the GPUs is not up: see nvidia-fabricmanager',
  803: 'the driver library and the kernel module have different versions: restart after the driver update',
  804: 'the compatibility library in front does not support this GPU: remove it from LD_LIBRARY_PATH',
  900: 'a wait, a query or an allocation cannot be part of a graph that is being recorded',
  901: 'an operation that cannot be part of a graph was enqueued while it was recorded',
  904: 'another stream was drawn into the recording, and device.stream does not wait for its end',
  912: 'the device cannot run clusters of this size',
};

function isSticky(status: number): boolean {
  return stickyStatuses.has(status);
}

interface CudaFailure {
  readonly call: CudaCall;
  readonly status: number;
  /** What the call was about: "loading kernel x.cu", "1.5 GiB". */
  readonly subject?: string;
  readonly device: number;
  /** The kernel that was launched last, since failures of kernels surface at later calls. */
  readonly lastLaunch?: string;
}

/** WL_CUDA with the call, the status and the likely mistake. */
export function cudaError(driver: CudaDriver, failure: CudaFailure): WeftlineError {
  const { call, status, subject, device, lastLaunch } = failure;
  const name = statusName(driver, status);
  const sticky = isSticky(status);
  const mistake = likelyMistakes[status];
  const about = subject === undefined ? '' : ` (${subject})`;
  const blame = sticky && lastLaunch ? `; the last kernel launched was ${lastLaunch}` : '';
  const end = sticky ? '; the device is lost to this process, which must be started again' : '';
  return new WeftlineError(
    'WL_CUDA',
    `${call}${about} failed on GPU ${device} with ${name} (${status})${mistake === undefined ? '' : `: ${mistake}`}${blame}${end}`,
    { details: { ...failure, name, sticky } },
  );
}

/** The driver's own name of a status. Works on a lost device too. */
function statusName(driver: CudaDriver, status: number): string {
  const name: [string | null] = [null];
  return driver.cuGetErrorName(status, name) === CUDA_SUCCESS && name[0] !== null ? name[0] : 'an unknown status';
}

/** The context that this thread made current last; each thread loads its own copy of this module. */
let currentHandle = 0;

/** Something that belongs to a context and must go before it. */
interface ContextResource extends Disposable {
  readonly disposed: boolean;
}

/** Work that goes on until it is told to end. */
export interface StayingWork {
  /** Nothing is to follow what was enqueued. */
  leave: () => void;
  /** What it waits for is not to be waited for any more. */
  giveUp: () => void;
}

/** `stream`: the CUstream whose work is waited for. */
type Verdict = (isDone: boolean, stream: number | undefined) => void;

export class CudaContext implements Disposable {
  readonly driver: CudaDriver;
  readonly ordinal: number;
  /** CUdevice. */
  readonly device: number;
  /** CUcontext. */
  readonly handle: number;
  /** The kernel launched last, for the error of a kernel that fails later. */
  lastLaunch = '';
  /** Counts what was enqueued on any stream. */
  workCount = 0;
  /** What is enqueued is recorded and does not run; see device.capture(). */
  isCapturing = false;
  /** Meanwhile, told each number that a recorded call passes: the graph keeps the memory that it is an address of. */
  holdRecorded: ((address: number) => void) | undefined;
  #lost: WeftlineError | undefined;
  #disposed = false;
  readonly #resources = new Set<ContextResource>();
  readonly #verdicts = new Set<Verdict>();
  /** Calls that run, of which the host still has steps to enqueue. */
  readonly #hostCalls = new Set<{ readonly what: string }>();
  /** Told to end before the device is closed: releasing memory waits for it in the driver, without a deadline. */
  readonly stayingWork: Set<StayingWork> = new Set();
  /** How to end what uses memory of this context by itself, threads or other ranks: all has ended before the device is closed. */
  readonly threads: Set<() => Promise<void>> = new Set();

  /** Retains the primary context, which the process shares with other CUDA libraries. Fails with WL_CUDA or WL_UNSUPPORTED. */
  static retain(ordinal: number, driver: CudaDriver = cudaDriver): CudaContext {
    const fail = (call: CudaCall, status: number): void => {
      if (status !== CUDA_SUCCESS) throw cudaError(driver, { call, status, device: ordinal });
    };
    fail('cuInit', driver.cuInit(0));
    const device: Out = [0];
    fail('cuDeviceGet', driver.cuDeviceGet(device, ordinal));
    const handle: Out = [0];
    fail('cuDevicePrimaryCtxRetain', driver.cuDevicePrimaryCtxRetain(handle, device[0]));
    return new CudaContext(driver, ordinal, { device: device[0], handle: handle[0] });
  }

  private constructor(driver: CudaDriver, ordinal: number, native: { device: number; handle: number }) {
    this.driver = driver;
    this.ordinal = ordinal;
    this.device = native.device;
    this.handle = native.handle;
  }

  /** The error that ended the device for this process, if one did. */
  get lost(): WeftlineError | undefined {
    return this.#lost;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  /** Calls the driver with this context current. Fails with WL_CUDA, or WL_CLOSED after close(). */
  call<Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): void {
    this.check(name, this.status(name, ...parameters));
  }

  /** The same, for calls whose status is an answer. */
  status<Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): number {
    this.enter();
    if (this.holdRecorded !== undefined) {
      for (const value of parameters) if (typeof value === 'number') this.holdRecorded(value);
    }
    const run = this.driver[name] as (...given: readonly unknown[]) => number;
    return run(...parameters);
  }

  /** Call this before any driver call: it fails on a lost or closed device, and makes the context current. */
  enter(): void {
    if (this.#lost !== undefined) throw this.#lostError(this.#lost);
    if (this.#disposed) throw new WeftlineError('WL_CLOSED', `The device of GPU ${this.ordinal} was closed`);
    if (currentHandle === this.handle) return;
    const status = this.driver.cuCtxSetCurrent(this.handle);
    this.check('cuCtxSetCurrent', status);
    currentHandle = this.handle;
  }

  /** Fails with WL_UNSUPPORTED while a graph is recorded, which `what` cannot be part of. */
  refuseCapture(what: string): void {
    if (!this.isCapturing) return;
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `Cannot record ${what} in a graph: do it before or after device.capture()`,
      { details: { what } },
    );
  }

  /**
   * A call begins of which the host enqueues steps as they become possible, so that none may be recorded meanwhile. Returns a
   * function that ends this.
   */
  beginHostCall(what: string): () => void {
    const call = { what };
    this.#hostCalls.add(call);
    return () => void this.#hostCalls.delete(call);
  }

  /** Call this before a recording: it fails with WL_UNSUPPORTED while such a call runs, whose next steps would become part of the graph. */
  refuseHostCalls(): void {
    if (this.#hostCalls.size === 0) return;
    const what = [...new Set([...this.#hostCalls].map((call) => call.what))].join(', ');
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `Cannot record a graph on GPU ${this.ordinal} while calls run whose steps the host makes, expected none, running ${this.#hostCalls.size} (${what}): await them before device.capture()`,
      { details: { what, calls: this.#hostCalls.size } },
    );
  }

  /** Turns a status into an error; a sticky one marks the device as lost. */
  check(call: CudaCall, status: number, subject?: string): void {
    if (status === CUDA_SUCCESS) return;
    const error = cudaError(this.driver, {
      call,
      status,
      device: this.ordinal,
      ...(subject === undefined ? {} : { subject }),
      ...(this.lastLaunch === '' ? {} : { lastLaunch: this.lastLaunch }),
    });
    if (isSticky(status)) this.#lost ??= error;
    throw error;
  }

  /** A call for destructors: it never throws, and does nothing on a lost device, whose resources go with the process. */
  release<Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): void {
    if (this.#lost !== undefined || this.#disposed) return;
    try {
      const status = this.status(name, ...parameters);
      if (isSticky(status)) this.check(name, status);
    } catch {
      // The device was lost just now; the next call that can throw says so.
    }
  }

  /** What is added here is disposed before the context, the newest first, unless its owner did it before. */
  own<Resource extends ContextResource>(resource: Resource): Resource {
    this.#resources.add(resource);
    return resource;
  }

  disown(resource: ContextResource): void {
    this.#resources.delete(resource);
  }

  /**
   * Called while the host waits for device work, and after it; throws when that work left without doing what it was to do, so
   * that nobody takes its results for good. It is told whether the work is done, and of which stream it is if that is known.
   * Returns a function that ends this.
   */
  judgeWaits(verdict: Verdict): () => void {
    this.#verdicts.add(verdict);
    return () => this.#verdicts.delete(verdict);
  }

  /** Judges each look of a wait and returns what it saw: fails with what any judge finds, which may end the work awaited. */
  isGood(done: boolean, stream?: number): boolean {
    for (const verdict of this.#verdicts) verdict(done, stream);
    return done;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    for (const resource of [...this.#resources].toReversed()) resource[Symbol.dispose]();
    this.#resources.clear();
    if (this.#lost === undefined) this.driver.cuDevicePrimaryCtxRelease(this.device);
    this.#disposed = true;
    if (currentHandle === this.handle) currentHandle = 0;
  }

  #lostError(first: WeftlineError): WeftlineError {
    return new WeftlineError('WL_CUDA', `GPU ${this.ordinal} is lost to this process since: ${first.message}`, {
      details: first.details,
      cause: first,
    });
  }
}

/** What belongs to a context and is given back once: by whoever made it, or with the context. */
export abstract class OwnedResource implements ContextResource {
  /** @internal */
  readonly context: CudaContext;
  #disposed = false;

  /** What was made is then to be given to context.own(). */
  constructor(context: CudaContext) {
    this.context = context;
  }

  /** True once it was given back. */
  get disposed(): boolean {
    return this.#disposed;
  }

  /** Gives back what was made; never throws. @internal */
  abstract release(): void;

  /** No work that uses it may be running. Idempotent. */
  close(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.context.disown(this);
    this.release();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** How many GPUs this process may use; 0 where there is no driver. */
export function cudaDeviceCount(): number;
/** @internal By another driver. */
export function cudaDeviceCount(driver: CudaDriver): number;
export function cudaDeviceCount(driver: CudaDriver = cudaDriver): number {
  const count: Out = [0];
  try {
    if (driver.cuInit(0) !== CUDA_SUCCESS) return 0;
    return driver.cuDeviceGetCount(count) === CUDA_SUCCESS ? count[0] : 0;
  } catch (error) {
    if (error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED') return 0;
    throw error;
  }
}
