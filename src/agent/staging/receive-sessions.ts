// The rings of this thread that peers send pieces into: made when a peer says hello, gone when it leaves or misbehaves.
import { wideAt, wordOffsets } from '../../abi/layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { Backend, BackendRegion } from '../backend.ts';
import type { DeviceTable, MemoryTable, StagedMemory } from './devices.ts';
import type { Greeter, Hello, InnerLinks, LinkUse } from './greeter.ts';
import { Piece } from './lane.ts';
import {
  channelOf,
  dataOffsetOf,
  endRing,
  MAX_PIECE_FRAGMENTS,
  MAX_STAGING_CHANNELS,
  MAX_STAGING_SLOTS,
  PieceChannels,
  pieceFragment,
  pieceHead,
  pieceKinds,
  pieceStatuses,
  ringBytesOf,
  RingMemory,
  slotOf,
  slotsOfChannel,
} from './ring.ts';

interface ReceiveSessionParts {
  readonly peer: string;
  readonly memory: MemoryTable;
  readonly channels: PieceChannels;
}

/** The sender is told after this share of its slots at the latest: it goes on with the others meanwhile. */
const UNTOLD_SHARE = 4;

const head = wordOffsets(pieceHead);
const fragment = wordOffsets(pieceFragment);
const HEAD_WORDS = pieceHead.size / 4;
const FRAGMENT_WORDS = pieceFragment.size / 4;

/** A channel's slots, and its pieces so far: those that were begun, that are over, and of which the sender was told. */
interface Track {
  readonly slots: number;
  started: number;
  finished: number;
  told: number;
}

export class ReceiveSession {
  readonly #parts: ReceiveSessionParts;
  readonly #tracks: readonly Track[];
  /** By slot, and why each was refused. */
  readonly #pieces: readonly Piece[];
  readonly #statuses: Uint8Array;

