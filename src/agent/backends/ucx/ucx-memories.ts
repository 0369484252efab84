// Memory that is registered with UCX, by the numbers that requests name it by, and the names that peers ask for.
import { randomBytes } from 'node:crypto';
import { WeftlineError } from '../../../core/errors.ts';
import type { OwnMemory } from '../../rdma/rdma-device.ts';
import type { UcxContext } from './ucx-context.ts';
import { KEY_NAME_BYTES } from './ucx-keys.ts';

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
