// A peer's mailbox as a sender sees it: its place in it, its regions' keys, whether the peer still lives.
import { type LinkState, restarted } from '../../backend.ts';
import {
  headerWord,
  MAILBOX_MAGIC,
  MAILBOX_REGIONS,
  MAILBOX_VERSION,
  mailboxBytes,
  mailboxHeader,
  mailboxRegion,
  mailboxSender,
  mailboxStates,
  type NotificationRing,
  OWNER_LOCK,
  REGIONS_OFFSET,
  ringDoorbell,
  ringOf,
  SENDER_NAME_BYTES,
  sendersOf,
  senderStates,
  slotOffset,
  slotWord,
} from './mailbox-layout.ts';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { settingsTable } from '../../../settings/settings.ts';
import { SharedMemory, type SharedMemoryName } from '../../../windows/shared-memory.ts';
import { Futex, isByteLocked, lockByte } from '../../../native/libc.ts';

interface PeerMailboxOptions {
  readonly peer: string;
  /** What the peer's metadata say: 16 hexadecimal digits. */
  readonly incarnation: string;
  readonly place: SharedMemoryName;
  /** How the peer is to call the sender. */
  readonly sender: string;
}

/** A slot can be lost between looking at it and locking it. */
const ATTEMPTS = 16;

export class PeerMailbox implements Disposable {
  /** Sends notifications to the peer. */
  readonly sender: RecordSender;
  /** Steps of the agent's thread. */
  readonly steps: PeerSteps;
  readonly deviceWork: DeviceWork;
  /** This side's place in the mailbox. */
  readonly slot: number;
  readonly #memory: SharedMemory;
  readonly #buffer: ArrayBuffer;
  readonly #header: Int32Array;
  /** `joins` when this side had come, or a little later. */
  readonly #joins: number;
  #isClosed = false;

  /** Fails with WL_PEER_LOST, WL_STALE, WL_SHARED_MEMORY, WL_PROTOCOL or WL_CAPACITY. */
  static open(options: PeerMailboxOptions): PeerMailbox {
    for (let attempt = 1; ; attempt += 1) {
      const memory = SharedMemory.open(options.place, options.peer);
      try {
        checkHeader(memory.buffer(), options);
        const slot = takeSlot(memory, options.sender);
        if (slot !== undefined) return new PeerMailbox(memory, slot);
        if (attempt === ATTEMPTS || isFull(memory.buffer())) throw full(options.peer, sendersOf(memory.buffer()));
      } catch (error) {
        memory[Symbol.dispose]();
        throw error;
      }
      memory[Symbol.dispose]();
    }
  }

