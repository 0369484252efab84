// A peer's mailbox as a sender sees it: its place in it, its regions' keys, whether the peer still lives.
import {
  MAILBOX_BYTES,
  MAILBOX_MAGIC,
  MAILBOX_REGIONS,
  MAILBOX_SENDERS,
  MAILBOX_VERSION,
  mailboxHeader,
  mailboxRegion,
  mailboxSender,
  mailboxStates,
  REGIONS_OFFSET,
  SENDER_NAME_BYTES,
  senderStates,
} from '../../../abi/agent-mailbox.ts';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { SharedMemory, type SharedMemoryName } from '../../../memory/shared-memory.ts';
import { isByteLocked, lockByte } from '../../../native/libc.ts';
import { headerWord, OWNER_LOCK, slotOffset } from './mailbox.ts';
import { RecordSender } from './record-sender.ts';

export interface PeerMailboxOptions {
  readonly peer: string;
  /** What the peer's metadata say: 16 hexadecimal digits. */
  readonly incarnation: string;
  readonly place: Omit<SharedMemoryName, 'bytes'>;
  /** How the peer is to call the sender. */
  readonly sender: string;
}

/** A slot can be lost between looking at it and locking it. */
const ATTEMPTS = 16;

export class PeerMailbox implements Disposable {
  /** For notifications to the peer. */
  readonly sender: RecordSender;
  /** This side's place in the mailbox. */
  readonly slot: number;
  readonly #memory: SharedMemory;
  readonly #buffer: ArrayBuffer;
  readonly #header: Int32Array;
  readonly #regions: Uint32Array;
  readonly #stateAt: number;
  #isClosed = false;

  /** Fails with WL_PEER_LOST, WL_STALE, WL_SHARED_MEMORY, WL_PROTOCOL or WL_CAPACITY. */
  static open(options: PeerMailboxOptions): PeerMailbox {
    for (let attempt = 1; ; attempt += 1) {
      const memory = SharedMemory.open({ ...options.place, bytes: MAILBOX_BYTES }, options.peer);
      try {
        checkHeader(memory.buffer(), options);
        const slot = takeSlot(memory, options.sender);
        if (slot !== undefined) return new PeerMailbox(memory, slot);
      } catch (error) {
        memory[Symbol.dispose]();
        throw error;
      }
      memory[Symbol.dispose]();
      if (attempt < ATTEMPTS) continue;
      throw new WeftlineError(
        'WL_CAPACITY',
        `${options.peer} has links from ${MAILBOX_SENDERS} agents of this host already, and takes no more`,
        { details: { peer: options.peer, allowed: MAILBOX_SENDERS } },
      );
    }
  }

  private constructor(memory: SharedMemory, slot: number) {
    this.#memory = memory;
    this.#buffer = memory.buffer();
    this.#header = new Int32Array(this.#buffer, 0, mailboxHeader.size / 4);
    this.#regions = new Uint32Array(this.#buffer, REGIONS_OFFSET, (MAILBOX_REGIONS * mailboxRegion.size) / 4);
    this.slot = slot;
    this.sender = new RecordSender(this.#buffer, slot);
    this.#stateAt = (slotOffset(slot) + mailboxSender.offset.state) / 4;
  }

  /** Where this process has it mapped. */
  get address(): number {
    return this.#memory.address;
  }

  /** Hot path. True while the peer has the region registered under that key. */
  holds(slot: number, key: number): boolean {
    // An ordinary load, which costs a cold processor less: nobody waits in a loop for a key to change.
    return this.#regions[(slot * mailboxRegion.size) / 4] === key;
  }

  /** A system call. */
  get ownerState(): 'open' | 'closed' | 'gone' {
    if (Atomics.load(this.#header, headerWord.state) === mailboxStates.closed) return 'closed';
    return isByteLocked(this.#memory.fd, OWNER_LOCK) ? 'open' : 'gone';
  }

  [Symbol.dispose](): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    Atomics.store(new Int32Array(this.#buffer), this.#stateAt, senderStates.closed);
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
  const found = new DataView(buffer, mailboxHeader.offset.incarnation, 8).getBigUint64(0, true);
  if (found !== BigInt(`0x${incarnation}`)) {
    throw new WeftlineError('WL_STALE', `${peer} was started anew since its metadata were made: load them again`, {
      details: { peer },
    });
  }
  if (header.get('state') !== mailboxStates.closed) return;
  throw new WeftlineError('WL_PEER_LOST', `${peer} closed its agent`, { details: { peer } });
}

/** Returns undefined if no slot could be taken. */
function takeSlot(memory: SharedMemory, sender: string): number | undefined {
  const buffer = memory.buffer();
  const words = new Int32Array(buffer);
  for (let slot = 0; slot < MAILBOX_SENDERS; slot += 1) {
    const stateAt = (slotOffset(slot) + mailboxSender.offset.state) / 4;
    if (Atomics.load(words, stateAt) !== senderStates.free || !lockByte(memory.fd, 1 + slot)) continue;
    // INVARIANT: only the lock's holder opens a slot, and only the owner frees one, when nobody holds its lock.
    if (Atomics.load(words, stateAt) !== senderStates.free) return undefined;
    const name = Buffer.from(sender).subarray(0, SENDER_NAME_BYTES);
    new Uint8Array(buffer, slotOffset(slot) + mailboxSender.offset.name, SENDER_NAME_BYTES).set(name);
    new Block(mailboxSender, buffer, slotOffset(slot)).set('nameBytes', name.length);
    Atomics.store(words, stateAt, senderStates.open);
    Atomics.add(words, headerWord.joins, 1);
    return slot;
  }
  return undefined;
}
