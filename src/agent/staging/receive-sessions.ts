// The rings of this thread that peers send pieces into: made when a peer says hello, gone when it leaves or misbehaves.
import { wideAt, wordOffsets } from '../../abi/layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { Backend, BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import { type CopyRun, type CopyWay, type DeviceCopies, type DeviceTable, NO_TICKET } from './device-copies.ts';
import type { Greeter, Hello } from './greeter.ts';
import type { InnerLinks, LinkUse } from './inner-links.ts';
import type { MemoryTable, StagedMemory } from './memory-table.ts';
import { PieceChannels } from './piece-channels.ts';
import { channelOf, dataOffsetOf, endRing, ringBytesOf, RingMemory, slotOf, slotsOfChannel } from './ring-memory.ts';
import {
  MAX_PIECE_FRAGMENTS,
  MAX_STAGING_CHANNELS,
  MAX_STAGING_SLOTS,
  pieceFragment,
  pieceHead,
  pieceKinds,
  pieceStatuses,
} from './wire-layout.ts';

interface ReceiveSessionParts {
  readonly peer: string;
  readonly memory: MemoryTable;
  /** The thread's run of copies. */
  readonly run: CopyRun;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  /** The sender's ring, of the same shape. */
  readonly remote: BackendRemoteRegion;
  readonly channels: PieceChannels;
}

/** The sender is told after this share of its slots at the latest: it goes on with the others meanwhile. */
const UNTOLD_SHARE = 4;

const head = wordOffsets(pieceHead);
const fragment = wordOffsets(pieceFragment);
const HEAD_WORDS = pieceHead.size / 4;
const FRAGMENT_WORDS = pieceFragment.size / 4;

/** What the receiver knows of the piece in a slot. */
interface Arrived {
  kind: number;
  status: number;
  /** The device that copies it, until that is done. */
  copies: DeviceCopies | undefined;
  ticket: number;
  /** Where in the ring its bytes lie. */
  offset: number;
  bytes: number;
}

/** A channel's slots, and its pieces so far: those that were begun, that are over, and of which the sender was told. */
interface Track {
  readonly slots: number;
  started: number;
  finished: number;
  told: number;
}

export class ReceiveSession {
  readonly #parts: ReceiveSessionParts;
  readonly #place: PutPlace;
  readonly #tracks: readonly Track[];
  /** By slot. */
  readonly #pieces: readonly Arrived[];

