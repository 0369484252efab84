// Devices and the memory of them that a staging thread reaches: copies to and from rings, additions to counters.
import { randomBytes } from 'node:crypto';
import { WeftlineError } from '../../core/errors.ts';
import { copyMemory } from '../../native/libc.ts';
import { viewAt } from '../../native/library.ts';
import type { Settings } from '../../settings/settings.ts';
import type { BackendRegion } from '../backend.ts';
import { type MakeStorage, plainStorage, type RingShape } from './ring.ts';

/** `out`: from the device's memory to a ring. `in`: from a ring to the device's memory, where additions are made too. */
const ways = ['out', 'in'] as const;
export type CopyWay = (typeof ways)[number];

/** Ranges of a device's memory, each with its place in a ring, that are copied together. Made once and filled again. */
export class CopyRun {
  /** Where places in the ring count from. */
  address = 0;
  readonly memory: Float64Array;
  readonly place: Float64Array;
  readonly bytes: Float64Array;
  count = 0;
  /** Bytes up to the end of the places. */
  length = 0;

  constructor(capacity: number) {
    this.memory = new Float64Array(capacity);
    this.place = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
  }

  begin(address: number): void {
    this.address = address;
    this.count = 0;
    this.length = 0;
  }

  add(memory: number, place: number, bytes: number): void {
    const at = this.count++;
    this.memory[at] = memory;
    this.place[at] = place;
    this.bytes[at] = bytes;
    this.length = Math.max(this.length, place + bytes);
  }
}

/** There is no room for more work now. */
export const NO_TICKET = -1;

/** Hot path but for `ready` and `close`. What goes one way is carried out in order. */
export interface DeviceCopies {
  /** Resolves when nothing more has to be loaded, which could wait for a running kernel. */
  readonly ready: Promise<void>;
  /** The ticket of the work; NO_TICKET if there is no room for it now. Fails with the device's error. */
  copy(way: CopyWay, run: CopyRun): number;
  /** Adds to a cell of 64 bits, after all that was copied in before. `sum` is what it then holds, -1 if that is not known. */
  add(address: number, value: number, sum: number): number;
  /** That work, and all before it on this way, is done and visible. Fails with the device's error. */
  isDone(way: CopyWay, ticket: number): boolean;
  /** The ticket of the latest work. */
  latest(way: CopyWay): number;
  /** Work is under way: nobody rings when it ends. */
  readonly isBusy: boolean;
  close(): Promise<void>;
}

/** Copies to and from host memory: made by this thread, at once. */
export class PlainCopies implements DeviceCopies {
  readonly ready: Promise<void> = Promise.resolve();
  readonly isBusy = false;
  #cellAddress = 0;
  #cell = new BigUint64Array(1);

  copy(way: CopyWay, { address, memory, place, bytes, count }: CopyRun): number {
    for (let at = 0; at < count; at++) {
      if (way === 'out') copyMemory(address + place[at]!, memory[at]!, bytes[at]!);
      else copyMemory(memory[at]!, address + place[at]!, bytes[at]!);
    }
    return 0;
  }

  /** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
  add(address: number, value: number): number {
    if (this.#cellAddress !== address) {
      this.#cellAddress = address;
      this.#cell = new BigUint64Array(viewAt(address, 8));
    }
    Atomics.add(this.#cell, 0, BigInt(value));
    return 0;
  }

  isDone(): boolean {
    return true;
  }

  latest(): number {
    return 0;
  }

  async close(): Promise<void> {}
}

/** A GPU as this thread uses it. */
export interface StagingGpu {
  readonly copies: DeviceCopies;
  /** Host memory that it copies from and to at full speed. */
  readonly makeStorage: MakeStorage;
  close(): Promise<void>;
}

/** `shape`: of this side's own rings. */
export type OpenGpu = (ordinal: number, settings: Settings, shape: RingShape) => Promise<StagingGpu>;

/** The devices of a staging thread: host memory, and GPUs from their first memory on. */
export class DeviceTable {
  readonly #openGpu: (ordinal: number) => Promise<StagingGpu>;
  readonly #plain = new PlainCopies();
  readonly #opening = new Map<number, Promise<StagingGpu>>();
  readonly #gpus: StagingGpu[] = [];

