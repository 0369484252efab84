// The receiving half of a link: puts data where it belongs, keeps the order of signals and notifications.
import { wideAt } from '../../../abi/wide-words.ts';
import { linkWord } from '../../../abi/ucx-words.ts';
import { ucxMessageKinds, ucxRefusals, ucxTag, ucxTagKinds } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { copyMemory } from '../../../native/libc.ts';
import { viewAt } from '../../../native/library.ts';
import { isErrorPointer } from '../../../native/ucx-status.ts';
import { MAX_NOTIFICATION_BYTES } from '../../backend.ts';
import { FAILED_OPERATIONS, IN_RING_BYTES, WINDOW } from './link-block.ts';
import { CHUNK_BYTES, HEADER_BYTES, headerWord as at, INLINE_BYTES, ringBytes } from './message-header.ts';
import type { Notices } from './notices.ts';
import type { Outgoing } from './outgoing.ts';
import type { Rights } from './rights.ts';
import type { LinkTools, MessagePlace, Sender } from './sender.ts';
import type { MappedPlace } from './ucx-worker.ts';
import { REGIONS } from './ucx-tables.ts';

/** What is known of a sequence beyond the watermark. `refusing` is a receive whose message is thrown away. */
export const states = { unknown: 0, complete: 1, receiving: 2, refusing: 3, answering: 4 } as const;
/** What it does when everything before it has taken effect. */
const actions = { nothing: 0, signal: 1, notify: 2 } as const;
/** In front of a notification in the ring, in so many bytes: its length, and one of these. */
export const inRecord = { bytes: 8, valid: 1, dropped: 2, skip: 3 } as const;
const NO_REGION = -1;

export interface IncomingOptions extends LinkTools {
  readonly sender: Sender;
  readonly outgoing: Outgoing;
  readonly notices: Notices;
  readonly rights: Rights;
}

export class Incoming {
  readonly #options: IncomingOptions;
  readonly #answer: MessagePlace = { address: 0, bytes: 0, region: 0, memory: 0 };
  readonly #into: MappedPlace = { address: 0, bytes: 0, memory: 0 };
  #cellAddress = 0;
  #cell = new BigUint64Array(1);

  constructor(options: IncomingOptions) {
    this.#options = options;
  }

  /** A control message of this link, whose header begins at word `base` and at `address`. */
  take(words: Uint32Array, base: number, { address, length }: { address: number; length: number }): void {
    const { outgoing, block } = this.#options;
    const link = block.words;
    outgoing.acknowledged(words[base + at.acknowledged]!);
    const kind = words[base + at.kind]!;
    if (kind === ucxMessageKinds.acknowledge) return;
    if (kind >= ucxMessageKinds.grant) {
      this.#options.rights.heard(words, base);
      return;
    }
    if (kind === ucxMessageKinds.refuse) {
      outgoing.refused(words[base + at.operation]!, words[base + at.reason]!);
      return;
    }
    const sequence = words[base + at.sequence]! | 0;
    const ahead = (sequence - link[linkWord.watermark]!) | 0;
    const place = sequence & (WINDOW - 1);
    if (ahead <= 0 || ahead > WINDOW || block.inState[place] !== states.unknown) return;
    block.inAction[place] = actions.nothing;
    block.inRegion[place] = NO_REGION;
    block.inRequest[place] = 0;
    block.inBytes[place] = 0;
    block.inOperation[place] = words[base + at.operation]!;
    const reason = this.#accept(words, base, { address: address + HEADER_BYTES, length: length - HEADER_BYTES });
    if (reason !== 0) this.#refuse(words, base, reason);
  }

  /** Takes note of data that have arrived; carries out what waited for them. False if nothing happened. */
  step(): boolean {
    const { block, sender } = this.#options;
    const link = block.words;
    let isBusy = false;
    for (;;) {
      const next = (link[linkWord.watermark]! + 1) | 0;
      const place = next & (WINDOW - 1);
      const state = block.inState[place]!;
      if (state === states.unknown || state === states.answering) return isBusy;
      if (state === states.receiving || state === states.refusing) {
        const status = this.#check(place);
        if (status === ucsStatus.inProgress) return isBusy;
        if (state === states.receiving && status !== ucsStatus.ok) sender.break(status);
      }
      if (link[linkWord.failure] !== 0) return isBusy;
      this.#carryOut(place, next);
      block.inState[place] = states.unknown;
      link[linkWord.watermark] = next;
      link[linkWord.unacknowledgedBytes] = link[linkWord.unacknowledgedBytes]! + block.inBytes[place]!;
      isBusy = true;
    }
  }

