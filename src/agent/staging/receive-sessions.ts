// The rings of this thread that peers send pieces into: made when a peer says hello, gone when it leaves or misbehaves.
import { wideAt } from '../../abi/layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { Backend, BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import type { CopyRun, CopyWay, DeviceCopies, DeviceTable } from './device-copies.ts';
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

/** What is left to do for a piece whose copies are done. */
const steps = { status: 0, answer: 1 } as const;
/** The sender is told after this share of its slots at the latest: it goes on with the others meanwhile. */
const UNTOLD_SHARE = 4;

const { offset } = pieceHead;

export class ReceiveSession {
  readonly #parts: ReceiveSessionParts;
  readonly #place: PutPlace;
  /** Columns by channel: its slots, its pieces so far, and those of which the sender was told. */
  readonly #slotsOf: Uint32Array;
  readonly #started: Float64Array;
  readonly #finished: Float64Array;
  readonly #told: Float64Array;
  /** Columns by slot. */
  readonly #kinds: Uint8Array;
  readonly #statuses: Uint8Array;
  readonly #tickets: Float64Array;
  readonly #copies: (DeviceCopies | undefined)[];
  readonly #dataOffsets: Uint32Array;
  readonly #dataBytes: Uint32Array;
  /** The step of each channel's oldest piece. */
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

  /** Signals behind all copies before it, whichever channels they came by and whichever devices make them. */
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

interface Guest {
  readonly peer: string;
  /** The sender's number. */
  readonly lane: number;
  readonly ring: RingMemory;
  readonly use: LinkUse;
  readonly local: BackendRegion;
  readonly session: ReceiveSession;
}

/** A sender that waits for its welcome. */
interface Arrival {
  readonly peer: string;
  readonly lane: number;
  /** It waits no more. */
  left: WeftlineError | undefined;
}

export class ReceiveSessions {
  readonly #options: ReceiveSessionsOptions;
  readonly #guests = new Set<Guest>();
  readonly #arrivals = new Set<Arrival>();
  /** Sessions that are being made or ended, by peer. */
  readonly #changing = new Map<string, number>();
  readonly #ending = new Set<Promise<void>>();

  constructor(options: ReceiveSessionsOptions) {
    this.#options = options;
  }

  /** Goes on. True if something moved. */
  step(): boolean {
    let hasMoved = false;
    for (const guest of this.#guests) {
      const { error } = guest.use.link;
      if (error !== undefined) {
        this.#end(guest, error, false);
        continue;
      }
      try {
        if (guest.session.step()) hasMoved = true;
      } catch (thrown) {
        this.#end(guest, asWeftlineError(thrown), true);
      }
    }
    return hasMoved;
  }

  /** A peer wants to send pieces. Never throws. */
  async receive(peer: string, hello: Hello): Promise<void> {
    const arrival: Arrival = { peer, lane: hello.lane, left: undefined };
    this.#arrivals.add(arrival);
    this.#count(peer, 1);
    try {
      await this.#receive(arrival, hello);
    } catch (error) {
      log('agent', 'warn', `no pieces from ${peer}: ${asWeftlineError(error).message}`);
    } finally {
      this.#arrivals.delete(arrival);
      this.#count(peer, -1);
    }
  }

  /** The peer's lane of that number is closed. */
  leave(peer: string, lane: number, why: WeftlineError): void {
    for (const guest of this.#guests) if (guest.peer === peer && guest.lane === lane) this.#end(guest, why, false);
    for (const arrival of this.#arrivals) if (arrival.peer === peer && arrival.lane === lane) arrival.left = why;
  }

  async close(error: WeftlineError): Promise<void> {
    for (const arrival of this.#arrivals) arrival.left = error;
    for (const guest of this.#guests) this.#end(guest, error, true);
    await Promise.allSettled(this.#ending);
  }

  async #receive(arrival: Arrival, hello: Hello): Promise<void> {
    const { peer } = arrival;
    // The check comes before a greeting costs a connection; such a peer gets no answer.
    if ((this.#changing.get(peer) ?? 0) > MAX_GREETINGS_OF_PEER)
      throw new WeftlineError('WL_CAPACITY', 'It says hello too often');
    const { backend, links, greeter } = this.#options;
    const { lane, incarnation, host, process, connectionInfo } = hello;
    const deadline = new Deadline(Math.min(hello.timeoutMs, MAX_GREETING_MS));
    const { timeoutMs } = deadline;
    const use = await links.use({ name: peer, incarnation, host, process, connectionInfo }, { timeoutMs, deadline });
    let ring: RingMemory | undefined;
    let local: BackendRegion | undefined;
    try {
      this.#check(peer, hello);
      const { link } = use;
      const { slots, pieceBytes, channels: count } = hello;
      ring = new RingMemory({ slots, pieceBytes }, this.#options.devices.makeStorage);
      local = await backend.register(ring.memory);
      const remote = link.importRegion(hello.ring, { kind: 'host', bytes: ringBytesOf(ring.shape) });
      if (arrival.left !== undefined) throw arrival.left;
      const { memory, run } = this.#options;
      const channels = PieceChannels.open(link, count, ring, remote);
      const session = new ReceiveSession({ peer, memory, run, ring, local, remote, channels });
      this.#guests.add({ peer, lane, ring, use, local, session });
      await greeter.welcome(link, lane, local.info, deadline);
    } catch (error) {
      const known = [...this.#guests].find((guest) => guest.ring === ring);
      if (known !== undefined) this.#end(known, asWeftlineError(error), true);
      else {
        greeter.sayGoodbye(use.link, { lane, from: 'receiver', error });
        await local?.release().catch(() => {});
        ring?.free();
        await use.giveBack().catch(() => {});
      }
      throw error;
    }
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
    const open = [...this.#guests].filter((guest) => guest.peer === peer).length + (this.#changing.get(peer) ?? 0);
    if (open <= MAX_SESSIONS_OF_PEER) return;
    throw new WeftlineError('WL_CAPACITY', `A peer has at most ${MAX_SESSIONS_OF_PEER} rings: ${peer} wants another`);
  }

  #end(guest: Guest, why: WeftlineError, isOwn: boolean): void {
    if (!this.#guests.delete(guest)) return;
    const { peer, lane, use } = guest;
    if (isOwn) this.#options.greeter.sayGoodbye(use.link, { lane, from: 'receiver', error: why });
    this.#count(peer, 1);
    const ending = this.#free(guest);
    this.#ending.add(ending);
    void ending.finally(() => {
      this.#count(peer, -1);
      this.#ending.delete(ending);
    });
  }

  /** Never throws. */
  async #free({ peer, use, local, ring, session }: Guest): Promise<void> {
    try {
      await endRing({ fence: this.#options.fence, session, local, ring, uses: [use] });
    } catch (error) {
      log('agent', 'warn', `a ring for pieces of ${peer} was not freed: ${asWeftlineError(error).message}`);
    }
  }

  #count(peer: string, change: number): void {
    const count = (this.#changing.get(peer) ?? 0) + change;
    if (count === 0) this.#changing.delete(peer);
    else this.#changing.set(peer, count);
  }
}
