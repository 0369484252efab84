// The sending half of a link: operations in order, a window, acknowledgements, refusals. Hot path: no allocation.
import { putWide } from '../../../abi/wide-words.ts';
import { linkWord, ucxTransferStates } from '../../../abi/ucx-words.ts';
import { ucxMessageKinds, ucxTagKinds } from '../../../abi/ucx-message.ts';
import { copyMemory } from '../../../native/libc.ts';
import type { Direct } from './direct.ts';
import { failures } from './failure.ts';
import { QUEUE, WINDOW } from './link-block.ts';
import { CHUNK_BYTES, headerWord as at, INLINE_BYTES } from './message-header.ts';
import { sendMark } from './memory-use.ts';
import { operationKinds } from './operation-kinds.ts';
import { NO_MESSAGE, type OutMessages } from './out-messages.ts';
import { PartCursor } from './part-cursor.ts';
import type { Reads } from './reads.ts';
import type { LinkTools, MessagePlace, Sender } from './sender.ts';

export interface OutgoingOptions extends LinkTools {
  readonly sender: Sender;
  readonly reads: Reads;
  readonly direct: Direct;
  readonly messages: OutMessages;
  /** The parts of a prepared transfer. */
  readonly partsOf: (slot: number) => Float64Array;
}

export class Outgoing {
  readonly #options: OutgoingOptions;
  readonly #direct: Direct;
  readonly #messages: OutMessages;
  readonly #data: MessagePlace = { address: 0, bytes: 0, region: -1, memory: 0 };
  readonly #part: PartCursor;

  constructor(options: OutgoingOptions) {
    this.#options = options;
    this.#direct = options.direct;
    this.#part = new PartCursor(options.block, options.partsOf);
    this.#messages = options.messages;
  }

  /**
   * A place in the queue for an operation without message; -1 if it is full. `slot` is that of a transfer or channel.
   * The caller fills in the rest, then calls `commit`.
   */
  begin(kind: number, slot: number, operation: number): number {
    const { block } = this.#options;
    const { words } = block;
    const tail = words[linkWord.queueTail]!;
    if (((tail - words[linkWord.queueDone]!) | 0) >= QUEUE) return -1;
    const entry = tail & (QUEUE - 1);
    block.kind[entry] = kind;
    block.slot[entry] = slot;
    block.operation[entry] = operation;
    block.hasSent[entry] = 0;
    block.failure[entry] = failures.none;
    block.failureDetail[entry] = 0;
    block.unanswered[entry] = 0;
    block.isDirect[entry] = 0;
    block.cursor[entry] = 0;
    block.cursorOffset[entry] = 0;
    block.messageBytes[entry] = NO_MESSAGE;
    block.isMessageSent[entry] = 1;
    block.isReported[entry] = 0;
    return entry;
  }

  /** The entry that was begun is in the queue. */
  commit(): void {
    const { words } = this.#options.block;
    words[linkWord.queueTail] = words[linkWord.queueTail]! + 1;
  }

  /** Takes note of what has ended, sends what there is room for. False if nothing happened. */
  step(): boolean {
    const hasRead = this.#options.reads.pop();
    const hasEnded = this.#complete();
    const hasSent = this.send();
    return hasRead || hasSent || hasEnded;
  }

