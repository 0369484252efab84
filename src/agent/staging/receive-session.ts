// The receiver's side of two rings: takes pieces in the order of each channel, checks them whole, copies, and sends them
// back; a signal waits for the pieces before it on other channels. Hot path.
import { wideAt } from '../../abi/layout.ts';
import { MAX_PIECE_FRAGMENTS, pieceFragment, pieceHead, pieceKinds, pieceStatuses } from './wire-layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import type { CopyRun, CopyWay, DeviceCopies } from './device-copies.ts';
import type { MemoryTable, StagedMemory } from './memory-table.ts';
import type { PieceChannels } from './piece-channels.ts';
import { channelOf, dataOffsetOf, type RingMemory, slotOf, slotsOfChannel } from './ring-memory.ts';

interface ReceiveSessionParts {
  readonly peer: string;
  readonly memory: MemoryTable;
  /** Of the thread. */
  readonly run: CopyRun;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  /** The sender's ring, of the same shape. */
  readonly remote: BackendRemoteRegion;
  readonly channels: PieceChannels;
}

/** What is left to do for a piece whose copies are done. */
const steps = { status: 0, answer: 1 } as const;
/** The sender is told after this share of its slots at the latest: it goes on with the others meanwhile. */
const UNTOLD_SHARE = 4;

const { offset } = pieceHead;

export class ReceiveSession {
  readonly #parts: ReceiveSessionParts;
  readonly #place: PutPlace;
  /** By channel: its slots, its pieces so far, and those of which the sender was told. */
  readonly #slotsOf: Uint32Array;
  readonly #started: Float64Array;
  readonly #finished: Float64Array;
  readonly #told: Float64Array;
  /** By slot. */
  readonly #kinds: Uint8Array;
  readonly #statuses: Uint8Array;
  readonly #tickets: Float64Array;
  readonly #copies: (DeviceCopies | undefined)[];
  readonly #dataOffsets: Uint32Array;
  readonly #dataBytes: Uint32Array;
  /** By channel: of its oldest piece. */
  readonly #steps: Uint8Array;

  constructor(parts: ReceiveSessionParts) {
    const { slots } = parts.ring.shape;
    const { count } = parts.channels;
    this.#slotsOf = Uint32Array.from({ length: count }, (_, channel) => slotsOfChannel(channel, count, slots));
    this.#started = new Float64Array(count);
    this.#finished = new Float64Array(count);
    this.#told = new Float64Array(count);
    this.#steps = new Uint8Array(count);
    this.#parts = parts;
    this.#place = { local: parts.local, localOffset: 0, remote: parts.remote, remoteOffset: 0, bytes: 0 };
    this.#kinds = new Uint8Array(slots);
    this.#statuses = new Uint8Array(slots);
    this.#tickets = new Float64Array(slots);
    this.#copies = Array.from({ length: slots }, () => undefined);
    this.#dataOffsets = new Uint32Array(slots);
    this.#dataBytes = new Uint32Array(slots);
  }

