// What peers read of a store, one-sidedly: where its ranges lie, the generation of each block, which leases last. Readers write a
// mark for each lease there: how often they have renewed it, or that they have released it.
import { Block, defineLayout } from '../abi/layout.ts';
import type { Agent } from '../agent/agent.ts';
import { memoryKinds } from '../agent/backend.ts';
import type { Registration } from '../agent/registration.ts';
import { WeftlineError } from '../core/errors.ts';
import { KvRanges, MAX_KV_RANGES, WORD_BYTES } from './kv-memory.ts';

/** "WLKV" */
const TABLE_MAGIC = 0x564b_4c57;
const VERSION = 2;

/** Behind it lie the parts, then the leases, then a word for each block: its generation. */
const tableHead = defineLayout('KvTableHead', {
  magic: 'u32',
  version: 'u32',
  /** Index in memoryKinds. */
  kind: 'u32',
  blocks: 'u32',
  parts: 'u32',
  leases: 'u32',
});

const tablePart = defineLayout('KvTablePart', {
  address: 'u64',
  stride: 'u64',
  bytes: 'u64',
  /** As PartPlace has it. */
  label: 'u32',
  reserved: 'u32',
});

const tableLease = defineLayout('KvTableLease', {
  /** The lease that has the slot; 0 if none has. Written by the store. */
  id: 'u32',
  reserved: 'u32',
  /** Written by readers, both words at once: the lease they mean, and its mark. */
  markedId: 'u32',
  mark: 'u32',
});

export const MAX_LEASES: number = 1 << 20;
/** Most bytes of a table. */
export const MAX_TABLE_BYTES: number =
  tableHead.size + MAX_KV_RANGES * (tablePart.size + WORD_BYTES) + MAX_LEASES * tableLease.size;

/** By which peers find the table of a store among the memory of its agent. */
export function tableName(store: string): string {
  return `kv ${store}`;
}

/** The mark of a lease that its reader has released; others count renewals. */
export const RELEASED = 0xffff_ffff;
/** Bytes of the words of a mark. */
export const MARK_BYTES = 8;

interface TableSize {
  readonly blocks: number;
  readonly parts: number;
  readonly leases: number;
}

/** Offsets in the table. */
export class TablePlaces {
  readonly #size: TableSize;
  readonly bytes: number;
  readonly leases: number;

  constructor(size: TableSize) {
    this.#size = size;
    this.leases = size.leases;
    this.bytes = this.generation(size.blocks);
  }

  part(index: number): number {
    return tableHead.size + index * tablePart.size;
  }

  leaseId(slot: number): number {
    return this.part(this.#size.parts) + slot * tableLease.size + tableLease.offset.id;
  }

  mark(slot: number): number {
    return this.part(this.#size.parts) + slot * tableLease.size + tableLease.offset.markedId;
  }

  generation(block: number): number {
    return this.part(this.#size.parts) + this.#size.leases * tableLease.size + 4 * block;
  }
}

/** The store's side. */
export class KvTable {
  readonly registration: Registration;
  readonly #words: Int32Array;
  readonly #places: TablePlaces;
  readonly #blocks: number;

  /** Generations begin anywhere, odd: those of an earlier life of the store say nothing of this one. */
  static async create(agent: Agent, name: string, ranges: KvRanges, leases: number): Promise<KvTable> {
    const { blocks, parts, kind } = ranges;
    const size = { blocks, parts: parts.length, leases };
    const places = new TablePlaces(size);
    const registration = await agent.allocate(places.bytes, { name: tableName(name) });
    const { buffer, byteOffset } = registration.bytes;
    const head = new Block(tableHead, buffer, byteOffset);
    const fields = { ...size, magic: TABLE_MAGIC, version: VERSION, kind: memoryKinds.indexOf(kind) };
    for (const [field, value] of Object.entries(fields)) head.set(field as keyof typeof fields, value);
    for (const [index, part] of parts.entries()) {
      const block = new Block(tablePart, buffer, byteOffset + places.part(index));
      for (const field of ['address', 'stride', 'bytes', 'label'] as const) block.set(field, part[field]);
    }
    const table = new KvTable(registration, places, blocks);
    const start = crypto.getRandomValues(new Uint32Array(1))[0]! | 1;
    for (let block = 0; block < blocks; block++) table.#store(places.generation(block), start);
    return table;
  }

  private constructor(registration: Registration, places: TablePlaces, blocks: number) {
    this.registration = registration;
    const { bytes } = registration;
    this.#words = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length >>> 2);
    this.#places = places;
    this.#blocks = blocks;
  }

  /** The block is being written (odd), or holds what was sealed (even). Returns the generation. */
  advance(block: number): number {
    const place = this.#places.generation(block);
    return this.#store(place, this.#load(place) + 1);
  }

  /** Whoever reads from now on finds no block sealed, and no lease. */
  withdraw(leases: number): void {
    for (let slot = 0; slot < leases; slot++) this.setLease(slot, 0);
    for (let block = 0; block < this.#blocks; block++) {
      if (this.#load(this.#places.generation(block)) % 2 === 0) this.advance(block);
    }
  }

  setLease(slot: number, id: number): void {
    this.#store(this.#places.leaseId(slot), id);
  }

  /** The last mark that a reader has written for this lease; 0 if there is none. */
  markOf(slot: number, id: number): number {
    const place = this.#places.mark(slot);
    return this.#load(place) === id ? this.#load(place + 4) : 0;
  }

  #load(place: number): number {
    return Atomics.load(this.#words, place / 4) >>> 0;
  }

  #store(place: number, value: number): number {
    return Atomics.store(this.#words, place / 4, value) >>> 0;
  }
}

/** What a reader knows of a store, from its table. Fails with WL_PROTOCOL for bytes that are none. */
export function readTable(bytes: Uint8Array): { readonly ranges: KvRanges; readonly places: TablePlaces } {
  if (bytes.length < tableHead.size) throw noTable(`they are ${bytes.length}`);
  const head = Block.over(tableHead, bytes);
  const [magic, version] = [head.get('magic'), head.get('version')];
  if (magic !== TABLE_MAGIC || version !== VERSION) throw noTable(`they begin with ${magic}, ${version}`);
  const size = { blocks: head.get('blocks'), parts: head.get('parts'), leases: head.get('leases') };
  const kind = memoryKinds[head.get('kind')];
  const places = new TablePlaces(size);
  if (kind === undefined || size.blocks * size.parts > MAX_KV_RANGES || places.bytes !== bytes.length) {
    throw noTable(
      `${size.blocks} blocks in ${size.parts} parts with ${size.leases} leases are not in ${bytes.length} bytes`,
    );
  }
  const parts = Array.from({ length: size.parts }, (_, index) => {
    const part = new Block(tablePart, bytes.buffer, bytes.byteOffset + places.part(index));
    return {
      address: part.get('address'),
      stride: part.get('stride'),
      bytes: part.get('bytes'),
      label: part.get('label'),
    };
  });
  try {
    return { ranges: new KvRanges(kind, size.blocks, parts), places };
  } catch (error) {
    throw noTable((error as Error).message);
  }
}

function noTable(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `These bytes are not the table of a KV store: ${why}`);
}
