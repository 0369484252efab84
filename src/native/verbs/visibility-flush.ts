// Tells a kernel of blocks that the device has written into its memory, once they are visible there: three ways.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { NativeBlock } from '../library.ts';
import { sendFlag, sendOpcode } from './c-structs.ts';
import { CompletionQueue } from './completion-queue.ts';
import type { ProtectionDomain } from './context.ts';
import type { DeviceAttributes } from './facts.ts';
import { MemoryRegion } from './memory-region.ts';
import { QueuePair, type VerbsPath } from './queue-pair.ts';

/** Registered memory: an address and the key by which requests name it. */
interface FlushPlace {
  readonly address: number;
  readonly key: number;
}

interface FlushOptions {
  readonly domain: ProtectionDomain;
  /** Path to the port itself. */
  readonly path: VerbsPath;
  readonly mtu: number;
  readonly way: FlushWay;
  /** Place of the blocks; any byte of it is read. For `read`. */
  readonly data?: FlushPlace;
  /** The flag word, 8 bytes: for `fetch-add`, registered with remoteAtomic. */
  readonly flag?: FlushPlace;
  /** The flag word as the host maps it, for `read` and `mapped`. */
  readonly mappedFlag?: BigInt64Array;
}

/** Requests under way. A power of two. */
const REQUESTS = 64;
const RESULT_BYTES = 8;

/** The flag word is one more for each block, behind its bytes. One thread. */
export class VisibilityFlush implements Disposable {
  readonly way: FlushWay;
  /** Region to which the old value of the flag goes: one of nothing, or, where the driver has none, memory that nobody reads. */
  readonly oldValue: 'null region' | 'memory' | 'none';
  readonly #options: FlushOptions;
  readonly #completions: CompletionQueue | undefined;
  readonly #queuePair: QueuePair | undefined;
  readonly #result: FlushPlace = { address: 0, key: 0 };
  readonly #resources: Disposable[] = [];
  readonly #scratch = new NativeBlock(RESULT_BYTES);
  /** Blocks that wait for a read, and those that the read under way is for. */
  #waiting = 0;
  #reading = 0;
  /** Signalled requests that are under way. */
  #underWay = 0;