  /** Sends what the far side has asked for. */
  sendAnswers(): boolean {
    const { block, sender, tables } = this.#options;
    const link = block.words;
    let isBusy = false;
    while (link[linkWord.answersHead] !== link[linkWord.answersTail] && sender.hasRoom) {
      const place = link[linkWord.answersHead]! & (WINDOW - 1);
      const sequence = block.answerSequence[place]!;
      const region = block.answerRegion[place]!;
      this.#answer.address = block.answerAddress[place]!;
      this.#answer.bytes = block.answerBytes[place]!;
      this.#answer.region = region;
      this.#answer.memory = tables.regionMemory[region]!;
      sender.sendData(ucxTagKinds.answer, sequence, this.#answer);
      tables.regionUses[region] = tables.regionUses[region]! - 1;
      block.inState[sequence & (WINDOW - 1)] = states.complete;
      link[linkWord.answersHead] = link[linkWord.answersHead]! + 1;
      isBusy = true;
    }
    return isBusy;
  }

  /** The link has ended: receives that no message will meet. */
  cancelReceives(): void {
    const { block, worker, tables } = this.#options;
    for (let place = 0; place < WINDOW; place++) {
      if (block.inState[place] !== states.receiving && block.inState[place] !== states.refusing) continue;
      const request = block.inRequest[place]!;
      if (request !== 0) worker.cancel(request);
    }
    const link = block.words;
    for (let next = link[linkWord.answersHead]!; next !== link[linkWord.answersTail]; next = (next + 1) | 0) {
      const region = block.answerRegion[next & (WINDOW - 1)]!;
      tables.regionUses[region] = tables.regionUses[region]! - 1;
    }
    link[linkWord.answersHead] = link[linkWord.answersTail]!;
  }

  /** After `cancelReceives`: takes note of those that have ended. True once all have. */
  drain(): boolean {
    const { block } = this.#options;
    let isDone = true;
    for (let place = 0; place < WINDOW; place++) {
      if (block.inState[place] !== states.receiving && block.inState[place] !== states.refusing) continue;
      if (this.#check(place) === ucsStatus.inProgress) isDone = false;
    }
    return isDone;
  }

  /** The status of a receive; once it has ended, UCX does not use its memory any more. */
  #check(place: number): number {
    const { block, worker } = this.#options;
    const request = block.inRequest[place]!;
    const status = request === 0 ? ucsStatus.ok : worker.check(request);
    if (status !== ucsStatus.inProgress) this.#settle(place);
    return status;
  }

  #settle(place: number): void {
    const { block, tables } = this.#options;
    const region = block.inRegion[place]!;
    if (region !== NO_REGION) tables.regionUses[region] = tables.regionUses[region]! - 1;
    block.inRequest[place] = 0;
    block.inState[place] = states.complete;
  }

  /** 0, or why not. `follows`: what lies behind the header. */
  #accept(words: Uint32Array, base: number, follows: { address: number; length: number }): number {
    const kind = words[base + at.kind]!;
    const { block } = this.#options;
    const place = words[base + at.sequence]! & (WINDOW - 1);
    if (this.#hasFailed(words[base + at.operation]!)) return ucxRefusals.earlier;
    const message = words[base + at.messageBytes]! - 1;
    if (kind === ucxMessageKinds.notify) return this.#takeMessage(words, base, { ...follows, message });
    const region = this.#regionOf(words, base);
    if (region === NO_REGION) return ucxRefusals.region;
    const { tables } = this.#options;
    const offset = wideAt(words, base + at.offset);
    const bytes = wideAt(words, base + at.bytes);
    const to = tables.regionAddress[region]! + offset;
    const isSignal = kind === ucxMessageKinds.signal;
    if (offset + (isSignal ? 8 : bytes) > tables.regionBytes[region]!) return ucxRefusals.range;
    if (isSignal) {
      if (to % 8 !== 0) return ucxRefusals.range;
      block.inAction[place] = actions.signal;
      block.inRegion[place] = region;
      block.inKey[place] = words[base + at.key]!;
      block.inOffset[place] = to;
      block.inAdd[place] = bytes;
      block.inState[place] = states.complete;
      return 0;
    }
    if (bytes === 0 || bytes > CHUNK_BYTES) return ucxRefusals.protocol;
    if (kind === ucxMessageKinds.read) return this.#takeQuestion(words, base, region);
    if (kind !== ucxMessageKinds.write) return ucxRefusals.protocol;
    if (bytes > INLINE_BYTES) {
      if (message >= 0 || follows.length !== 0) return ucxRefusals.protocol;
      return this.#receive(words, base, { to, bytes, region });
    }
    if (follows.length !== bytes + Math.max(0, message)) return ucxRefusals.protocol;
    if (message >= 0) {
      const status = this.#append(place, message);
      if (status !== 0) return status;
      copyMemory(block.inRing.address + block.inOffset[place]!, follows.address + bytes, message);
    }
    copyMemory(to, follows.address, bytes);
    block.inState[place] = states.complete;
    return 0;
  }