  constructor(parts: ReceiveSessionParts) {
    const { count, ring } = parts.channels;
    const { slots } = ring.shape;
    this.#parts = parts;
    this.#tracks = Array.from({ length: count }, (_, channel) => ({
      slots: slotsOfChannel(channel, count, slots),
      started: 0,
      finished: 0,
      told: 0,
    }));
    this.#pieces = Array.from({ length: slots }, () => new Piece());
    this.#statuses = new Uint8Array(slots);
  }

  /** Goes on. True if something moved. Fails with WL_PROTOCOL for what no sender of this library sends. */
  step(): boolean {
    const { channels } = this.#parts;
    let hasMoved = false;
    for (let channel = 0; channel < channels.count; channel++) {
      const track = this.#tracks[channel]!;
      const arrived = channels.arrived(channel);
      const waiting = arrived - track.started;
      const unanswered = track.started - track.told;
      if (waiting < 0 || waiting + unanswered > track.slots) {
        throw this.#protocol(
          `${waiting} more pieces, ${unanswered} unanswered ones, on a channel with ${track.slots} slots`,
        );
      }
      for (; track.started < arrived; track.started++, hasMoved = true) {
        const slot = this.#slotOf(channel, track.started);
        if (!this.#start(slot)) break;
        traceBegin('staging.copy-in', slot);
      }
      for (; track.finished < track.started; track.finished++, hasMoved = true) {
        const slot = this.#slotOf(channel, track.finished);
        if (!this.#finish(channel, slot)) break;
        traceEnd('staging.copy-in', slot);
      }
      this.#tell(channel, arrived);
    }
    return hasMoved;
  }

  close(): Promise<void> {
    return this.#parts.channels.close();
  }

  #slotOf(channel: number, piece: number): number {
    return slotOf(channel, this.#tracks.length, piece % this.#tracks[channel]!.slots);
  }

  /** False if it must wait. */
  #start(slot: number): boolean {
    const { channels, memory } = this.#parts;
    const { words } = channels.ring;
    const at = channels.ring.slotOffset(slot) / 4;
    const piece = this.#pieces[slot]!;
    // The sender could change a word after it was checked: each is read once.
    const kind = words[at + head.kind]!;
    const found = memory.find(words[at + head.region]!, wideAt(words, at + head.key));
    piece.kind = kind;
    piece.ticket = 0;
    piece.copies = found?.copies;
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
      if (kind === pieceKinds.signal) return this.#signal(slot, piece, found);
      this.#read(slot, piece, found);
      return kind === pieceKinds.write ? piece.copy('in') : piece.copy('out');
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_PROTOCOL') throw error;
      this.#statuses[slot] = pieceStatuses.failed;
      return true;
    }
  }

  /** Signals behind all copies before it, whichever channels they came by and whichever devices make them. */
  #signal(slot: number, piece: Piece, found: StagedMemory): boolean {
    const { ring } = this.#parts.channels;
    const { words } = ring;
    const at = ring.slotOffset(slot) / 4;
    const own = channelOf(slot, this.#tracks.length);
    for (let channel = 0; channel < this.#tracks.length; channel++) {
      const missing = (words[at + HEAD_WORDS + channel]! - this.#tracks[channel]!.started) | 0;
      if (channel !== own && missing > 0) return false;
    }
    const cell = wideAt(words, at + head.offset);
    const add = wideAt(words, at + head.add);
    const hasSum = words[at + head.hasSum]!;
    const sum = hasSum === 0 ? -1 : wideAt(words, at + head.sum);
    const isCell = Number.isSafeInteger(cell) && cell % 8 === 0 && cell + 8 <= found.bytes;
    if (!(isCell && Number.isSafeInteger(add) && Number.isSafeInteger(sum))) {
      throw this.#protocol(`a signal of ${add} at ${cell}, in ${found.bytes} bytes`);
    }
    // The sender does not know where the region begins. A GPU would end its context of it.
    if ((found.address + cell) % 8 !== 0)
      throw invalidArgument('address of a cell', found.address + cell, 'a multiple of 8');
    for (let other = 0; other < this.#pieces.length; other++) {
      const { copies } = this.#pieces[other]!;
      if (copies !== undefined && copies !== found.copies && !this.#isCopied(other)) return false;
    }
    return piece.took(found.copies.add(found.address + cell, add, sum));
  }

  /** Reads what a piece says of its fragments. */
  #read(slot: number, piece: Piece, found: StagedMemory): void {
    const { ring } = this.#parts.channels;
    const { words } = ring;
    const at = ring.slotOffset(slot) / 4;
    const fragments = words[at + head.fragments]!;
    if (fragments < 1 || fragments > MAX_PIECE_FRAGMENTS) throw this.#protocol(`${fragments} fragments in a piece`);
    piece.begin(ring.address + ring.slotOffset(slot) + dataOffsetOf(fragments));
    for (let index = 0; index < fragments; index++) {
      const first = at + HEAD_WORDS + index * FRAGMENT_WORDS;
      const remoteOffset = wideAt(words, first + fragment.remoteOffset);
      const bytes = words[first + fragment.bytes]!;
      const slotOffset = words[first + fragment.slotOffset]!;
      const isInside = Number.isSafeInteger(remoteOffset) && remoteOffset + bytes <= found.bytes;
      if (!isInside || bytes < 1 || slotOffset + bytes > ring.shape.pieceBytes) {
        throw this.#protocol(
          `fragment ${index} of ${bytes} bytes from ${slotOffset} on at ${remoteOffset}, in ${found.bytes} bytes`,
        );
      }
      piece.add(found.address + remoteOffset, slotOffset, bytes);
    }
  }

  /** True if its copies are done, also if they failed. */
  #isCopied(slot: number): boolean {
    const piece = this.#pieces[slot]!;
    try {
      if (!piece.isCopied(piece.kind === pieceKinds.read ? 'out' : 'in')) return false;
    } catch {
      this.#statuses[slot] = pieceStatuses.failed;
    }
    piece.copies = undefined;
    piece.ticket = 0;
    return true;
  }

  /** False if it cannot go back yet. */
  #finish(channel: number, slot: number): boolean {
    if (!this.#isCopied(slot)) return false;
    const { channels } = this.#parts;
    const { ring } = channels;
    const piece = this.#pieces[slot]!;
    if (this.#statuses[slot] !== pieceStatuses.good) {
      const at = ring.statusOffset(slot);
      ring.words[at / 4] = this.#statuses[slot]!;
      return channels.put(channel, at, 8);
    }
    return piece.kind !== pieceKinds.read || channels.put(channel, piece.address - ring.address, piece.length);
  }

  /** One signal for several pieces, while others of the channel are on their way that will be told of in any case. */
  #tell(channel: number, arrived: number): void {
    const track = this.#tracks[channel]!;
    const untold = track.finished - track.told;
    const mayWait = track.finished < arrived && untold * UNTOLD_SHARE < track.slots;
    if (untold > 0 && !mayWait && this.#parts.channels.tell(channel, untold)) track.told += untold;
  }

  #protocol(what: string): WeftlineError {
    const { peer } = this.#parts;
    return new WeftlineError('WL_PROTOCOL', `The staging thread of ${peer} sent what makes no sense: ${what}`, {
      details: { peer },
    });
  }
}

