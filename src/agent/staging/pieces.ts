// What an agent posts, cut into pieces as slots of a lane are free: transfers and operations of channels alike. Hot path: no
// allocation.
import { alignUp } from '../../abi/layout.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type { BackendRegion, BackendRemoteRegion } from '../backend.ts';
import { CopyRun, type DeviceCopies } from './device-copies.ts';
import { Job } from './lane.ts';
import type { StagedMemory } from './memory-table.ts';
import type { RingMemory } from './ring-memory.ts';
import { MAX_PIECE_FRAGMENTS, pieceKinds } from './wire-layout.ts';

/** Fragments begin at multiples of it, so that copies are of whole words. */
const FRAGMENT_ALIGNMENT = 16;
/** A small transfer is cut into so many pieces, so that copies and the network overlap, */
const FEW_PIECES = 4;
/** of sizes between these; */
const MIN_PIECE_BYTES = 128 << 10;
const MIDDLE_PIECE_BYTES = 512 << 10;
/** a large one into so many or more: each piece costs the network two signals, whatever its size. */
const MANY_PIECES = 16;
const PAGE_BYTES = 4096;
/** A second put costs more than to copy fewer bytes. */
const MIN_FROM_PLACE = 32 << 10;

/** Bytes of the pieces of a transfer of so many: at most `pieceBytes`. */
export function capacityFor(total: number, pieceBytes: number): number {
  const small = Math.min(total / FEW_PIECES, MIDDLE_PIECE_BYTES);
  const fair = Math.ceil(Math.max(small, total / MANY_PIECES) / PAGE_BYTES) * PAGE_BYTES;
  return Math.min(pieceBytes, Math.max(fair, MIN_PIECE_BYTES));
}

/** Memory of the peer: named as its staging thread knows it, or as the backend imported it. */
export type PeerMemory = { readonly number: number; readonly key: number } | BackendRemoteRegion;

/** What a slot holds: ranges of memory of this side with their places in the slot and at the peer. Written again and again. */
export class Piece extends CopyRun {
  kind: number = pieceKinds.nothing;
  /** All ranges lie in this memory of the peer, which has that index in the job's table. */
  remote: PeerMemory | undefined;
  remoteIndex = 0;
  readonly remoteOffset = new Float64Array(MAX_PIECE_FRAGMENTS);
  /** Bytes up to the end of the last range. */
  length = 0;
  /** The device that owns all ranges of this side. */
  copies: DeviceCopies | undefined;
  /** From which the only range is sent without a copy to the slot. */
  source: BackendRegion | undefined;
  sourceOffset = 0;
  /** What a signal adds to the cell at `remoteOffset[0]`, and what that then holds, or -1. */
  increment = 0;
  sum = -1;

  constructor() {
    super(MAX_PIECE_FRAGMENTS);
  }
}

/** How pieces get to the peer. */
export interface PieceWay {
  /** Host memory that the backend reaches may be sent from its place. */
  readonly sendsFromPlace: boolean;
  /** Where in its slot the bytes of a piece of so many ranges begin. */
  placeOf(ranges: number): number;
  /** Writes into the slot what the peer must know. Left out: nothing. */
  describe?(slot: number, piece: Piece): void;
  /** False if there is no room now. */
  post(slot: number, piece: Piece): boolean;
  /** Fails with why the piece was refused. */
  isBack(slot: number): boolean;
  /** The same of a piece that nobody waits for; never fails. */
  isDrained(slot: number): boolean;
}

interface PieceJobOptions {
  readonly ring: RingMemory;
  /** By slot. */
  readonly pieces: readonly Piece[];
  readonly way: PieceWay;
  readonly isRead: boolean;
  readonly parts: PartTable;
  /** Memory of the peer by index in the table. */
  readonly remotes: readonly PeerMemory[];
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

/** Moves rows of a table. A row of no bytes is a signal: its strides are what it adds, and the sum. */
export class PieceJob extends Job {
  /** Memory of this side by index in the table. */
  readonly locals: readonly (StagedMemory | undefined)[];
  readonly #options: PieceJobOptions;
  #capacity = 0;
  #end = 0;
  /** Where the next piece begins: in that row, that range, behind so many bytes. */
  #row = 0;
  #range = 0;
  #done = 0;

  constructor(locals: readonly (StagedMemory | undefined)[], options: PieceJobOptions) {
    super();
    this.locals = locals;
    this.#options = options;
  }

