// An agent's own mailbox: peers write notifications into it and read from it which regions there are. `poll` is a hot path.
import { randomInt } from 'node:crypto';
import {
  headerWord,
  MAILBOX_MAGIC,
  MAILBOX_REGIONS,
  MAILBOX_VERSION,
  mailboxBytes,
  mailboxHeader,
  mailboxRegion,
  mailboxStates,
  nameOf,
  type NotificationRing,
  OWNER_LOCK,
  REGIONS_OFFSET,
  ringDoorbell,
  ringOf,
  senderStates,
  slotWord,
} from './mailbox-layout.ts';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { Futex, isByteLocked, lockByte } from '../../../native/libc.ts';
import { SharedMemory } from '../../../windows/shared-memory.ts';
import type { BackendContext } from '../../backend.ts';

interface Sender {
  readonly slot: number;
  readonly name: string;
  readonly ring: NotificationRing;
  /** It wrote an invalid record; its ring is not read any more. */
  isBroken: boolean;
}

/** The receiver of messages, and whether there is room for another of a peer. */
type Delivery = Pick<BackendContext, 'deliver' | 'mayDeliver'>;

/** A sender that was within a step of a copy, or had work on a GPU under way, when it was first looked at. */
interface Within {
  readonly slot: number;
  readonly agentStep: number;
  readonly copyStep: number;
  /** Undefined until its steps have ended, because a step may begin more work. */
  deviceBegun: number | undefined;
}

/** Steps are shorter than a millisecond: a timer would be late. */
const QUICK_LOOKS = 64;
const PAUSE_MS = 1;

export class Mailbox {
  readonly memory: SharedMemory;
  readonly #slots: number;
  readonly #buffer: ArrayBuffer;
  readonly #words: Int32Array;
  /** Words of the whole mailbox. */
  readonly #all: Int32Array;
  readonly #regions: Int32Array;
  readonly #freeRegions: number[] = Array.from({ length: MAILBOX_REGIONS }, (_, index) => MAILBOX_REGIONS - 1 - index);
  readonly #doorbell: Futex;
  #senders: readonly Sender[] = [];
  #seenJoins = 0;
  #isArmed = false;
  #isClosed = false;
  #isUnmapped = false;