/** Sessions of one peer: one for its host memory and one for its GPUs, and those that are just ending. */
const MAX_SESSIONS_OF_PEER = 8;
/** Greetings and ends of sessions of one peer that are under way. */
const MAX_GREETINGS_OF_PEER: number = 4 * MAX_SESSIONS_OF_PEER;
const MAX_PIECE_BYTES: number = 16 << 20;
const MIN_PIECE_BYTES = 4096;
/** The sender says how long it waits; a timer takes no more than this. */
const MAX_GREETING_MS = 86_400_000;

interface ReceiveSessionsOptions {
  readonly backend: Backend;
  readonly links: InnerLinks;
  readonly greeter: Greeter;
  readonly memory: MemoryTable;
  readonly devices: DeviceTable;
  /** Resolves when no device touches a ring any more. */
  readonly fence: () => Promise<void>;
}

/** A sender, from its hello on until nothing of it is left. */
interface Guest {
  readonly peer: string;
  /** The sender's number. */
  readonly lane: number;
  readonly uses: LinkUse[];
  ring?: RingMemory;
  local?: BackendRegion;
  session?: ReceiveSession;
  isWelcome: boolean;
  /** Why it went before there was a session. */
  left?: WeftlineError;
  ending?: Promise<void>;
}

export class ReceiveSessions {
  readonly #options: ReceiveSessionsOptions;
  readonly #guests = new Set<Guest>();

  constructor(options: ReceiveSessionsOptions) {
    this.#options = options;
  }

  /** Goes on. True if something moved. */
  step(): boolean {
    let hasMoved = false;
    for (const guest of this.#guests) {
      const { session, uses, ending } = guest;
      if (session === undefined || ending !== undefined) continue;
      const error = uses[0]?.link.error;
      try {
        if (error !== undefined) this.#end(guest, error, false);
        else if (session.step()) hasMoved = true;
      } catch (thrown) {
        this.#end(guest, asWeftlineError(thrown), true);
      }
    }
    return hasMoved;
  }