  /** Begins with so many rows from `first` on, in pieces of at most `capacity` bytes. */
  start(first: number, rows: number, capacity: number): void {
    this.#row = first;
    this.#end = first + rows;
    this.#range = 0;
    this.#done = 0;
    this.#capacity = capacity;
    // Their number is known when the last one is cut.
    this.pieces = rows === 0 ? 0 : Number.POSITIVE_INFINITY;
    this.begin();
  }

  uses(memory: StagedMemory): boolean {
    return !this.isOver && this.locals.includes(memory);
  }

  open(number: number, slot: number): number {
    const { ring, pieces, way, isRead } = this.#options;
    const piece = pieces[slot]!;
    const row = this.#row;
    const range = this.#range;
    const done = this.#done;
    this.#cut(piece);
    piece.address = ring.address + ring.slotOffset(slot) + way.placeOf(piece.count);
    const ticket = isRead || piece.count === 0 || piece.source !== undefined ? 0 : piece.copies!.copy('out', piece);
    if (ticket < 0) {
      // It is cut again when there is room.
      this.#row = row;
      this.#range = range;
      this.#done = done;
      return ticket;
    }
    way.describe?.(slot, piece);
    if (this.#row === this.#end) this.pieces = number + 1;
    return ticket;
  }

  isFilled(slot: number, ticket: number): boolean {
    const { pieces, isRead } = this.#options;
    return isRead || pieces[slot]!.copies?.isDone('out', ticket) !== false;
  }

  send(_number: number, slot: number): boolean {
    const { pieces, way } = this.#options;
    return way.post(slot, pieces[slot]!);
  }

  isBack(slot: number): boolean {
    return this.#options.way.isBack(slot);
  }

  isDrained(slot: number): boolean {
    return this.#options.way.isDrained(slot);
  }

  land(slot: number): number {
    const { pieces, isRead } = this.#options;
    return isRead ? pieces[slot]!.copies!.copy('in', pieces[slot]!) : 0;
  }

  isLanded(slot: number, ticket: number): boolean {
    const { pieces, isRead } = this.#options;
    return !isRead || pieces[slot]!.copies!.isDone('in', ticket);
  }

  protected ended(error: WeftlineError | undefined): void {
    this.#options.onEnd(error);
  }

  /** Takes as many ranges as a slot holds, of one device and one memory of the peer. */
  #cut(piece: Piece): void {
    const { parts, isRead, remotes, way } = this.#options;
    const first = this.#row;
    const remote = parts.remote[first]!;
    piece.begin(0);
    piece.length = 0;
    piece.remote = remotes[remote];
    piece.remoteIndex = remote;
    piece.source = undefined;
    piece.copies = undefined;
    if (parts.bytes[first] === 0) {
      piece.kind = pieceKinds.signal;
      piece.remoteOffset[0] = parts.remoteOffset[first]!;
      piece.increment = parts.localStride[first]!;
      piece.sum = parts.remoteStride[first]!;
      this.#row++;
      return;
    }
    const memory = this.#localOf(first);
    piece.kind = isRead ? pieceKinds.read : pieceKinds.write;
    piece.copies = memory.copies;
    while (this.#row < this.#end && parts.remote[this.#row] === remote) {
      if (this.#localOf(this.#row).copies !== piece.copies || !this.#takeRow(piece)) break;
    }
    if (isRead || !way.sendsFromPlace || piece.count > 1 || piece.length < MIN_FROM_PLACE) return;
    piece.source = memory.region;
    piece.sourceOffset = piece.memory[0]! - memory.address;
  }

  /** Takes ranges of the present row. False if not all of them went in. */
  #takeRow(piece: Piece): boolean {
    const { parts } = this.#options;
    const row = this.#row;
    const whole = parts.bytes[row]!;
    const address = this.#localOf(row).address + parts.localOffset[row]!;
    for (const ranges = parts.ranges[row]!; this.#range < ranges;) {
      const bytes = Math.min(this.#capacity, whole - this.#done);
      const place = alignUp(piece.length, FRAGMENT_ALIGNMENT);
      if (piece.count === MAX_PIECE_FRAGMENTS || place + bytes > this.#capacity) return false;
      const remoteOffset = parts.remoteOffset[row]! + this.#range * parts.remoteStride[row]!;
      piece.remoteOffset[piece.count] = remoteOffset + this.#done;
      piece.add(address + this.#range * parts.localStride[row]! + this.#done, place, bytes);
      piece.length = place + bytes;
      this.#done += bytes;
      if (this.#done < whole) continue;
      this.#done = 0;
      this.#range++;
    }
    this.#range = 0;
    this.#row++;
    return true;
  }

  #localOf(row: number): StagedMemory {
    return this.locals[this.#options.parts.local[row]!]!;
  }
}
