// The primary context of one GPU in this process: the way every driver call goes, and what remembers a lost device.
import { WeftlineError } from '../../core/errors.ts';
import { type CudaCall, type CudaDriver, cudaDriver } from '../../native/cuda-driver.ts';
import type { Out } from '../../native/library.ts';
import { CUDA_SUCCESS, cudaError, isSticky } from './cuda-status.ts';

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

  /** Calls the driver with this context current. Fails with WL_CUDA, or WL_CLOSED after dispose. */
  call<Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): void {
    this.check(name, this.status(name, ...parameters));
  }

  /** The same, for calls whose status is an answer. */
  status<Name extends CudaCall>(name: Name, ...parameters: Parameters<CudaDriver[Name]>): number {
    this.enter();
    if (this.holdRecorded !== undefined) {
      for (const value of parameters) if (typeof value === 'number') this.holdRecorded(value);
    }
    return this.driver[name](...parameters);
  }

  /** Before any driver call: fails on a lost or closed device, and makes the context current. */
  enter(): void {
    if (this.#lost !== undefined) throw this.#lostError(this.#lost);
    if (this.#disposed) throw new WeftlineError('WL_CLOSED', `The device of GPU ${this.ordinal} was disposed`);
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

  /** Before a recording: fails with WL_UNSUPPORTED while such a call runs, whose next steps would become part of the graph. */
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

  /** For destructors: never throws, and does nothing on a lost device, whose resources go with the process. */
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

  /** For each look of a wait, returning what it saw: fails with what any judge finds, which may end the work awaited. */
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