  private constructor(memory: SharedMemory, slot: number) {
    this.#memory = memory;
    this.#buffer = memory.buffer();
    this.#header = new Int32Array(this.#buffer, 0, mailboxHeader.size / 4);
    this.#joins = Atomics.load(this.#header, headerWord.joins);
    this.slot = slot;
    this.sender = new RecordSender(this.#buffer, slot);
    this.steps = new PeerSteps(this.#buffer, slot, 'agentStep');
    this.deviceWork = new DeviceWork(this.#buffer, slot);
  }

  /** The address at which this process has it mapped. */
  get address(): number {
    return this.#memory.address;
  }

  get bytes(): number {
    return this.#memory.bytes;
  }

  /** Hot path. */
  get isClosedByOwner(): boolean {
    return Atomics.load(this.#header, headerWord.state) === mailboxStates.closed;
  }

  /** A system call. */
  get ownerState(): LinkState {
    if (this.isClosedByOwner) return 'closed';
    return isByteLocked(this.#memory.fd, OWNER_LOCK) ? 'open' : 'dead';
  }

  /** Whether the owner has looked at this side's place since it was taken: so it runs. Both words wrap. */
  get isAdmitted(): boolean {
    return ((Atomics.load(this.#header, headerWord.admitted) - this.#joins) | 0) >= 0;
  }

  [Symbol.dispose](): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.deviceWork.close();
    Atomics.store(new Int32Array(this.#buffer), slotWord(this.slot, 'state'), senderStates.closed);
    this.#memory[Symbol.dispose]();
  }
}

function checkHeader(buffer: ArrayBuffer, { peer, incarnation }: PeerMailboxOptions): void {
  const header = new Block(mailboxHeader, buffer, 0);
  if (header.get('magic') !== MAILBOX_MAGIC || header.get('version') !== MAILBOX_VERSION) {
    throw new WeftlineError('WL_PROTOCOL', `The mailbox of ${peer} is of another version of weftline`, {
      details: { peer, version: header.get('version'), wanted: MAILBOX_VERSION },
    });
  }
  const senders = header.get('senders');
  if (senders < 1 || senders > settingsTable.localSenders.max || mailboxBytes(senders) !== buffer.byteLength) {
    throw new WeftlineError('WL_PROTOCOL', `The mailbox of ${peer} is invalid: it has places for ${senders} senders`, {
      details: { peer, senders, bytes: buffer.byteLength },
    });
  }
  const found = new DataView(buffer, mailboxHeader.offset.incarnation, 8).getBigUint64(0, true);
  if (found !== BigInt(`0x${incarnation}`)) throw restarted(peer, incarnation, found.toString(16).padStart(16, '0'));
  if (header.get('state') !== mailboxStates.closed) return;
  throw new WeftlineError('WL_PEER_LOST', `${peer} closed its agent`, { details: { peer } });
}

/** Returns undefined if no slot could be taken. */
function takeSlot(memory: SharedMemory, sender: string): number | undefined {
  const buffer = memory.buffer();
  const words = new Int32Array(buffer);
  const senders = sendersOf(buffer);
  for (let slot = 0; slot < senders; slot += 1) {
    const stateAt = slotWord(slot, 'state');
    if (Atomics.load(words, stateAt) !== senderStates.free || !lockByte(memory.fd, 1 + slot)) continue;
    // INVARIANT: only the lock's holder opens a slot, and only the owner frees one, when nobody holds its lock.
    if (Atomics.load(words, stateAt) !== senderStates.free) return undefined;
    const name = Buffer.from(sender).subarray(0, SENDER_NAME_BYTES);
    new Uint8Array(buffer, slotOffset(slot) + mailboxSender.offset.name, SENDER_NAME_BYTES).set(name);
    new Block(mailboxSender, buffer, slotOffset(slot)).set('nameBytes', name.length);
    for (const step of ['agentStep', 'copyStep'] as const) {
      // The last holder died within a step. The word must change, for an owner that waits for that.
      if (Atomics.load(words, slotWord(slot, step)) % 2 !== 0) Atomics.add(words, slotWord(slot, step), 1);
    }
    raise(words, headerWord.usedSenders, slot + 1);
    Atomics.store(words, stateAt, senderStates.open);
    Atomics.add(words, headerWord.joins, 1);
    return slot;
  }
  return undefined;
}

function isFull(buffer: ArrayBuffer): boolean {
  const words = new Int32Array(buffer);
  const senders = sendersOf(buffer);
  for (let slot = 0; slot < senders; slot += 1) {
    if (Atomics.load(words, slotWord(slot, 'state')) === senderStates.free) return false;
  }
  return true;
}

/** Makes the word at least that. */
function raise(words: Int32Array, at: number, value: number): void {
  for (let seen = Atomics.load(words, at); seen < value;) {
    const found = Atomics.compareExchange(words, at, seen, value);
    if (found === seen) return;
    seen = found;
  }
}

function full(peer: string, senders: number): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `${peer} has links from ${senders} agents of this host already, as many as its setting localSenders allows`,
    { details: { peer, allowed: senders } },
  );
}

// What a sender does there: tells whether it is within a step, writes records. Hot path.

/** Whether a thread of the sender is within a step: each one that copies has a word of its own. */
type StepWord = 'agentStep' | 'copyStep';

interface ReleasableGrant extends RegionGrant {
  readonly isReleased: boolean;
}

/**
 * On x86-64 an atomic addition is a full barrier, and loads and stores otherwise stay in order; so ordinary ones suffice,
 * which cost a fraction of a call of Atomics.
 */
const IS_X64 = process.arch === 'x64';

export class PeerSteps {
  readonly #words: Int32Array;
  readonly #at: number;
  readonly #keys: Int32Array;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number, word: StepWord) {
    this.#words = new Int32Array(buffer, slotOffset(slot), mailboxSender.size / 4);
    this.#at = mailboxSender.offset[word] / 4;
    this.#keys = new Int32Array(buffer, REGIONS_OFFSET, (MAILBOX_REGIONS * mailboxRegion.size) / 4);
  }

  /** ORDER: before the keys are looked at. From now until `end` the owner waits with what it takes back. Not reentrant. */
  begin(): void {
    Atomics.add(this.#words, this.#at, 1);
  }

  /** ORDER: after the last access to the peer's memory. */
  end(): void {
    if (IS_X64) this.#words[this.#at]! += 1;
    else Atomics.add(this.#words, this.#at, 1);
  }

  /** True if the peer has all of them registered. While this side is within a step, the peer's deregistration waits. */
  hold(grants: RegionGrants): boolean {
    return grants.areHeld(this.#keys);
  }

  /** The same of regions themselves; none of them may have been released by this side either. */
  mayTouch(regions: readonly ReleasableGrant[]): boolean {
    const keys = this.#keys;
    for (let index = 0; index < regions.length; index += 1) {
      const { isReleased, keyAt, keyValue } = regions[index] as ReleasableGrant;
      if (isReleased || (IS_X64 ? keys[keyAt] : Atomics.load(keys, keyAt)) !== keyValue) return false;
    }
    return true;
  }

  holds({ keyAt, keyValue }: RegionGrant): boolean {
    return Atomics.load(this.#keys, keyAt) === keyValue;
  }
}

// The peer's regions that a transfer touches, as keys to look up before each step. Shared by the threads that copy.

/** What a copy of a step fails with when the peer has taken a region back; neither an errno nor CUT_SHORT. */
export const REVOKED = -2;

/** Index of a word of the peer's table of regions, and what stands there as long as the region is registered. */
export interface RegionGrant {
  readonly keyAt: number;
  /** The value as a signed number. */
  readonly keyValue: number;
}

const WORDS = mailboxRegion.size / 4;

export function grantOf({ slot, key }: { readonly slot: number; readonly key: number }): RegionGrant {
  return { keyAt: slot * WORDS, keyValue: key | 0 };
}

export class RegionGrants {
  /** The memory that `RegionGrants.over` takes in another thread: index of a word of the table and its value, for each region. */
  readonly buffer: SharedArrayBuffer;
  readonly #pairs: Int32Array;

  static of(regions: readonly RegionGrant[]): RegionGrants {
    const buffer = new SharedArrayBuffer(regions.length * 8);
    new Int32Array(buffer).set(regions.flatMap(({ keyAt, keyValue }) => [keyAt, keyValue]));
    return new RegionGrants(buffer);
  }

  static over(buffer: SharedArrayBuffer): RegionGrants {
    return new RegionGrants(buffer);
  }

  private constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer;
    this.#pairs = new Int32Array(buffer);
  }

  /** Hot path. True if all of them are registered. `keys`: the table in the peer's mailbox. */
  areHeld(keys: Int32Array): boolean {
    const pairs = this.#pairs;
    for (let at = 0; at < pairs.length; at += 2) {
      if (Atomics.load(keys, pairs[at]!) !== pairs[at + 1]) return false;
    }
    return true;
  }
}

// A sender's end of a peer's mailbox: writes records to the peer and wakes it if it sleeps. Hot path.

export class RecordSender {
  readonly #header: Int32Array;
  readonly #doorbell: Futex;
  readonly ring: NotificationRing;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number) {
    this.#header = new Int32Array(buffer, 0, mailboxHeader.size / 4);
    this.#doorbell = new Futex(this.#header.subarray(headerWord.doorbell, headerWord.doorbell + 1));
    this.ring = ringOf(buffer, slot);
  }

  /** False, with nothing written, if the peer has to read earlier records first. */
  push(record: Uint8Array): boolean {
    if (!this.ring.push(record)) return false;
    // ORDER: the record is stamped before this look.
    if (Atomics.load(this.#header, headerWord.sleepers) !== 0) ringDoorbell(this.#header, this.#doorbell);
    return true;
  }
}

// Tells the owner of memory what a sender's GPUs still do with it: streams go on after the step that filled them.

const BEGUN = mailboxSender.offset.deviceBegun / 4;
const ENDED = mailboxSender.offset.deviceEnded / 4;

/** Work of one link, on the agent's thread only. */
export class DeviceWork {
  #words: Int32Array;
  /** Tickets of unfinished work, oldest first. */
  readonly #open: number[] = [];

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number) {
    this.#words = new Int32Array(buffer, slotOffset(slot), mailboxSender.size / 4);
    // A sender that had the slot before may have died with work under way.
    Atomics.store(this.#words, ENDED, Atomics.load(this.#words, BEGUN));
  }

  /** The ticket of the latest piece of work. */
  get latest(): number {
    return this.#words[BEGUN]!;
  }

  /** Hot path. To be called within a step, before the work is given to a GPU. Returns a ticket. */
  begin(): number {
    const ticket = (Atomics.add(this.#words, BEGUN, 1) + 1) | 0;
    this.#open.push(ticket);
    return ticket;
  }

  /** Hot path. That piece of work touches nothing any more. */
  end(ticket: number): void {
    const at = this.#open.indexOf(ticket);
    if (at === -1) return;
    this.#open.splice(at, 1);
    const oldest = this.#open[0];
    Atomics.store(this.#words, ENDED, oldest === undefined ? this.latest : (oldest - 1) | 0);
  }

  /** The mailbox is about to be unmapped. */
  close(): void {
    this.#words = new Int32Array(mailboxSender.size / 4);
  }

  /** True if that piece of work and all before it are over. */
  hasEnded(ticket: number): boolean {
    const oldest = this.#open[0];
    return oldest === undefined || ((oldest - ticket) | 0) > 0;
  }
}