  /** Fails with WL_INVALID_ARGUMENT without what the way needs, with WL_CAPACITY where a limit of the device is reached. */
  constructor(options: FlushOptions) {
    const { way, domain } = options;
    this.way = way;
    this.#options = options;
    requirePlaces(options);
    this.oldValue = 'none';
    if (way === 'mapped') return;
    try {
      this.#completions = this.#keep(new CompletionQueue(domain.context, REQUESTS));
      const queues = { sendCompletions: this.#completions, receiveCompletions: this.#completions };
      this.#queuePair = this.#keep(new QueuePair(domain, { service: 'rc', ...queues, maxSends: REQUESTS }));
      connectToItself(this.#queuePair, options);
      const nothing = way === 'fetch-add' ? nullRegion(domain) : undefined;
      if (nothing !== undefined) {
        this.oldValue = 'null region';
        this.#result = { address: 0, key: this.#keep(nothing).localKey };
      } else {
        this.oldValue = way === 'fetch-add' ? 'memory' : 'none';
        const region = this.#keep(MemoryRegion.host(domain, this.#scratch.address, RESULT_BYTES));
        this.#result = { address: this.#scratch.address, key: region.localKey };
      }
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  /**
   * Hot path. A block is written: the completion of its request has been taken. Call poll() until `isDone` after the last.
   * @param isLast Of those that are waited for: only its request is signalled.
   * @returns False, with nothing told, if too much is under way: poll().
   */
  block(isLast: boolean): boolean {
    if (this.way === 'fetch-add') return this.#fetchAdd(isLast);
    if (this.way === 'mapped') this.#addToFlag(1);
    else {
      this.#waiting++;
      if (this.#reading === 0) this.#read();
    }
    return true;
  }

  /** Every block up to the last one that was said to be the last is told. */
  get isDone(): boolean {
    return this.#underWay === 0 && this.#waiting === 0;
  }

  /** Hot path. Takes in what is done. Fails with WL_NATIVE if the device has failed. */
  poll(): void {
    const queue = this.#completions;
    if (queue === undefined || this.#underWay === 0) return;
    const count = queue.poll();
    for (let index = 0; index < count; index++) {
      if (!queue.isSuccess(index)) throw queue.errorAt(index, `Flushing writes (${this.way})`);
      this.#queuePair!.sends.doneUntil(queue.sequenceAt(index));
      this.#underWay--;
    }
    if (count === 0 || this.way !== 'read') return;
    this.#addToFlag(this.#reading);
    this.#reading = 0;
    if (this.#waiting > 0) this.#read();
  }

  [Symbol.dispose](): void {
    for (const resource of this.#resources.splice(0).toReversed()) resource[Symbol.dispose]();
  }

  #keep<T extends Disposable>(resource: T): T {
    this.#resources.push(resource);
    return resource;
  }

  #fetchAdd(isLast: boolean): boolean {
    const { sends } = this.#queuePair!;
    const { flag } = this.#options;
    // Half of a ring that nobody waits for is signalled too, so that it goes round.
    const isSignalled = isLast || sends.room <= REQUESTS / 2;
    if (!sends.start(sendOpcode.fetchAdd, isSignalled ? sendFlag.signaled : 0, 0)) return false;
    sends.add(this.#result.address, RESULT_BYTES, this.#result.key);
    sends.addend(flag!.address, flag!.key, 1, 0);
    sends.post();
    if (isSignalled) this.#underWay++;
    return true;
  }

  #read(): void {
    const { sends } = this.#queuePair!;
    const { data } = this.#options;
    sends.start(sendOpcode.read, sendFlag.signaled, 0);
    sends.add(this.#result.address, 1, this.#result.key);
    sends.target(data!.address, data!.key);
    sends.post();
    this.#underWay++;
    this.#reading = this.#waiting;
    this.#waiting = 0;
  }

  #addToFlag(count: number): void {
    Atomics.add(this.#options.mappedFlag!, 0, BigInt(count));
  }
}

function requirePlaces({ way, data, flag, mappedFlag }: FlushOptions): void {
  if (way === 'fetch-add' && flag === undefined) throw invalidArgument('flag', flag, 'the registered flag word');
  if (way === 'read' && data === undefined) throw invalidArgument('data', data, 'the registered memory of the blocks');
  if (way !== 'fetch-add' && mappedFlag === undefined) {
    throw invalidArgument('mappedFlag', mappedFlag, 'the flag word as the host maps it');
  }
}

/** Undefined where the driver has none. */
function nullRegion(domain: ProtectionDomain): MemoryRegion | undefined {
  try {
    return MemoryRegion.nothing(domain);
  } catch (error) {
    if (error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED') return undefined;
    throw error;
  }
}

function connectToItself(queuePair: QueuePair, { path, mtu }: FlushOptions): void {
  queuePair.initialize(path.port, { remoteRead: true, remoteAtomic: true });
  queuePair.connect({ number: queuePair.number, firstSequence: 0, path }, { mtu });
}

// Chooses the way that makes what a device has written visible to a GPU before its kernel is told, and says why.

/**
 * - `fetch-add`: the device adds to the flag word that the kernel polls, by an atomic on a queue pair that is connected to
 *   itself. The atomic travels behind the writes, so it flushes them and tells of them at once.
 * - `read`: the device reads one byte of the memory in the same way; the read pushes the writes before it. Then the host
 *   adds to the flag word.
 * - `mapped`: the host adds to the flag word through its mapping at once; nothing is flushed.
 */
export type FlushWay = 'fetch-add' | 'read' | 'mapped';

export interface FlushCapabilities {
  /** Whoever sees the flag sees what the device has written before: memory of the host, or a GPU that orders its PCI writes. */
  readonly isOrdered: boolean;
  /** Atomics as the device says: `none` without any. */
  readonly atomicCap: DeviceAttributes['atomicCap'];
  /** The device may write to the flag word: it lies in registered memory. */
  readonly isFlagRegistered: boolean;
  /** The host can write to the flag word. */
  readonly isFlagMapped: boolean;
}

export interface FlushChoice {
  readonly way: FlushWay;
  /** Reason, as the end of a sentence. */
  readonly reason: string;
}

/** The cheapest way that is enough. Undefined if there is none: neither device nor host can write to the flag word. */
export function chooseFlush(capabilities: FlushCapabilities): FlushChoice | undefined {
  const { isOrdered, atomicCap, isFlagRegistered, isFlagMapped } = capabilities;
  if (isOrdered && isFlagMapped) return { way: 'mapped', reason: 'this memory shows writes in their order' };
  if (isFlagRegistered && atomicCap !== 'none') {
    return { way: 'fetch-add', reason: `the device has atomics (${atomicCap}) and may write to the flag` };
  }
  if (!isFlagMapped) return undefined;
  const why = isFlagRegistered ? 'the device has no atomics' : 'the device may not write to the flag';
  return { way: 'read', reason: why };
}
