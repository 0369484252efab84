// One operation of a channel on a lane: a put, in as many pieces as it takes, or a signal. Hot path: no allocation.
import { pieceKinds } from './wire-layout.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import { type CopyRun, NO_TICKET } from './device-copies.ts';
import { Job } from './job.ts';
import type { StagedMemory } from './memory-table.ts';
import { dataOffsetOf, type RingMemory } from './ring-memory.ts';
import type { PieceWords, SendSession } from './send-session.ts';
import type { RemoteStagedMemory } from './session-transfer.ts';
import { tryPut, trySignal } from './try-post.ts';

export interface ChannelJobParts {
  readonly ring: RingMemory;
  /** Of the thread. */
  readonly run: CopyRun;
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

export abstract class ChannelJob<Remote> extends Job {
  /** Of a put; undefined: this is a signal. */
  local: StagedMemory | undefined;
  localOffset = 0;
  remote: Remote | undefined;
  remoteOffset = 0;
  /** At least one: puts of none are not posted. */
  bytes = 0;
  add = 0;
  /** -1 if it is not known. */
  sum = -1;
  protected readonly ring: RingMemory;
  readonly #run: CopyRun;
  readonly #onEnd: (error: WeftlineError | undefined) => void;

  constructor({ ring, run, onEnd }: ChannelJobParts) {
    super();
    this.ring = ring;
    this.#run = run;
    this.#onEnd = onEnd;
  }

  override begin(): void {
    this.pieces = this.local === undefined ? 1 : Math.ceil(this.bytes / this.ring.shape.pieceBytes);
    super.begin();
  }

  fits(): boolean {
    return true;
  }

  isFilled(_piece: number, ticket: number): boolean {
    return this.local === undefined || this.local.copies.isDone('out', ticket);
  }

  land(): number {
    return 0;
  }

  isLanded(): boolean {
    return true;
  }

  protected ended(error: WeftlineError | undefined): void {
    this.#onEnd(error);
  }

  protected offsetOf(piece: number): number {
    return piece * this.ring.shape.pieceBytes;
  }

  protected bytesOf(piece: number): number {
    return Math.min(this.ring.shape.pieceBytes, this.bytes - this.offsetOf(piece));
  }

  protected fillSlot(piece: number, slot: number, dataOffset: number): number {
    const { local, ring } = this;
    if (local === undefined) return 0;
    const run = this.#run;
    run.clear();
    const from = local.address + this.localOffset + this.offsetOf(piece);
    run.add(ring.address + ring.slotOffset(slot) + dataOffset, from, this.bytesOf(piece));
    return local.copies.copy('out', run);
  }
}

/** To memory that the peer stages. */
export class SessionChannelJob extends ChannelJob<RemoteStagedMemory> {
  readonly #session: SendSession;
  readonly #words: PieceWords = {
    kind: pieceKinds.signal,
    region: 0,
    key: 0,
    fragments: 0,
    dataOffset: 0,
    offset: 0,
    add: 0,
    sum: -1,
  };

  constructor(parts: ChannelJobParts, session: SendSession) {
    super(parts);
    this.#session = session;
  }

  open(piece: number, slot: number): number {
    const isPut = this.local !== undefined;
    const fragments = isPut ? 1 : 0;
    const dataOffset = dataOffsetOf(fragments);
    const ticket = this.fillSlot(piece, slot, dataOffset);
    if (ticket === NO_TICKET) return ticket;
    const { number, key } = this.remote as RemoteStagedMemory;
    const words = this.#words;
    words.kind = isPut ? pieceKinds.write : pieceKinds.signal;
    words.region = number;
    words.key = key;
    words.fragments = fragments;
    words.dataOffset = dataOffset;
    words.offset = isPut ? 0 : this.remoteOffset;
    words.add = isPut ? 0 : this.add;
    words.sum = isPut ? -1 : this.sum;
    const session = this.#session;
    session.fill(slot, words);
    if (isPut) {
      const offset = this.remoteOffset + this.offsetOf(piece);
      session.describe(session.placeOf(slot, 0), offset, this.bytesOf(piece), 0);
    }
    return ticket;
  }

  send(piece: number, slot: number): boolean {
    const isPut = this.local !== undefined;
    return this.#session.send(slot, dataOffsetOf(isPut ? 1 : 0) + (isPut ? this.bytesOf(piece) : 0));
  }

  isBack(_piece: number, slot: number): boolean {
    this.#session.check(slot);
    return true;
  }

  isDrained(): boolean {
    return true;
  }
}

/** What the jobs of a channel to host memory of the peer share. */
export interface DirectChannel {
  readonly channel: BackendChannel;
  /** The ring. */
  readonly local: BackendRegion;
  /** By slot: what the channel will have delivered when the slot is free. */
  readonly marks: Float64Array;
}

/** To host memory of the peer. */
export class DirectChannelJob extends ChannelJob<BackendRemoteRegion> {
  readonly #direct: DirectChannel;
  #place: PutPlace | undefined;

  constructor(parts: ChannelJobParts, direct: DirectChannel) {
    super(parts);
    this.#direct = direct;
  }

  open(piece: number, slot: number): number {
    return this.fillSlot(piece, slot, 0);
  }

  send(piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    const isSent = this.local === undefined ? this.#signal() : this.#put(piece, slot);
    if (isSent) marks[slot] = channel.posted;
    return isSent;
  }

  isBack(_piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    if (channel.delivered >= marks[slot]!) return true;
    if (channel.error !== undefined) throw channel.error;
    return false;
  }

  isDrained(_piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    return channel.error === undefined ? channel.delivered >= marks[slot]! : channel.isQuiet !== false;
  }

  #signal(): boolean {
    const { remote, remoteOffset, add } = this;
    return trySignal(this.#direct.channel, remote as BackendRemoteRegion, remoteOffset, add);
  }

  #put(piece: number, slot: number): boolean {
    const remote = this.remote as BackendRemoteRegion;
    const place = (this.#place ??= {
      local: this.#direct.local,
      localOffset: 0,
      remote,
      remoteOffset: 0,
      bytes: 0,
    });
    place.localOffset = this.ring.slotOffset(slot);
    place.remote = remote;
    place.remoteOffset = this.remoteOffset + this.offsetOf(piece);
    place.bytes = this.bytesOf(piece);
    return tryPut(this.#direct.channel, place);
  }
}