  /** `incarnation`: 16 hexadecimal digits. `senders`: how many may have a link to it at a time. */
  constructor(incarnation: string, senders: number) {
    this.#slots = senders;
    this.memory = SharedMemory.create('mailbox', mailboxBytes(senders), false);
    this.#buffer = this.memory.buffer();
    this.#words = new Int32Array(this.#buffer, 0, mailboxHeader.size / 4);
    this.#all = new Int32Array(this.#buffer);
    this.#regions = new Int32Array(this.#buffer, REGIONS_OFFSET, (MAILBOX_REGIONS * mailboxRegion.size) / 4);
    this.#doorbell = new Futex(this.#words.subarray(headerWord.doorbell, headerWord.doorbell + 1));
    const header = new Block(mailboxHeader, this.#buffer, 0);
    const words = new DataView(this.#buffer, mailboxHeader.offset.incarnation, 8);
    words.setBigUint64(0, BigInt(`0x${incarnation}`), true);
    header.set('magic', MAILBOX_MAGIC);
    header.set('version', MAILBOX_VERSION);
    header.set('address', this.memory.address);
    header.set('pid', process.pid);
    header.set('senders', senders);
    header.set('state', mailboxStates.open);
    lockByte(this.memory.fd, OWNER_LOCK);
  }

  /** Address of the word that senders ring when `arm` said so. */
  get doorbellAddress(): number {
    return this.memory.address + mailboxHeader.offset.doorbell;
  }

  /** Hot path. True while links of peers lead here. */
  get hasSenders(): boolean {
    return this.#senders.length > 0;
  }

  /** A place in the table of regions. Fails with WL_CAPACITY. */
  openRegion(): { readonly slot: number; readonly key: number } {
    const slot = this.#freeRegions.pop();
    if (slot === undefined) {
      throw new WeftlineError(
        'WL_CAPACITY',
        `An agent shares at most ${MAILBOX_REGIONS} regions with its host: deregister some, or register larger ones`,
        { details: { allowed: MAILBOX_REGIONS } },
      );
    }
    const key = randomInt(1, 2 ** 32);
    Atomics.store(this.#regions, (slot * mailboxRegion.size) / 4, key);
    return { slot, key };
  }

  /**
   * Takes a region back. Resolves when no sender touches its memory any more; fails with WL_TIMEOUT, and may then be called
   * again. Until it has resolved the place is not given to another region.
   */
  async closeRegion(slot: number, timeoutMs: number): Promise<void> {
    if (this.#isClosed) return;
    Atomics.store(this.#regions, (slot * mailboxRegion.size) / 4, 0);
    await this.#untilStepsOver(timeoutMs, 'Cannot take memory back');
    if (!this.#isClosed) this.#freeRegions.push(slot);
  }

  /** Hands over what senders wrote. True if there was anything. */
  poll(delivery: Delivery): boolean {
    if (this.#isClosed) return false;
    if (this.#isArmed) {
      this.#isArmed = false;
      Atomics.store(this.#words, headerWord.sleepers, 0);
    }
    if (Atomics.load(this.#words, headerWord.joins) !== this.#seenJoins) this.#admit();
    let any = false;
    for (let index = 0; index < this.#senders.length; index += 1) {
      const sender = this.#senders[index] as Sender;
      if (!sender.isBroken && this.#drain(sender, delivery)) any = true;
    }
    return any;
  }

  /** Lets senders ring the doorbell until the next poll. False if something is there already. */
  arm(delivery: Delivery): boolean {
    this.#isArmed = true;
    Atomics.store(this.#words, headerWord.sleepers, 1);
    if (Atomics.load(this.#words, headerWord.joins) !== this.#seenJoins) return false;
    return !this.#senders.some((sender) => hasNews(sender, delivery));
  }

  /** Rings the own doorbell. */
  ring(): void {
    ringDoorbell(this.#words, this.#doorbell);
  }

  /** Frees the places of senders that left or died; what they had written is delivered first. */
  freeSenders(delivery: Delivery): void {
    if (this.#isClosed) return;
    const { fd } = this.memory;
    for (const sender of this.#senders) {
      if (isByteLocked(fd, 1 + sender.slot)) continue;
      if (!sender.isBroken) this.#drain(sender, delivery);
      if (sender.ring.hasRecord && !sender.isBroken) continue;
      this.#senders = this.#senders.filter((other) => other !== sender);
      sender.ring.reset();
      Atomics.store(this.#all, slotWord(sender.slot, 'state'), senderStates.free);
    }
  }

  /**
   * Takes all regions back and tells senders that the agent is gone. Resolves when none of them touches its memory any more;
   * fails with WL_TIMEOUT, the mailbox being closed all the same.
   */
  async close(timeoutMs: number): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#senders = [];
    // ORDER: before the regions, so that senders who may not touch one any more see why.
    Atomics.store(this.#words, headerWord.state, mailboxStates.closed);
    for (let slot = 0; slot < MAILBOX_REGIONS; slot += 1) {
      Atomics.store(this.#regions, (slot * mailboxRegion.size) / 4, 0);
    }
    try {
      await this.#untilStepsOver(timeoutMs, 'Cannot close the agent');
    } finally {
      this.#isUnmapped = true;
      this.memory[Symbol.dispose]();
    }
  }

  /** Hot path. True if there was anything. */
  #drain(sender: Sender, { deliver, mayDeliver }: Delivery): boolean {
    const { name, ring } = sender;
    let any = false;
    try {
      while (ring.hasRecord && mayDeliver(name)) {
        deliver(name, ring.take() as Uint8Array);
        any = true;
      }
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      sender.isBroken = true;
    }
    return any;
  }

  #admit(): void {
    this.#seenJoins = Atomics.load(this.#words, headerWord.joins);
    const used = Math.min(Atomics.load(this.#words, headerWord.usedSenders), this.#slots);
    const known = new Set(this.#senders.map(({ slot }) => slot));
    const senders = [...this.#senders];
    for (let slot = 0; slot < used; slot += 1) {
      // One that has left already may have written something before.
      if (Atomics.load(this.#all, slotWord(slot, 'state')) === senderStates.free || known.has(slot)) continue;
      senders.push({ slot, name: nameOf(this.#buffer, slot), ring: ringOf(this.#buffer, slot), isBroken: false });
    }
    this.#senders = senders;
    Atomics.store(this.#words, headerWord.admitted, this.#seenJoins);
  }

  /**
   * Resolves when no sender is within a step, nor has work on a GPU under way, that began before the call. ORDER: to be
   * called after the keys were taken away, so that every later step finds them gone. A sender that died holds nothing up.
   * Fails with WL_TIMEOUT, naming one that is still within it.
   */
  async #untilStepsOver(timeoutMs: number, what: string): Promise<void> {
    let left = this.#sendersWithin();
    if (left.length === 0) return;
    const end = performance.now() + timeoutMs;
    for (let looks = 1; ; looks += 1) {
      if (looks <= QUICK_LOOKS) await new Promise((resolve) => setImmediate(resolve));
      else await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      if (this.#isUnmapped) return;
      left = left.filter((within) => this.#isWithin(within));
      const [first] = left;
      if (first === undefined) return;
      if (performance.now() > end) throw this.#late(first, timeoutMs, what);
    }
  }

  #sendersWithin(): Within[] {
    const words = this.#all;
    const used = Math.min(Atomics.load(words, headerWord.usedSenders), this.#slots);
    const found: Within[] = [];
    for (let slot = 0; slot < used; slot += 1) {
      if (Atomics.load(words, slotWord(slot, 'state')) === senderStates.free) continue;
      const agentStep = Atomics.load(words, slotWord(slot, 'agentStep'));
      const copyStep = Atomics.load(words, slotWord(slot, 'copyStep'));
      const within: Within = { slot, agentStep, copyStep, deviceBegun: undefined };
      if (this.#isWithin(within)) found.push(within);
    }
    return found;
  }

  #isWithin(within: Within): boolean {
    const { slot, agentStep, copyStep } = within;
    if (!this.#isSame(slotWord(slot, 'agentStep'), agentStep) && !this.#isSame(slotWord(slot, 'copyStep'), copyStep)) {
      within.deviceBegun ??= Atomics.load(this.#all, slotWord(slot, 'deviceBegun'));
      const ended = Atomics.load(this.#all, slotWord(slot, 'deviceEnded'));
      if (((ended - within.deviceBegun) | 0) >= 0) return false;
    }
    return isByteLocked(this.memory.fd, 1 + slot);
  }

  /** True while the thread has not left the step that it was in. */
  #isSame(at: number, seen: number): boolean {
    return seen % 2 !== 0 && Atomics.load(this.#all, at) === seen;
  }

  #late({ slot }: Within, timeoutMs: number, what: string): WeftlineError {
    const peer = nameOf(this.#buffer, slot);
    return new WeftlineError(
      'WL_TIMEOUT',
      `${what}: agent ${peer} has been copying to or from this agent's memory for ${timeoutMs} ms; the memory takes no new transfers, but must not be used for anything else yet: call again to go on waiting`,
      { details: { peer, timeoutMs } },
    );
  }
}

/** Something that may be delivered now. */
function hasNews({ name, ring, isBroken }: Sender, { mayDeliver }: Delivery): boolean {
  return ring.hasRecord && !isBroken && mayDeliver(name);
}