  /** A peer wants to send pieces. Never throws. */
  async receive(peer: string, hello: Hello): Promise<void> {
    const guest: Guest = { peer, lane: hello.lane, uses: [], isWelcome: false };
    try {
      // The check comes before a greeting costs a connection; such a peer gets no answer.
      if (this.#count(peer, (other) => !other.isWelcome || other.ending !== undefined) > MAX_GREETINGS_OF_PEER)
        throw new WeftlineError('WL_CAPACITY', 'It says hello too often');
      this.#guests.add(guest);
      await this.#welcome(guest, hello);
      guest.isWelcome = true;
    } catch (error) {
      log('agent', 'warn', `no pieces from ${peer}: ${asWeftlineError(error).message}`);
      if (this.#guests.has(guest)) this.#end(guest, asWeftlineError(error), true);
      await guest.ending;
    }
  }

  /** The peer's lane of that number is closed. */
  leave(peer: string, lane: number, why: WeftlineError): void {
    for (const guest of this.#guests) {
      if (guest.peer !== peer || guest.lane !== lane) continue;
      if (guest.session === undefined) guest.left = why;
      else this.#end(guest, why, false);
    }
  }

  async close(error: WeftlineError): Promise<void> {
    for (const guest of this.#guests) {
      if (guest.session === undefined) guest.left = error;
      else this.#end(guest, error, true);
    }
    for (const { ending } of this.#guests) await ending;
  }

  async #welcome(guest: Guest, hello: Hello): Promise<void> {
    const { backend, links, greeter, devices, memory } = this.#options;
    const { peer, lane, uses } = guest;
    const { incarnation, host, process, connectionInfo, slots, pieceBytes, channels: count } = hello;
    const deadline = new Deadline(Math.min(hello.timeoutMs, MAX_GREETING_MS));
    const { timeoutMs } = deadline;
    const use = await links.use({ name: peer, incarnation, host, process, connectionInfo }, { timeoutMs, deadline });
    uses.push(use);
    const { link } = use;
    this.#check(peer, hello);
    const ring = new RingMemory({ slots, pieceBytes }, devices.makeStorage);
    guest.ring = ring;
    const local = await backend.register(ring.memory);
    guest.local = local;
    const remote = link.importRegion(hello.ring, { kind: 'host', bytes: ringBytesOf(ring.shape) });
    if (guest.left !== undefined) throw guest.left;
    const channels = PieceChannels.open(link, count, { ring, local, remote });
    guest.session = new ReceiveSession({ peer, memory, channels });
    await greeter.welcome(link, lane, local.info, deadline);
  }

  #check(peer: string, { slots, pieceBytes, channels }: Hello): void {
    const isShape = slots >= 1 && slots <= MAX_STAGING_SLOTS && pieceBytes >= MIN_PIECE_BYTES;
    const isSpread = channels >= 1 && channels <= Math.min(slots, MAX_STAGING_CHANNELS);
    if (!isShape || !isSpread || pieceBytes > MAX_PIECE_BYTES) {
      throw new WeftlineError(
        'WL_PROTOCOL',
        `${peer} asked for a ring of ${slots} pieces of ${pieceBytes} bytes on ${channels} channels`,
      );
    }
    if (this.#count(peer, () => true) <= MAX_SESSIONS_OF_PEER) return;
    throw new WeftlineError('WL_CAPACITY', `A peer has at most ${MAX_SESSIONS_OF_PEER} rings: ${peer} wants another`);
  }

  #count(peer: string, isCounted: (guest: Guest) => boolean): number {
    let count = 0;
    for (const guest of this.#guests) if (guest.peer === peer && isCounted(guest)) count++;
    return count;
  }

  /** `isOwn`: this side ends it, and says so. */
  #end(guest: Guest, why: WeftlineError, isOwn: boolean): void {
    if (guest.ending !== undefined) return;
    const { peer, lane, uses } = guest;
    for (const { link } of isOwn ? uses : []) this.#options.greeter.sayGoodbye(link, 'receiver', lane, why);
    guest.ending = endRing({ ...guest, fence: this.#options.fence })
      .catch((error: unknown) =>
        log('agent', 'warn', `a ring for pieces of ${peer} was not freed: ${asWeftlineError(error).message}`),
      )
      .finally(() => this.#guests.delete(guest));
  }
}