  #regionOf(words: Uint32Array, base: number): number {
    const region = words[base + at.region]!;
    return this.#isOpen(region, words[base + at.key]! | 0) ? region : NO_REGION;
  }

  #isOpen(region: number, key: number): boolean {
    const { tables } = this.#options;
    return region < REGIONS && tables.regionIsOpen[region] === 1 && tables.regionKey[region] === key;
  }

  /** Data that follow as a message of their own go straight where they belong. */
  #receive(
    words: Uint32Array,
    base: number,
    { to, bytes, region }: { to: number; bytes: number; region: number },
  ): number {
    const { block, worker, tables } = this.#options;
    const sequence = words[base + at.sequence]!;
    const place = sequence & (WINDOW - 1);
    const tag = ucxTag(ucxTagKinds.write, block.words[linkWord.number]!, sequence);
    this.#into.address = to;
    this.#into.bytes = bytes;
    this.#into.memory = region === NO_REGION ? block.ownMemory[0]! : tables.regionMemory[region]!;
    const request = worker.receive(this.#into, tag);
    if (isErrorPointer(request)) return ucxRefusals.native;
    block.inRequest[place] = request;
    block.inRegion[place] = region;
    block.inBytes[place] = bytes;
    block.inState[place] = states.receiving;
    if (region === NO_REGION) return 0;
    tables.regionUses[region] = tables.regionUses[region]! + 1;
    this.#options.rights.grant(region);
    return 0;
  }

  #takeQuestion(words: Uint32Array, base: number, region: number): number {
    const { block, tables } = this.#options;
    const link = block.words;
    const sequence = words[base + at.sequence]!;
    const answer = link[linkWord.answersTail]! & (WINDOW - 1);
    block.answerSequence[answer] = sequence;
    block.answerRegion[answer] = region;
    block.answerAddress[answer] = tables.regionAddress[region]! + wideAt(words, base + at.offset);
    block.answerBytes[answer] = wideAt(words, base + at.bytes);
    link[linkWord.answersTail] = link[linkWord.answersTail]! + 1;
    tables.regionUses[region] = tables.regionUses[region]! + 1;
    block.inState[sequence & (WINDOW - 1)] = states.answering;
    this.#options.rights.grant(region);
    return 0;
  }

  #takeMessage(
    words: Uint32Array,
    base: number,
    { address, length, message }: { address: number; length: number; message: number },
  ): number {
    const { block } = this.#options;
    const place = words[base + at.sequence]! & (WINDOW - 1);
    const isInline = message <= INLINE_BYTES;
    if (message < 0 || length !== (isInline ? message : 0)) return ucxRefusals.protocol;
    const status = this.#append(place, message);
    if (status !== 0) return status;
    const to = block.inRing.address + block.inOffset[place]!;
    if (!isInline) return this.#receive(words, base, { to, bytes: message, region: NO_REGION });
    copyMemory(to, address, message);
    block.inState[place] = states.complete;
    return 0;
  }

  /** Room in the ring for a notification, and its record; the bytes go to `inOffset`. */
  #append(place: number, message: number): number {
    const { block } = this.#options;
    const link = block.words;
    if (message > MAX_NOTIFICATION_BYTES) return ucxRefusals.protocol;
    const size = ringBytes(message);
    let end = link[linkWord.inEnd]!;
    let start = end & (IN_RING_BYTES - 1);
    const skipped = start + size > IN_RING_BYTES ? IN_RING_BYTES - start : 0;
    const used = (end + skipped + size - Atomics.load(link, linkWord.inTaken)) | 0;
    if (used > IN_RING_BYTES) return ucxRefusals.protocol;
    if (skipped > 0) {
      this.#record(start, skipped - inRecord.bytes, inRecord.skip);
      end = (end + skipped) | 0;
      start = 0;
    }
    this.#record(start, message, inRecord.valid);
    block.inOffset[place] = start + inRecord.bytes;
    link[linkWord.inEnd] = (end + size) | 0;
    block.inEnd[place] = link[linkWord.inEnd]!;
    block.inAction[place] = actions.notify;
    return 0;
  }

  #record(start: number, length: number, kind: number): void {
    const { words } = this.#options.block.inRing;
    words[start / 4] = length;
    words[start / 4 + 1] = kind;
  }

  #refuse(words: Uint32Array, base: number, reason: number): void {
    const { block, worker } = this.#options;
    const link = block.words;
    const sequence = words[base + at.sequence]!;
    const place = sequence & (WINDOW - 1);
    this.#fail(words[base + at.operation]!);
    this.#options.notices.refuse(sequence, reason);
    const message = words[base + at.messageBytes]!;
    // Notifications that were not stored will not be taken, and need no room.
    if (message > 0 && block.inAction[place] !== actions.notify)
      Atomics.add(link, linkWord.taken, ringBytes(message - 1));
    block.inState[place] = states.complete;
    const kind = words[base + at.kind]!;
    const bytes = kind === ucxMessageKinds.notify ? message - 1 : wideAt(words, base + at.bytes);
    const hasData = (kind === ucxMessageKinds.write || kind === ucxMessageKinds.notify) && bytes > INLINE_BYTES;
    if (!hasData) return;
    // A receive without room makes UCX throw the message away.
    const tag = ucxTag(ucxTagKinds.write, link[linkWord.number]!, sequence);
    this.#into.address = block.inRing.address;
    this.#into.bytes = 0;
    this.#into.memory = 0;
    const request = worker.receive(this.#into, tag);
    if (isErrorPointer(request)) return;
    block.inRequest[place] = request;
    block.inState[place] = states.refusing;
  }

  #fail(operation: number): void {
    const { block } = this.#options;
    const link = block.words;
    if (this.#hasFailed(operation)) return;
    block.failed[link[linkWord.failedCount]! & (FAILED_OPERATIONS - 1)] = operation;
    link[linkWord.failedCount] = link[linkWord.failedCount]! + 1;
  }

  #hasFailed(operation: number): boolean {
    const { block } = this.#options;
    const count = block.words[linkWord.failedCount]!;
    if (count === 0) return false;
    for (let index = 0; index < Math.min(count, FAILED_OPERATIONS); index++) {
      if (block.failed[index] === (operation | 0)) return true;
    }
    return false;
  }

  #carryOut(place: number, sequence: number): void {
    const { block, tables } = this.#options;
    const action = block.inAction[place];
    if (action === actions.nothing) return;
    const hasFailed = this.#hasFailed(block.inOperation[place]!);
    if (action === actions.notify) {
      const start = block.inOffset[place]! - inRecord.bytes;
      if (hasFailed) block.inRing.words[start / 4 + 1] = inRecord.dropped;
      Atomics.store(block.words, linkWord.inPublished, block.inEnd[place]!);
      if (hasFailed) this.#options.notices.refuse(sequence, ucxRefusals.earlier);
      tables.tell();
      return;
    }
    if (hasFailed) this.#options.notices.refuse(sequence, ucxRefusals.earlier);
    else if (!this.#isOpen(block.inRegion[place]!, block.inKey[place]!)) {
      this.#fail(block.inOperation[place]!);
      this.#options.notices.refuse(sequence, ucxRefusals.region);
    } else {
      this.#add(block.inOffset[place]!, block.inAdd[place]!);
      tables.tell();
    }
  }

  /** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
  #add(address: number, add: number): void {
    if (this.#cellAddress !== address) {
      this.#cellAddress = address;
      this.#cell = new BigUint64Array(viewAt(address, 8));
    }
    Atomics.add(this.#cell, 0, BigInt(add));
  }
}