  /** Sends what there is room for. */
  send(): boolean {
    const { block } = this.#options;
    const { words } = block;
    let isBusy = false;
    while (words[linkWord.queueSend] !== words[linkWord.queueTail]) {
      const entry = words[linkWord.queueSend]! & (QUEUE - 1);
      while (!this.#isAllSent(entry)) {
        if (!this.#hasWindow() || !this.#sendNext(entry)) return isBusy;
        isBusy = true;
      }
      this.#noteSends(entry);
      words[linkWord.queueSend] = words[linkWord.queueSend]! + 1;
    }
    return isBusy;
  }

  /** The far side says that all messages up to `sequence` have taken effect. */
  acknowledged(sequence: number): void {
    const { words } = this.#options.block;
    if (((sequence - words[linkWord.acknowledged]!) | 0) <= 0) return;
    if (((sequence - words[linkWord.sequence]!) | 0) > 0) return;
    words[linkWord.acknowledged] = sequence;
  }

  /** The far side says that it has refused a message. */
  refused(sequence: number, reason: number): void {
    const { block } = this.#options;
    const { words } = block;
    const end = (words[linkWord.queueSend]! + (words[linkWord.queueSend] === words[linkWord.queueTail] ? 0 : 1)) | 0;
    for (let place = words[linkWord.queueDone]!; place !== end; place = (place + 1) | 0) {
      const entry = place & (QUEUE - 1);
      if (block.hasSent[entry] === 0) continue;
      const isIts = ((sequence - block.first[entry]!) | 0) >= 0 && ((sequence - block.last[entry]!) | 0) <= 0;
      if (!isIts) continue;
      this.stop(entry, failures.refused, reason);
      break;
    }
    this.#options.reads.cancel(sequence);
  }

  /** Operations that were not sent yet stay unsent; those that were sent still end later. */
  stop(entry: number, failure: number, detail: number): void {
    const { block } = this.#options;
    if (block.failure[entry] === failures.none) {
      block.failure[entry] = failure;
      block.failureDetail[entry] = detail;
    }
    block.cursor[entry] = 0x7fff_ffff;
    this.#messages.drop(entry);
  }

  /** All of a channel that is under way. */
  stopChannel(channel: number, failure: number): void {
    const { words } = this.#options.block;
    let place = this.#findOf(channel, words[linkWord.queueDone]!);
    for (; place !== words[linkWord.queueTail]; place = this.#findOf(channel, (place + 1) | 0)) {
      this.stop(place & (QUEUE - 1), failure, 0);
    }
  }

  hasChannel(channel: number): boolean {
    const { words } = this.#options.block;
    return this.#findOf(channel, words[linkWord.queueDone]!) !== words[linkWord.queueTail];
  }

  /** The first place from here on that holds an operation of the channel; the queue's tail if none does. */
  #findOf(channel: number, from: number): number {
    const { words, kind, slot } = this.#options.block;
    let place = from;
    for (; place !== words[linkWord.queueTail]; place = (place + 1) | 0) {
      const entry = place & (QUEUE - 1);
      if (kind[entry]! >= operationKinds.put && slot[entry] === channel) break;
    }
    return place;
  }

  /** The link has ended: everything fails. */
  failAll(): void {
    const { block } = this.#options;
    const { words } = block;
    while (words[linkWord.queueDone] !== words[linkWord.queueTail]) {
      const entry = words[linkWord.queueDone]! & (QUEUE - 1);
      this.stop(entry, words[linkWord.failure]!, words[linkWord.failureDetail]!);
      this.#noteSends(entry);
      this.#finish(entry);
      words[linkWord.queueDone] = words[linkWord.queueDone]! + 1;
    }
    words[linkWord.queueSend] = words[linkWord.queueTail]!;
  }

