// Memory that is registered with UCX, by the numbers that requests name it by, and the names that peers ask for.
import { randomBytes } from 'node:crypto';
import { WeftlineError } from '../../../core/errors.ts';
import type { OwnMemory, RemoteKeys } from '../../rdma/rdma-device.ts';
import type { UcxContext } from './ucx-context.ts';
import type { UcxWorker } from './ucx-worker.ts';

export class UcxMemories {
  readonly #context: UcxContext;
  readonly #handles: number[] = [];
  readonly #unused: number[] = [];
  readonly #names = new Set<string>();

  constructor(context: UcxContext) {
    this.#context = context;
  }

  /** Fails with WL_CAPACITY where a limit is reached. */
  register(address: number, bytes: number): OwnMemory {
    const handle = this.#map(address, bytes);
    const name = randomBytes(KEY_NAME_BYTES);
    const text = name.toString('hex');
    const number = this.#unused.pop() ?? this.#handles.length;
    this.#handles[number] = handle;
    this.#names.add(text);
    const remoteKey = new Uint8Array(Buffer.concat([name, this.#context.pack(handle)]));
    const close = (): void => {
      // ORDER: a peer that was refused asks, and must not hear that the memory is still there.
      if (!this.#names.delete(text)) return;
      this.#context.unmap(handle);
      this.#unused.push(number);
    };
    return { localKey: number, remoteKey, close };
  }

  isRegistered(name: string): boolean {
    return this.#names.has(name);
  }

  /** Hot path. */
  handleOf(number: number): number {
    return this.#handles[number]!;
  }

  /** All that is still registered. */
  close(): void {
    for (const [number, handle] of this.#handles.entries()) {
      if (!this.#unused.includes(number)) this.#context.unmap(handle);
    }
    this.#names.clear();
  }

  #map(address: number, bytes: number): number {
    try {
      return this.#context.map(address, bytes);
    } catch (cause) {
      if (!(cause instanceof WeftlineError)) throw cause;
      throw new WeftlineError('WL_CAPACITY', cause.message, { cause, details: cause.details });
    }
  }
}

// Keys of one peer's memory, which UCX has to unpack for each endpoint anew.

/** The name of a region, by which its owner tells whether it is still registered, then UCX's key. */
const KEY_NAME_BYTES = 8;
const MAX_KEY_BYTES = 1000;

export class UcxKeys implements RemoteKeys {
  readonly #packed: (Uint8Array | undefined)[] = [];
  readonly #names: string[] = [];
  /** UCX's handles for the endpoint; 0 until they are needed. */
  readonly #handles: number[] = [];
  readonly #unused: number[] = [];
  #worker: UcxWorker | undefined;
  #endpoint = 0;

  add(key: Uint8Array): number | undefined {
    if (key.length <= KEY_NAME_BYTES || key.length > MAX_KEY_BYTES) return undefined;
    const number = this.#unused.pop() ?? this.#packed.length;
    this.#packed[number] = key.slice(KEY_NAME_BYTES);
    this.#names[number] = Buffer.from(key.subarray(0, KEY_NAME_BYTES)).toString('hex');
    this.#handles[number] = 0;
    return number;
  }

  remove(number: number): void {
    this.#forget(number);
    this.#packed[number] = undefined;
    this.#unused.push(number);
  }

  namesOf(numbers: Iterable<number>): ReadonlyMap<number, string> {
    return new Map([...numbers].map((number) => [number, this.#names[number]!]));
  }

  /** Makes the keys those of this endpoint from now on. */
  attach(worker: UcxWorker, endpoint: number): void {
    // Handles of an endpoint that UCX has not ended stay with it.
    this.#handles.fill(0);
    this.#worker = worker;
    this.#endpoint = endpoint;
  }

  /** The endpoint is over. */
  detach(endpoint: number): void {
    if (endpoint !== this.#endpoint) return;
    for (let number = 0; number < this.#handles.length; number++) this.#forget(number);
    this.#endpoint = 0;
  }

  /** Hot path. Fails with WL_NATIVE if UCX does not understand the key. */
  handleOf(number: number): number {
    const handle = this.#handles[number]!;
    if (handle !== 0) return handle;
    const made = this.#worker!.unpack(this.#endpoint, this.#packed[number]!);
    this.#handles[number] = made;
    return made;
  }

  #forget(number: number): void {
    const handle = this.#handles[number]!;
    if (handle !== 0) this.#worker!.forgetKey(handle);
    this.#handles[number] = 0;
  }
}
