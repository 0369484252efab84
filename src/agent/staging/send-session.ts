// The sender's side of two rings: puts pieces into the peer's, and reads from its own what became of them. Hot path.
import { putWide } from '../../abi/wide-words.ts';
import { pieceFragment, pieceHead, pieceKinds, pieceStatuses } from '../../abi/staging-wire.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import type { LaneCarrier } from './lane.ts';
import type { PieceChannels } from './piece-channels.ts';
import { dataOffsetOf, type RingMemory } from './ring-memory.ts';

/** What a piece says of itself. Owned by its job and written again. */
export interface PieceWords {
  kind: number;
  region: number;
  key: number;
  fragments: number;
  dataOffset: number;
  offset: number;
  add: number;
  /** -1 if it is not known. */
  sum: number;
}

export interface SendSessionParts {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  /** The peer's ring, of the same shape. */
  readonly remote: BackendRemoteRegion;
  readonly channels: PieceChannels;
}

const { offset } = pieceHead;
const nothing: PieceWords = {
  kind: pieceKinds.nothing,
  region: 0,
  key: 0,
  fragments: 0,
  dataOffset: 0,
  offset: 0,
  add: 0,
  sum: -1,
};

export class SendSession implements LaneCarrier {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly #channels: PieceChannels;
  readonly #place: PutPlace;
  #direct: PutPlace | undefined;
  /** Puts of the piece that were made before one, or its signal, found no room. */
  #puts = 0;
  #isSkipping = false;
  /** Pieces so far. */
  #sent = 0;
  #returned = 0;

  constructor({ peer, ring, local, remote, channels }: SendSessionParts) {
    this.peer = peer;
    this.ring = ring;
    this.#channels = channels;
    this.#place = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
  }

  /** Why nothing goes any more. */
  get error(): WeftlineError | undefined {
    return this.#channels.error;
  }

  get returned(): number {
    while (this.#channels.take(this.#returned)) this.#returned++;
    return this.#returned;
  }

  /** Writes the head of a slot, which is nobody else's now. */
  fill(slot: number, piece: PieceWords): void {
    const { ring } = this;
    const { words } = ring;
    const at = ring.slotOffset(slot);
    words[(at + offset.kind) / 4] = piece.kind;
    words[(at + offset.region) / 4] = piece.region;
    putWide(words, (at + offset.key) / 4, piece.key);
    words[(at + offset.fragments) / 4] = piece.fragments;
    words[(at + offset.dataOffset) / 4] = piece.dataOffset;
    putWide(words, (at + offset.offset) / 4, piece.offset);
    putWide(words, (at + offset.add) / 4, piece.add);
    putWide(words, (at + offset.sum) / 4, Math.max(piece.sum, 0));
    words[(at + offset.hasSum) / 4] = piece.sum < 0 ? 0 : 1;
    words[ring.statusOffset(slot) / 4] = pieceStatuses.good;
  }

  /** Where in the ring the slot's fragment of that index is described. */
  placeOf(slot: number, index: number): number {
    return this.ring.slotOffset(slot) + pieceHead.size + index * pieceFragment.size;
  }

  /** One of its fragments, at its place. */
  describe(at: number, remoteOffset: number, bytes: number, slotOffset: number): void {
    const { words } = this.ring;
    putWide(words, (at + pieceFragment.offset.remoteOffset) / 4, remoteOffset);
    words[(at + pieceFragment.offset.bytes) / 4] = bytes;
    words[(at + pieceFragment.offset.slotOffset) / 4] = slotOffset;
  }

  /** Sends the first bytes of a slot. False, to be called again, if there is no room now. */
  send(slot: number, bytes: number): boolean {
    this.#beginSend();
    return this.#putSlot(slot, bytes) && this.#tell();
  }

  /** The same of a piece whose one fragment lies in memory that the backend sends from. */
  sendFrom(slot: number, region: BackendRegion, localOffset: number, bytes: number): boolean {
    this.#beginSend();
    const dataOffset = dataOffsetOf(1);
    if (!this.#putSlot(slot, dataOffset)) return false;
    if (this.#puts === 1) {
      const place = (this.#direct ??= { ...this.#place });
      place.local = region;
      place.localOffset = localOffset;
      place.remoteOffset = this.ring.slotOffset(slot) + dataOffset;
      place.bytes = bytes;
      if (!this.#channels.put(this.#channel, place)) return false;
      this.#puts = 2;
    }
    return this.#tell();
  }

  skip(slot: number): boolean {
    if (!this.#isSkipping) {
      // What was put of a piece that was given up is overwritten before the signal tells of it.
      this.#puts = 0;
      this.#isSkipping = true;
      this.fill(slot, nothing);
    }
    if (!this.#putSlot(slot, pieceHead.size) || !this.#tell()) return false;
    this.#isSkipping = false;
    return true;
  }

  /** Of a piece that has come back. Fails if it was refused. */
  check(slot: number): void {
    const status = this.ring.words[this.ring.statusOffset(slot) / 4]!;
    if (status === pieceStatuses.good) return;
    const { peer } = this;
    const details = { peer };
    if (status === pieceStatuses.unauthorized) {
      throw new WeftlineError('WL_UNAUTHORIZED', `${peer} has taken its memory back, or never offered it`, { details });
    }
    throw new WeftlineError('WL_PEER_FAILED', `${peer} could not copy between its device and pinned memory`, {
      details,
    });
  }

  /** Tells whether nothing that is on its way now is read from memory of this side any more. */
  fence(): () => boolean {
    return this.#channels.fence();
  }

  close(): Promise<void> {
    return this.#channels.close();
  }

  get #channel(): number {
    return this.#sent % this.#channels.count;
  }

  #beginSend(): void {
    if (this.#isSkipping) this.#puts = 0;
    this.#isSkipping = false;
  }

  /** The first bytes of a slot. */
  #putSlot(slot: number, bytes: number): boolean {
    if (this.#puts > 0) return true;
    const place = this.#place;
    place.localOffset = place.remoteOffset = this.ring.slotOffset(slot);
    place.bytes = bytes;
    if (!this.#channels.put(this.#channel, place)) return false;
    this.#puts = 1;
    return true;
  }

  #tell(): boolean {
    if (!this.#channels.tell(this.#channel, 1)) return false;
    this.#puts = 0;
    this.#sent++;
    return true;
  }
}
