// A peer's mailbox as a sender sees it: its place in it, its regions' keys, whether the peer still lives.
import { type LinkState, restarted } from '../../backend.ts';
import {
  headerWord,
  MAILBOX_MAGIC,
  MAILBOX_VERSION,
  mailboxBytes,
  mailboxHeader,
  mailboxSender,
  mailboxStates,
  OWNER_LOCK,
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
import { isByteLocked, lockByte } from '../../../native/libc.ts';
import { DeviceWork, PeerSteps, RecordSender } from './sender-end.ts';

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