  constructor(parts: ReceiveSessionParts) {
    const { slots } = parts.ring.shape;
    const { count } = parts.channels;
    this.#parts = parts;
    this.#place = { local: parts.local, localOffset: 0, remote: parts.remote, remoteOffset: 0, bytes: 0 };
    this.#tracks = Array.from({ length: count }, (_, channel) => ({
      slots: slotsOfChannel(channel, count, slots),
      started: 0,
      finished: 0,
      told: 0,
    }));
    const { nothing } = pieceKinds;
    const { good } = pieceStatuses;
    this.#pieces = Array.from({ length: slots }, () => ({
      kind: nothing,
      status: good,
      copies: undefined,
      ticket: 0,
      offset: 0,
      bytes: 0,
    }));
  }

  /** Goes on. True if something moved. Fails with WL_PROTOCOL for what no sender of this library sends. */
  step(): boolean {
    const { channels } = this.#parts;
    let hasMoved = false;
    for (let channel = 0; channel < channels.count; channel++) {
      const track = this.#tracks[channel]!;
      const arrived = channels.arrived(channel);
      const [waiting, unanswered] = [arrived - track.started, track.started - track.told];
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
    const { ring, memory } = this.#parts;
    const { words } = ring;
    const at = ring.slotOffset(slot) / 4;
    const piece = this.#pieces[slot]!;
    // The sender could change a word after it was checked: each is read once.
    const kind = words[at + head.kind]!;
    const found = memory.find(words[at + head.region]!, wideAt(words, at + head.key));
    piece.kind = kind;
    piece.copies = undefined;
    piece.status = pieceStatuses.good;
    if (kind === pieceKinds.nothing) return true;
    if (kind !== pieceKinds.write && kind !== pieceKinds.read && kind !== pieceKinds.signal) {
      throw this.#protocol(`a piece of kind ${kind}`);
    }
    if (found === undefined) {
      piece.status = pieceStatuses.unauthorized;
      return true;
    }
    try {
      const ticket = kind === pieceKinds.signal ? this.#signal(slot, found) : this.#copy(slot, found);
      if (ticket < 0) return false;
      piece.ticket = ticket;
      piece.copies = found.copies;
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_PROTOCOL') throw error;
      piece.status = pieceStatuses.failed;
    }
    return true;
  }

  /** Signals behind all copies before it, whichever channels they came by and whichever devices make them. */
  #signal(slot: number, found: StagedMemory): number {
    const { words } = this.#parts.ring;
    const at = this.#parts.ring.slotOffset(slot) / 4;
    const own = channelOf(slot, this.#tracks.length);
    for (let channel = 0; channel < this.#tracks.length; channel++) {
      const missing = (words[at + HEAD_WORDS + channel]! - this.#tracks[channel]!.started) | 0;
      if (channel !== own && missing > 0) return NO_TICKET;
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
    for (const other of this.#pieces) {
      if (other.copies !== undefined && other.copies !== found.copies && !isCopied(other)) return NO_TICKET;
    }
    return found.copies.add(found.address + cell, add, sum);
  }

  #copy(slot: number, found: StagedMemory): number {
    const { ring, run } = this.#parts;
    const { words } = ring;
    const piece = this.#pieces[slot]!;
    const at = ring.slotOffset(slot) / 4;
    const fragments = words[at + head.fragments]!;
    if (fragments < 1 || fragments > MAX_PIECE_FRAGMENTS) throw this.#protocol(`${fragments} fragments in a piece`);
    piece.offset = ring.slotOffset(slot) + dataOffsetOf(fragments);
    piece.bytes = 0;
    run.begin(ring.address + piece.offset);
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
      run.add(found.address + remoteOffset, slotOffset, bytes);
      piece.bytes = Math.max(piece.bytes, slotOffset + bytes);
    }
    return found.copies.copy(wayOf(piece), run);
  }

  /** False if it cannot go back yet. */
  #finish(channel: number, slot: number): boolean {
    const piece = this.#pieces[slot]!;
    if (!isCopied(piece)) return false;
    const { ring, channels } = this.#parts;
    const place = this.#place;
    if (piece.status !== pieceStatuses.good) {
      place.localOffset = ring.statusOffset(slot);
      place.bytes = 8;
      ring.words[place.localOffset / 4] = piece.status;
    } else if (piece.kind === pieceKinds.read) {
      place.localOffset = piece.offset;
      place.bytes = piece.bytes;
    } else return true;
    place.remoteOffset = place.localOffset;
    return channels.put(channel, place);
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

function wayOf({ kind }: Arrived): CopyWay {
  return kind === pieceKinds.read ? 'out' : 'in';
}

/** True if its copies are done, also if they failed. */
function isCopied(piece: Arrived): boolean {
  if (piece.copies === undefined) return true;
  try {
    if (!piece.copies.isDone(wayOf(piece), piece.ticket)) return false;
  } catch {
    piece.status = pieceStatuses.failed;
  }
  piece.copies = undefined;
  return true;
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
  readonly run: CopyRun;
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
      this.#end(guest, asWeftlineError(error), true);
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
    const { backend, links, greeter, devices, memory, run } = this.#options;
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
    const channels = PieceChannels.open(link, count, ring, remote);
    guest.session = new ReceiveSession({ peer, memory, run, ring, local, remote, channels });
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
    for (const { link } of isOwn ? uses : [])
      this.#options.greeter.sayGoodbye(link, { lane, from: 'receiver', error: why });
    guest.ending = endRing({ ...guest, fence: this.#options.fence })
      .catch((error: unknown) =>
        log('agent', 'warn', `a ring for pieces of ${peer} was not freed: ${asWeftlineError(error).message}`),
      )
      .finally(() => this.#guests.delete(guest));
  }
}
