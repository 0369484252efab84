// What the device API's kernels report to their host and what it tells them: the trap record of one DeviceHost.
import { Block } from '../../abi/layout.ts';
import { TRAP_ANY_PEER, trapReasons, trapRecord, trapStates } from '../../abi/trap-record.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { Fence } from '../../device/cuda/work-fence.ts';

export interface DeviceTrapsOptions {
  readonly device: CudaDevice;
  readonly agent: string;
  /** By the number that requests carry. */
  readonly peerName: (number: number) => string | undefined;
}

export class DeviceTraps implements Disposable {
  readonly #options: DeviceTrapsOptions;
  readonly #memory: HostMemory;
  readonly #record: Block<keyof typeof trapRecord.offset>;
  readonly #state: Int32Array;
  #abortedBy: WeftlineError | undefined;
  /** The last abort that was told. Kernels of other streams may leave, and say so, after that. */
  #toldAbort: WeftlineError | undefined;
  /** Passed when no kernel runs any more that is to leave. */
  #leaving: Fence | undefined;

  constructor(options: DeviceTrapsOptions) {
    this.#options = options;
    this.#memory = options.device.allocateHost(trapRecord.size);
    this.#record = new Block(trapRecord, this.#memory.buffer, 0);
    this.#state = this.#memory.view('i32', trapRecord.offset.state, 1);
  }

  get address(): number {
    return this.#memory.deviceAddress;
  }

  /** Kernels that wait leave within a few milliseconds; take() then returns the error once. */
  abort(reason: WeftlineError): void {
    this.#abortedBy ??= reason;
    this.#leaving = undefined;
    this.#record.set('abort', 1);
  }

  /**
   * Why a kernel left early; undefined if none did. The record is empty again. An abort is told when the work that was
   * waited for is done: kernels see it until all of them have left; only then is the caller told, so that it may launch others.
   */
  take(isDone: boolean): WeftlineError | undefined {
    if (this.#leaving?.isPassed() === true) this.#endAbort();
    if (this.#abortedBy !== undefined && !isDone) return undefined;
    const isReadable = Atomics.load(this.#state, 0) === trapStates.readable;
    const error = isReadable ? this.#describe() : undefined;
    if (isReadable) Atomics.store(this.#state, 0, trapStates.empty);
    const aborted = this.#abortedBy;
    if (aborted !== undefined) {
      this.#abortedBy = undefined;
      this.#toldAbort = aborted;
      const leaving = this.#options.device.workFence();
      if (leaving.isPassed()) this.#endAbort();
      else this.#leaving = leaving;
    }
    return aborted ?? error;
  }

  #endAbort(): void {
    this.#leaving = undefined;
    this.#record.set('abort', 0);
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }

  #describe(): WeftlineError {
    const read = (field: keyof typeof trapRecord.offset): number => this.#record.get(field);
    const { agent, peerName } = this.#options;
    const number = read('peer');
    const peer = number === TRAP_ANY_PEER ? 'its peers' : (peerName(number) ?? `peer ${number}`);
    const details = {
      agent,
      peer,
      channel: read('channel'),
      expected: read('expected'),
      seen: read('seen'),
      timeoutMs: read('timeoutNs') / 1e6,
    };
    const { channel, expected, seen, timeoutMs } = details;
    const reason = read('reason');
    if (reason === trapReasons.aborted && this.#toldAbort !== undefined) return this.#toldAbort;
    if (reason === trapReasons.outOfRange && (seen === 0 || expected === 0)) {
      const message = `A kernel of ${agent} named a counter or a cell of ${peer} that is not aligned: counters lie at multiples of 8, cells of words at multiples of 16; nothing was written`;
      return new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
    }
    if (reason === trapReasons.outOfRange) {
      const message = `A kernel of ${agent} named a range for ${peer} that ends at ${seen}, outside of ${expected} (bytes, or ranges of the request); nothing was written`;
      return new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
    }
    if (reason === trapReasons.missingLanes) {
      const message = `A kernel of ${agent} made a call at warp level for ${peer} by the lanes ${maskText(seen)} without the others it needs (${maskText(expected)}); nothing was written. Puts need all 32 lanes of a warp until the deadline; a signal needs lane 0, and a __syncwarp() before it where lanes have gone different ways`;
      return new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
    }
    if (reason === trapReasons.unknownFlags) {
      const message = `Invalid flags of a post to ${peer} by a kernel of ${agent}: expected 0 or ${expected} (defer), got ${seen}; nothing was written`;
      return new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
    }
    if (reason === trapReasons.commandFailed) {
      const message = `A kernel of ${agent} left because the host could not carry out a command of request ${seen}`;
      return new WeftlineError('WL_PEER_FAILED', message, { details });
    }
    return new WeftlineError(
      'WL_TIMEOUT',
      `A kernel of ${agent} waited ${timeoutMs} ms for ${peer} (channel ${channel}: expected ${expected}, seen ${seen}); ${peer} may still compute, or have ended`,
      { details },
    );
  }
}

/** Lanes of a warp. */
function maskText(lanes: number): string {
  return `0x${lanes.toString(16).padStart(8, '0')}`;
}