  #hasWindow(): boolean {
    const { block, sender } = this.#options;
    const { words } = block;
    return (
      words[linkWord.failure] === failures.none &&
      sender.hasRoom &&
      ((words[linkWord.sequence]! - words[linkWord.acknowledged]!) | 0) < WINDOW
    );
  }

  #countOf(entry: number): number {
    const { block, tables } = this.#options;
    const kind = block.kind[entry]!;
    if (kind >= operationKinds.put) return 1;
    return kind === operationKinds.notify ? 0 : tables.partCount[block.slot[entry]!]!;
  }

  #isAllSent(entry: number): boolean {
    const { block } = this.#options;
    if (block.cursor[entry]! < this.#countOf(entry)) return false;
    return block.isMessageSent[entry] === 1 || this.#isMessageLast(entry);
  }

  /** The notification follows the answers of a read, and direct puts: what is behind the operation need not wait for it. */
  #isMessageLast(entry: number): boolean {
    const { block } = this.#options;
    return block.kind[entry] === operationKinds.read || block.isDirect[entry] === 1;
  }

  #nextSequence(entry: number): number {
    const { block } = this.#options;
    const { words } = block;
    const sequence = (words[linkWord.sequence]! + 1) | 0;
    words[linkWord.sequence] = sequence;
    if (block.hasSent[entry] === 0) block.first[entry] = sequence;
    block.hasSent[entry] = 1;
    block.last[entry] = sequence;
    return sequence;
  }

  /** False if there is no room, or it must wait for direct puts. */
  #sendNext(entry: number): boolean {
    const { block, sender } = this.#options;
    const part = this.#part;
    const count = this.#countOf(entry);
    const cursor = block.cursor[entry]!;
    if (cursor >= count) {
      if (this.#direct.isUnderWay) return false;
      this.#sendMessage(entry);
      return true;
    }
    part.load(entry);
    const kind = block.kind[entry]!;
    if (kind === operationKinds.signal) {
      if (this.#direct.isUnderWay) return false;
      this.#begin(entry, ucxMessageKinds.signal, part.remoteOffset, part.bytes);
      sender.sendControl(0);
      block.cursor[entry] = cursor + 1;
      return true;
    }
    const done = block.cursorOffset[entry]!;
    const bytes = Math.min(part.bytes - done, CHUNK_BYTES);
    if (kind === operationKinds.read) {
      if (!this.#read(entry, done, bytes)) return false;
    } else this.#write(entry, done, bytes);
    const isWhole = done + bytes === part.bytes;
    // A part that was refused meanwhile is at its end already.
    if (isWhole && block.cursor[entry] === cursor) block.cursor[entry] = cursor + 1;
    block.cursorOffset[entry] = isWhole ? 0 : done + bytes;
    if (kind !== operationKinds.read && block.cursor[entry]! >= count) this.#direct.flush(entry);
    return true;
  }

  #begin(entry: number, kind: number, offset: number, bytes: number): number {
    const { block, sender } = this.#options;
    const sequence = this.#nextSequence(entry);
    sender.begin(kind, sequence, block.operation[entry]!);
    const { words: header } = block.buffers;
    const { base } = sender;
    header[base + at.region] = this.#part.region;
    header[base + at.key] = this.#part.key;
    putWide(header, base + at.offset, offset);
    putWide(header, base + at.bytes, bytes);
    return sequence;
  }

  #write(entry: number, done: number, bytes: number): void {
    const { block, sender } = this.#options;
    const part = this.#part;
    const from = part.local + done;
    if (bytes > INLINE_BYTES && this.#direct.mayUse(part)) {
      this.#direct.put(entry, this.#place(from, bytes), part.remote, part.remoteOffset + done);
      return;
    }
    const sequence = this.#begin(entry, ucxMessageKinds.write, part.remoteOffset + done, bytes);
    if (bytes > INLINE_BYTES) {
      sender.sendControl(0);
      this.#sendData(sequence, from, bytes);
      return;
    }
    const { inlineAddress } = sender;
    copyMemory(inlineAddress, from, bytes);
    const message = block.messageBytes[entry]!;
    const isLast = done + bytes === part.bytes && block.cursor[entry]! + 1 === this.#countOf(entry);
    const takesMessage = isLast && block.isMessageSent[entry] === 0 && bytes + message <= INLINE_BYTES;
    if (takesMessage && !this.#isMessageLast(entry) && !this.#direct.isUnderWay) {
      this.#messages.put(entry, inlineAddress + bytes, sender.base);
      sender.sendControl(bytes + message);
    } else sender.sendControl(bytes);
  }

  /** Gets data, or asks for them: the receive is there before the question. False if there is no room. */
  #read(entry: number, done: number, bytes: number): boolean {
    const part = this.#part;
    const place = this.#place(part.local + done, bytes);
    if (bytes > INLINE_BYTES && this.#direct.mayUse(part)) {
      this.#direct.get(entry, place, part.remote, part.remoteOffset + done);
      return true;
    }
    if (!this.#options.reads.hasRoom) return false;
    const sequence = this.#begin(entry, ucxMessageKinds.read, part.remoteOffset + done, bytes);
    if (this.#options.reads.receive(entry, sequence, place)) this.#options.sender.sendControl(0);
    return true;
  }

  /** All before it in the queue have ended, or nothing direct is under way. */
  #sendMessage(entry: number): void {
    const { block, sender } = this.#options;
    this.#part.region = 0;
    this.#part.key = 0;
    const sequence = this.#begin(entry, ucxMessageKinds.notify, 0, 0);
    const message = block.messageBytes[entry]!;
    if (message <= INLINE_BYTES) {
      this.#messages.put(entry, sender.inlineAddress, sender.base);
      sender.sendControl(message);
      return;
    }
    this.#messages.count(entry, sender.base);
    sender.sendControl(0);
    this.#part.memory = block.ownMemory[0]!;
    this.#sendData(sequence, block.outRing.address + block.messagePlace[entry]!, message);
  }

  #sendData(sequence: number, address: number, bytes: number): void {
    this.#options.sender.sendData(ucxTagKinds.write, sequence, this.#place(address, bytes));
  }

  /** Of the part that was loaded. */
  #place(address: number, bytes: number): MessagePlace {
    this.#data.address = address;
    this.#data.bytes = bytes;
    this.#data.memory = this.#part.memory;
    return this.#data;
  }

  #noteSends(entry: number): void {
    const { block, tables } = this.#options;
    const kind = block.kind[entry]!;
    if (kind === operationKinds.notify) return;
    const marks = kind <= operationKinds.read ? tables.sendsAfter : tables.channelSendsAfter;
    marks[block.slot[entry]!] = sendMark(block);
  }

  #complete(): boolean {
    const { block } = this.#options;
    const { words } = block;
    let isBusy = false;
    while (words[linkWord.queueDone] !== words[linkWord.queueSend]) {
      const entry = words[linkWord.queueDone]! & (QUEUE - 1);
      if (!this.#hasEnded(entry)) return isBusy;
      isBusy = true;
      this.#finish(entry);
      words[linkWord.queueDone] = words[linkWord.queueDone]! + 1;
    }
    return isBusy;
  }

  #hasEnded(entry: number): boolean {
    const { block } = this.#options;
    if (!this.#direct.hasEnded(entry) || block.unanswered[entry]! > 0) return false;
    if (this.#isMessageLast(entry)) {
      if (block.kind[entry] !== operationKinds.read && !this.#isAcknowledged(entry)) return false;
      if (block.messageBytes[entry] === NO_MESSAGE || block.failure[entry] !== failures.none) return true;
      this.#report(entry);
      if (block.isMessageSent[entry] === 0) {
        if (!this.#hasWindow()) return false;
        this.#sendMessage(entry);
      }
    }
    return this.#isAcknowledged(entry);
  }

  #isAcknowledged(entry: number): boolean {
    const { block } = this.#options;
    return block.hasSent[entry] === 0 || ((block.last[entry]! - block.words[linkWord.acknowledged]!) | 0) <= 0;
  }

  #finish(entry: number): void {
    this.#messages.drop(entry);
    this.#messages.free(entry);
    this.#report(entry);
  }

  /** Tells the owner of the operation how it ended, once. */
  #report(entry: number): void {
    const { block, tables } = this.#options;
    if (block.isReported[entry] === 1) return;
    block.isReported[entry] = 1;
    const slot = block.slot[entry]!;
    const kind = block.kind[entry]!;
    const failure = block.failure[entry]!;
    const detail = block.failureDetail[entry]!;
    if (kind === operationKinds.notify) return;
    if (kind >= operationKinds.put) {
      if (tables.channelFailure[slot] === failures.none) {
        if (failure === failures.none) Atomics.add(tables.delivered, slot, 1);
        else {
          tables.channelDetail[slot] = detail;
          Atomics.store(tables.channelFailure, slot, failure);
        }
      }
    } else {
      tables.failure[slot] = failure;
      tables.failureDetail[slot] = detail;
      // ORDER: the reason first, so that a thread that sees the failure finds it.
      Atomics.store(tables.state, slot, failure === failures.none ? ucxTransferStates.done : ucxTransferStates.failed);
    }
    tables.tell();
  }
}
