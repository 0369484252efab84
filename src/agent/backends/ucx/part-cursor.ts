// The part of an operation that is sent next, as numbers. Hot path: no allocation.
import { PART_FIELDS, partField } from '../../../abi/ucx-words.ts';
import type { LinkBlock } from './link-block.ts';
import { operationKinds } from './operation-kinds.ts';

export class PartCursor {
  /** Native address, bytes, UCX's handle of the memory. */
  local = 0;
  bytes = 0;
  memory = 0;
  /** Of the peer: offset in the region, its name, its place in UcxTables or -1. */
  remoteOffset = 0;
  region = 0;
  key = 0;
  remote = -1;
  readonly #block: LinkBlock;
  readonly #partsOf: (slot: number) => Float64Array;

  constructor(block: LinkBlock, partsOf: (slot: number) => Float64Array) {
    this.#block = block;
    this.#partsOf = partsOf;
  }

  load(entry: number): void {
    const block = this.#block;
    if (block.kind[entry]! >= operationKinds.put) {
      this.local = block.local[entry]!;
      this.remoteOffset = block.remoteOffset[entry]!;
      this.bytes = block.size[entry]!;
      this.region = block.region[entry]!;
      this.key = block.key[entry]!;
      this.memory = block.memory[entry]!;
      this.remote = block.remote[entry]!;
      return;
    }
    const parts = this.#partsOf(block.slot[entry]!);
    const first = block.cursor[entry]! * PART_FIELDS;
    this.local = parts[first + partField.local]!;
    this.remoteOffset = parts[first + partField.remoteOffset]!;
    this.bytes = parts[first + partField.bytes]!;
    this.region = parts[first + partField.region]!;
    this.key = parts[first + partField.key]!;
    this.memory = parts[first + partField.memory]!;
    this.remote = parts[first + partField.remote]!;
  }
}