  /** Goes on. True if something moved. Fails with WL_PROTOCOL for what no sender of this library sends. */
  step(): boolean {
    const { channels } = this.#parts;
    let hasMoved = false;
    for (let channel = 0; channel < channels.count; channel++) {
      while (this.#hasCome(channel)) {
        const slot = this.#slotOf(channel, this.#started[channel]!);
        if (!this.#start(slot)) break;
        traceBegin('staging.copy-in', slot);
        channels.take(channel);
        this.#started[channel]!++;
        hasMoved = true;
      }
      while (this.#finished[channel]! < this.#started[channel]!) {
        const slot = this.#slotOf(channel, this.#finished[channel]!);
        if (!this.#finish(channel, slot)) break;
        traceEnd('staging.copy-in', slot);
        this.#finished[channel]!++;
        hasMoved = true;
      }
      if (this.#told[channel]! < this.#finished[channel]!) this.#tell(channel);
    }
    return hasMoved;
  }

  close(): Promise<void> {
    return this.#parts.channels.close();
  }

  /** The next piece of the channel is there. */
  #hasCome(channel: number): boolean {
    const waiting = this.#parts.channels.waiting(channel);
    if (waiting === 0) return false;
    const slots = this.#slotsOf[channel]!;
    const unanswered = this.#started[channel]! - this.#told[channel]!;
    if (waiting > 0 && unanswered + waiting <= slots) return true;
    throw this.#protocol(`${waiting} more pieces, ${unanswered} unanswered ones, on a channel with ${slots} slots`);
  }

  #slotOf(channel: number, piece: number): number {
    return slotOf(channel, this.#slotsOf.length, piece % this.#slotsOf[channel]!);
  }

  #start(slot: number): boolean {
    const { ring, memory } = this.#parts;
    const { words } = ring;
    const at = ring.slotOffset(slot);
    // The sender could change a word after it was checked: each is read once.
    const kind = words[(at + offset.kind) / 4]!;
    const found = memory.find(words[(at + offset.region) / 4]!, wideAt(words, (at + offset.key) / 4));
    this.#kinds[slot] = kind;
    this.#copies[slot] = undefined;
    this.#statuses[slot] = pieceStatuses.good;
    if (kind === pieceKinds.nothing) return true;
    if (kind !== pieceKinds.write && kind !== pieceKinds.read && kind !== pieceKinds.signal) {
      throw this.#protocol(`a piece of kind ${kind}`);
    }
    if (found === undefined) {
      this.#statuses[slot] = pieceStatuses.unauthorized;
      return true;
    }
    try {
      const ticket = kind === pieceKinds.signal ? this.#signal(slot, found) : this.#copy(slot, kind, found);
      if (ticket < 0) return false;
      this.#tickets[slot] = ticket;
      this.#copies[slot] = found.copies;
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_PROTOCOL') throw error;
      this.#statuses[slot] = pieceStatuses.failed;
    }
    return true;
  }

  /** Behind all copies before it, whichever channels they came by and whichever devices make them. */
  #signal(slot: number, found: StagedMemory): number {
    const { words } = this.#parts.ring;
    const at = this.#parts.ring.slotOffset(slot);
    const own = channelOf(slot, this.#slotsOf.length);
    for (let channel = 0; channel < this.#slotsOf.length; channel++) {
      const missing = (words[(at + pieceHead.size) / 4 + channel]! - this.#started[channel]!) | 0;
      if (channel !== own && missing > 0) return -1;
    }
    const cell = wideAt(words, (at + offset.offset) / 4);
    const add = wideAt(words, (at + offset.add) / 4);
    const hasSum = words[(at + offset.hasSum) / 4]!;
    const sum = hasSum === 0 ? -1 : wideAt(words, (at + offset.sum) / 4);
    const isCell = Number.isSafeInteger(cell) && cell % 8 === 0 && cell + 8 <= found.bytes;
    if (!(isCell && Number.isSafeInteger(add) && Number.isSafeInteger(sum))) {
      throw this.#protocol(`a signal of ${add} at ${cell}, in ${found.bytes} bytes`);
    }
    // The sender does not know where the region begins. A GPU would end its context of it.
    if ((found.address + cell) % 8 !== 0)
      throw invalidArgument('address of a cell', found.address + cell, 'a multiple of 8');
    for (let other = 0; other < this.#copies.length; other++) {
      const copies = this.#copies[other];
      if (copies !== undefined && copies !== found.copies && !this.#isCopied(other)) return -1;
    }
    return found.copies.add(found.address + cell, add, sum);
  }

  #copy(slot: number, kind: number, found: StagedMemory): number {
    const { ring, run } = this.#parts;
    const { words } = ring;
    const at = ring.slotOffset(slot);
    const fragments = words[(at + offset.fragments) / 4]!;
    if (fragments < 1 || fragments > MAX_PIECE_FRAGMENTS) throw this.#protocol(`${fragments} fragments in a piece`);
    const dataOffset = dataOffsetOf(fragments);
    const data = ring.address + at + dataOffset;
    let end = 0;
    run.clear();
    for (let index = 0; index < fragments; index++) {
      const first = at + pieceHead.size + index * pieceFragment.size;
      const remoteOffset = wideAt(words, (first + pieceFragment.offset.remoteOffset) / 4);
      const bytes = words[(first + pieceFragment.offset.bytes) / 4]!;
      const slotOffset = words[(first + pieceFragment.offset.slotOffset) / 4]!;
      const isInside = Number.isSafeInteger(remoteOffset) && remoteOffset + bytes <= found.bytes;
      if (!isInside || bytes < 1 || slotOffset + bytes > ring.shape.pieceBytes) {
        throw this.#protocol(
          `fragment ${index} of ${bytes} bytes from ${slotOffset} on at ${remoteOffset}, in ${found.bytes} bytes`,
        );
      }
      const address = found.address + remoteOffset;
      if (kind === pieceKinds.write) run.add(address, data + slotOffset, bytes);
      else run.add(data + slotOffset, address, bytes);
      end = Math.max(end, slotOffset + bytes);
    }
    this.#dataOffsets[slot] = dataOffset;
    this.#dataBytes[slot] = end;
    return found.copies.copy(kind === pieceKinds.write ? 'in' : 'out', run);
  }

  /** True if its copies are done, also if they failed. */
  #isCopied(slot: number): boolean {
    const copies = this.#copies[slot];
    if (copies === undefined) return true;
    const way: CopyWay = this.#kinds[slot] === pieceKinds.read ? 'out' : 'in';
    try {
      if (!copies.isDone(way, this.#tickets[slot]!)) return false;
    } catch {
      this.#statuses[slot] = pieceStatuses.failed;
    }
    this.#copies[slot] = undefined;
    return true;
  }

  /** False if it cannot go back yet. */
  #finish(channel: number, slot: number): boolean {
    if (!this.#isCopied(slot)) return false;
    const { ring, channels } = this.#parts;
    const place = this.#place;
    const status = this.#statuses[slot]!;
    if (this.#steps[channel] === steps.status) {
      if (status !== pieceStatuses.good) {
        place.localOffset = place.remoteOffset = ring.statusOffset(slot);
        place.bytes = 8;
        ring.words[place.localOffset / 4] = status;
        if (!channels.put(channel, place)) return false;
      }
      this.#steps[channel] = steps.answer;
    }
    if (this.#steps[channel] === steps.answer) {
      if (status === pieceStatuses.good && this.#kinds[slot] === pieceKinds.read) {
        place.localOffset = place.remoteOffset = ring.slotOffset(slot) + this.#dataOffsets[slot]!;
        place.bytes = this.#dataBytes[slot]!;
        if (!channels.put(channel, place)) return false;
      }
    }
    this.#steps[channel] = steps.status;
    return true;
  }

  /** One signal for several pieces, while others of the channel are on their way that will be told of in any case. */
  #tell(channel: number): void {
    const finished = this.#finished[channel]!;
    const untold = finished - this.#told[channel]!;
    const mayWait = finished !== this.#started[channel]! || this.#parts.channels.waiting(channel) > 0;
    if (mayWait && untold * UNTOLD_SHARE < this.#slotsOf[channel]!) return;
    if (this.#parts.channels.tell(channel, untold)) this.#told[channel]! += untold;
  }

  #protocol(what: string): WeftlineError {
    const { peer } = this.#parts;
    return new WeftlineError('WL_PROTOCOL', `The staging thread of ${peer} sent what makes no sense: ${what}`, {
      details: { peer },
    });
  }
}
