// Memory that a staging thread reaches: by number, with the key that peers must name and the device that copies it.
import { randomBytes } from 'node:crypto';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendRegion } from '../backend.ts';
import type { DeviceCopies } from './device-copies.ts';

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