  constructor(openGpu: (ordinal: number) => Promise<StagingGpu>) {
    this.#openGpu = openGpu;
  }

  /** `ordinal`: of a GPU; undefined for the host. */
  async copiesOf(ordinal: number | undefined): Promise<DeviceCopies> {
    if (ordinal === undefined) return this.#plain;
    let opening = this.#opening.get(ordinal);
    if (opening === undefined) {
      opening = this.#openGpu(ordinal);
      this.#opening.set(ordinal, opening);
      opening.then(
        (gpu) => this.#gpus.push(gpu),
        () => this.#opening.delete(ordinal),
      );
    }
    return (await opening).copies;
  }

  /** Makes memory of rings: GPUs copy from and to it, once there are some. */
  get makeStorage(): MakeStorage {
    return this.#gpus[0]?.makeStorage ?? plainStorage;
  }

  /** Nobody rings when its work ends. */
  get isBusy(): boolean {
    for (const { copies } of this.#gpus) if (copies.isBusy) return true;
    return false;
  }

  /** Tells whether everything is done that devices have under way now. A device that has failed does nothing more. */
  fence(): () => boolean {
    const marks = this.#gpus.flatMap(({ copies }) => ways.map((way) => ({ copies, way, ticket: copies.latest(way) })));
    return () => marks.every(isDone);
  }

  async close(): Promise<void> {
    // Nobody asks a GPU that is being closed whether it is busy.
    const gpus = this.#gpus.splice(0);
    for (const gpu of gpus) await gpu.close();
  }
}

function isDone({ copies, way, ticket }: { copies: DeviceCopies; way: CopyWay; ticket: number }): boolean {
  try {
    return copies.isDone(way, ticket);
  } catch (error) {
    if (error instanceof WeftlineError) return true;
    throw error;
  }
}

export interface StagedMemory {
  readonly number: number;
  readonly key: number;
  readonly address: number;
  readonly bytes: number;
  readonly copies: DeviceCopies;
  readonly isOffered: boolean;
  /** Host memory that the thread's backend sends from without a copy. */
  readonly region?: BackendRegion | undefined;
  /** False from the begin of its release on. */
  isOpen: boolean;
}

/** By number, with the key that peers must name. */
export class MemoryTable {
  readonly #memory: (StagedMemory | undefined)[] = [];
  readonly #free: number[] = [];

  add(parts: Omit<StagedMemory, 'number' | 'key' | 'isOpen'>): StagedMemory {
    const number = this.#free.pop() ?? this.#memory.length;
    // Numbers are used again, keys are not.
    const memory = { ...parts, number, key: randomBytes(6).readUIntLE(0, 6), isOpen: true };
    this.#memory[number] = memory;
    return memory;
  }

  /** Memory of this side. Fails with WL_CLOSED for memory that was released. */
  get(number: number): StagedMemory {
    const memory = this.#memory[number];
    if (memory?.isOpen === true) return memory;
    throw new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
  }

  /** What it was is returned; nobody begins anything with it any more. */
  close(number: number): StagedMemory | undefined {
    const memory = this.#memory[number];
    if (memory !== undefined) memory.isOpen = false;
    return memory;
  }

  /** What a peer names; undefined unless it is offered to peers under this key. Hot path. */
  find(number: number, key: number): StagedMemory | undefined {
    const memory = this.#memory[number];
    return memory?.isOpen === true && memory.isOffered && memory.key === key ? memory : undefined;
  }

  /** Nothing touches it any more. */
  remove({ number }: StagedMemory): void {
    if (this.#memory[number] === undefined) return;
    this.#memory[number] = undefined;
    this.#free.push(number);
  }
}
