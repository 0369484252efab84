// The record in which kernels of a device report a wait that expired, and how that becomes an error with names.
import { Block } from '../../abi/layout.ts';
import { trapKernels, trapReasons, trapRecord, trapStates } from '../../abi/trap-record.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaContext } from './cuda-context.ts';
import { HostMemory } from './host-memory.ts';

/** A wait of a kernel that ended without what it waited for. */
export interface ExpiredWait {
  readonly kernel: string;
  readonly rank: number;
  readonly peer: number;
  readonly channel: number;
  readonly expected: number;
  readonly seen: number;
  readonly timeoutMs: number;
  /** One of trapReasons. */
  readonly reason: number;
}

/** What the host adds to a cell `abort` of networkCells when the peer has closed its side; the peer itself adds 1. */
const PEER_CLOSED = 2 ** 32;

/** The device has one for its users' kernels; an object whose waits must end on their own makes one for itself. */
export class TrapBox implements Disposable {
  readonly #memory: HostMemory;
  readonly #record: Block<keyof typeof trapRecord.offset>;
  readonly #state: Int32Array;
  #abortedBy: unknown;

  constructor(context: CudaContext) {
    this.#memory = new HostMemory(context, trapRecord.size);
    this.#record = new Block(trapRecord, this.#memory.buffer, 0);
    this.#state = this.#memory.view('i32', trapRecord.offset.state, 1);
  }

  /** Address for the kernels' WaitScope. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  /** Kernels that wait leave within a few milliseconds, and throwIfExpired() throws `reason` from then on. */
  abort(reason: unknown): void {
    this.#abortedBy ??= reason;
    if (!this.#memory.disposed) this.#record.set('abort', 1);
  }

  /**
   * To be called when a kernel that waits has ended. Fails with WL_TIMEOUT; with WL_CONFIG_MISMATCH when a peer arrived in
   * another call; with WL_PEER_FAILED or WL_PEER_LOST when a peer on another host gave up, is out of reach, or closed its
   * side. Afterwards the record is empty again, and the device as usable as before. `describeChannel` says what the kernel's
   * channel number means; `ranks` are the world ranks of those that the kernel counts; `explain` knows
   * reasons of its kernels alone.
   */
  throwIfExpired(
    describeChannel: (channel: number) => string = (channel) => `channel ${channel}`,
    ranks: readonly number[] = [],
    explain?: (trap: ExpiredWait) => WeftlineError | undefined,
  ): void {
    const trap = this.takeExpired(ranks);
    if (trap === undefined) return;
    const explained = explain?.(trap);
    if (explained !== undefined) throw explained;
    const { reason, ...details } = trap;
    if (reason === trapReasons.otherCall) {
      const [here, there] = [describeChannel(details.expected), describeChannel(details.seen)];
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `Rank ${details.rank} is in ${here}, but rank ${details.peer} is in ${there}; all ranks must make the same calls in the same order`,
        { details: { ...details, here, there } },
      );
    }
    const waited = `Kernel ${details.kernel} of rank ${details.rank} waited for rank ${details.peer} (${describeChannel(details.channel)})`;
    // One that gave up closes its side then, which says less.
    if (reason === trapReasons.peerGaveUp && details.seen % PEER_CLOSED === 0) {
      const message = `${waited}, which closed its side while other ranks were in a call`;
      throw new WeftlineError('WL_PEER_LOST', message, { details, rank: details.peer });
    }
    if (reason === trapReasons.peerGaveUp) {
      const message = `Rank ${details.peer}, on another host, gave up a call that kernel ${details.kernel} of rank ${details.rank} is in (${describeChannel(details.channel)})`;
      throw new WeftlineError('WL_PEER_FAILED', message, { details, rank: details.peer });
    }
    if (reason === trapReasons.commandFailed) {
      const message = `The host could not carry out what kernel ${details.kernel} of rank ${details.rank} had for rank ${details.peer}, on another host`;
      throw new WeftlineError('WL_PEER_FAILED', message, { details });
    }
    throw new WeftlineError(
      'WL_TIMEOUT',
      `Kernel ${details.kernel} of rank ${details.rank} waited ${details.timeoutMs} ms for rank ${details.peer} (${describeChannel(details.channel)}: expected ${details.expected}, seen ${details.seen}); rank ${details.peer} may still compute (raise --timeout), wait elsewhere, or have ended`,
      { details },
    );
  }

  /** The record, which is empty again then; undefined if no wait has expired. Throws the reason of abort(). */
  takeExpired(ranks: readonly number[] = []): ExpiredWait | undefined {
    if (this.#abortedBy !== undefined) throw this.#abortedBy;
    if (Atomics.load(this.#state, 0) !== trapStates.readable) return undefined;
    const read = (field: keyof typeof trapRecord.offset): number => this.#record.get(field);
    const worldRank = (field: 'rank' | 'peer'): number => ranks[read(field)] ?? read(field);
    const number = read('kernel');
    const expired = {
      kernel: Object.entries(trapKernels).find(([, value]) => value === number)?.[0] ?? `kernel ${number}`,
      rank: worldRank('rank'),
      peer: worldRank('peer'),
      channel: read('channel'),
      expected: read('expected'),
      seen: read('seen'),
      timeoutMs: read('timeoutNs') / 1e6,
      reason: read('reason'),
    };
    Atomics.store(this.#state, 0, trapStates.empty);
    return expired;
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }
}
