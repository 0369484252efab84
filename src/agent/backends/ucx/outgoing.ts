// The sending half of a link: messages of jobs in order, a window, acknowledgements, refusals. Hot path: no allocation.
import { ucxMessage, ucxMessageKinds, ucxRefusals } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { isErrorPointer, ucxStatusName } from '../../../native/ucx-status.ts';
import type { Job } from './job.ts';
import { HEADER_WORDS, headerWord as at, putWide } from './message-header.ts';
import { RequestFifo } from './request-fifo.ts';
import type { UcxWorker } from './ucx-worker.ts';

/** Messages that UCX has not finished sending; some room is kept for acknowledgements and refusals. */
const SENDS = 512;
const KEPT_FOR_CONTROL = 16;
/** Messages without acknowledgement. Half of what the receiving half can tell apart. */
export const MOST_UNACKNOWLEDGED = 2048;
/** A part goes in messages of this size, so that a read does not wait behind a whole large write. */
const CHUNK_BYTES = 8 * 2 ** 20;
/** What was taken of notifications is told at the latest with so much of it; a sender has four times as much. */
const UNTOLD_BYTES = 128 * 1024;

/** What both halves of a link share. */
export interface LinkFacts {
  readonly worker: UcxWorker;
  readonly endpoint: number;
  readonly peer: string;
  readonly remoteLink: number;
  readonly secretLow: number;
  readonly secretHigh: number;
}

/** What every message tells the far side of the receiving half. */
export interface Told {
  /** All messages up to this sequence have taken effect. */
  watermark: number;
  /** The watermark that was told last. */
  told: number;
  /** Bytes of notifications that the agent has taken, and what was told of them last. */
  taken: number;
  toldTaken: number;
}

export class Outgoing {
  /** Reads that wait for answers, by operation. */
  readonly reading = new Map<number, Job>();
  readonly #facts: LinkFacts;
  readonly #told: Told;
  readonly #onEnd: (job: Job) => void;
  readonly #sends: RequestFifo;
  readonly #headers = new NativeBlock(SENDS * ucxMessage.size);
  readonly #header = { address: 0, length: ucxMessage.size };
  readonly #data = { address: 0, length: 0 };
  readonly #jobs: Job[] = [];
  readonly #awaiting: Job[] = [];
  readonly #refusals: number[] = [];
  #sequence = 0;
  #acknowledged = 0;
  /** Why UCX cannot send any more; 0 while it can. */
  status: number = ucsStatus.ok;

  constructor(facts: LinkFacts, told: Told, onEnd: (job: Job) => void) {
    this.#facts = facts;
    this.#told = told;
    this.#onEnd = onEnd;
    this.#sends = new RequestFifo(facts.worker, SENDS);
  }

  push(job: Job): void {
    this.#jobs.push(job);
  }

  /** True if the far side has messages that it has not acknowledged, or has not been sent all. */
  get isBusy(): boolean {
    return this.#jobs.length > 0 || this.#awaiting.length > 0 || this.reading.size > 0;
  }

  /** True once UCX is done with all messages that had been sent by then. */
  hasSent(count: number): boolean {
    return this.#sends.popped >= count;
  }

  get sends(): number {
    return this.#sends.pushed;
  }

  /** Takes note of what UCX has finished, sends what there is room for. False if nothing happened. */
  step(): boolean {
    let isBusy = false;
    for (let status = this.#sends.pop(); status !== ucsStatus.inProgress; status = this.#sends.pop()) {
      if (status !== ucsStatus.ok) this.status = status;
      isBusy = true;
    }
    if (this.#flushRefusals()) isBusy = true;
    while (this.#jobs.length > 0 && this.#sends.room > KEPT_FOR_CONTROL && this.#hasWindow()) {
      const job = this.#jobs[0] as Job;
      isBusy = true;
      if (job.cursor < job.count || !job.isMessageSent) this.#sendNext(job);
      if (job.cursor < job.count || !job.isMessageSent) continue;
      this.#jobs.shift();
      job.sendsAfter = this.#sends.pushed;
      this.#sentAll(job);
    }
    return isBusy;
  }

  /** Tells what has taken effect, unless a message has told it already. */
  acknowledgeArrivals(): void {
    const { told, watermark, taken, toldTaken } = this.#told;
    const isKnown = told === watermark && ((taken - toldTaken) | 0) < UNTOLD_BYTES;
    if (isKnown || this.#sends.room === 0 || this.#refusals.length > 0) return;
    this.#begin(ucxMessageKinds.acknowledge, 0, 0);
    this.#send(0, 0, false);
  }

  /** Tells the far side that its message was refused; before it is told that the message has taken effect. */
  refuse(sequence: number, reason: number): void {
    this.#refusals.push(sequence, reason);
    this.#flushRefusals();
  }

  /** The far side says that all messages up to `sequence` have taken effect. */
  acknowledged(sequence: number): void {
    if (((sequence - this.#acknowledged) | 0) <= 0 || ((sequence - this.#sequence) | 0) > 0) return;
    this.#acknowledged = sequence;
    while (this.#awaiting.length > 0) {
      const job = this.#awaiting[0] as Job;
      if (((job.last - sequence) | 0) > 0) return;
      this.#awaiting.shift();
      this.#end(job);
    }
  }

  /** The far side says that it has refused a message. */
  refused(sequence: number, reason: number): void {
    const job = this.#jobOf(sequence);
    if (job === undefined) return;
    job.stop(refusal(reason, this.#facts.peer));
    if (job.kind === 'read') this.answered(job);
  }

  /** An answer to a read has arrived. */
  answered(job: Job): void {
    job.unanswered -= 1;
    this.#endRead(job);
  }

  /** The link is dead: all jobs fail. */
  fail(failure: WeftlineError): void {
    const jobs = [...this.#jobs.splice(0), ...this.#awaiting.splice(0), ...this.reading.values()];
    this.reading.clear();
    for (const job of new Set(jobs)) {
      job.stop(failure);
      job.sendsAfter = this.#sends.pushed;
      this.#end(job);
    }
  }

  #hasWindow(): boolean {
    return ((this.#sequence - this.#acknowledged) | 0) < MOST_UNACKNOWLEDGED;
  }

  #sendNext(job: Job): void {
    const { cursor, kind } = job;
    if (cursor === job.count) {
      this.#beginNext(job, ucxMessageKinds.notify, 0, 0);
      this.#headers.words[this.#base + at.messageBytes] = job.messageBytes;
      job.isMessageSent = true;
      this.#send(job.messageAddress, job.messageBytes, true);
      return;
    }
    const all = job.bytes[cursor] as number;
    const done = job.cursorOffset;
    const bytes = kind === 'signal' ? all : Math.min(all - done, CHUNK_BYTES);
    const isWhole = kind === 'signal' || done + bytes === all;
    this.#beginNext(job, ucxMessageKinds[kind], (job.remoteOffset[cursor] as number) + done, bytes);
    const { words } = this.#headers;
    const base = this.#base;
    words[base + at.region] = job.remoteRegion[cursor] as number;
    words[base + at.key] = job.remoteKey[cursor] as number;
    words[base + at.part] = kind === 'data' ? job.answeredPart : cursor;
    if (isWhole) {
      job.cursor += 1;
      job.cursorOffset = 0;
    } else job.cursorOffset += bytes;
    const from = (job.localAddress[cursor] as number) + done;
    if (kind === 'read') {
      this.reading.set(job.operation, job);
      job.unanswered += 1;
      this.#send(0, 0, false);
    } else if (kind === 'signal') this.#send(0, 0, false);
    else if (kind === 'write' && job.cursor === job.count && job.canPack(bytes)) {
      words[base + at.messageBytes] = job.messageBytes;
      job.isMessageSent = true;
      this.#send(job.pack(from, bytes), bytes + job.messageBytes, true);
    } else this.#send(from, bytes, false);
  }

  /** All messages of the job are with UCX. */
  #sentAll(job: Job): void {
    if (job.kind === 'read') {
      this.#endRead(job);
      return;
    }
    // What was stopped before its first message has nothing to wait for.
    if (job.hasSent) this.#awaiting.push(job);
    else this.#end(job);
  }

  #endRead(job: Job): void {
    if (job.unanswered > 0 || job.cursor < job.count || job === this.#jobs[0] || !job.isPending) return;
    this.reading.delete(job.operation);
    if (job.messageBytes > 0 && job.failure === undefined) this.push(job.startFollower());
    this.#end(job);
  }

  #end(job: Job): void {
    if (!job.isPending) return;
    job.isPending = false;
    this.#onEnd(job);
  }

  #beginNext(job: Job, kind: number, offset: number, bytes: number): void {
    this.#sequence = (this.#sequence + 1) >>> 0;
    if (!job.hasSent) job.first = this.#sequence;
    job.hasSent = true;
    job.last = this.#sequence;
    this.#begin(kind, offset, bytes);
    this.#headers.words[this.#base + at.sequence] = this.#sequence;
    this.#headers.words[this.#base + at.operation] = job.operation;
  }

  /** The first word of the header that is written next. */
  get #base(): number {
    return this.#sends.place * HEADER_WORDS;
  }

  #begin(kind: number, offset: number, bytes: number): void {
    const { words } = this.#headers;
    const base = this.#base;
    const { remoteLink, secretLow, secretHigh } = this.#facts;
    words.fill(0, base, base + HEADER_WORDS);
    words[base + at.link] = remoteLink;
    words[base + at.secretLow] = secretLow;
    words[base + at.secretHigh] = secretHigh;
    words[base + at.kind] = kind;
    words[base + at.acknowledged] = this.#told.watermark;
    words[base + at.taken] = this.#told.taken;
    putWide(words, base + at.offset, offset);
    putWide(words, base + at.bytes, bytes);
    this.#told.told = this.#told.watermark;
    this.#told.toldTaken = this.#told.taken;
  }

  #send(address: number, bytes: number, isEager: boolean): void {
    this.#header.address = this.#headers.address + this.#base * 4;
    this.#data.address = address;
    this.#data.length = bytes;
    const request = this.#facts.worker.send(this.#facts.endpoint, this.#header, this.#data, isEager);
    if (isErrorPointer(request)) this.status = request;
    this.#sends.push(isErrorPointer(request) ? 0 : request, 0);
  }

  #flushRefusals(): boolean {
    let sent = false;
    while (this.#refusals.length > 0 && this.#sends.room > 0) {
      const [sequence = 0, reason = 0] = this.#refusals.splice(0, 2);
      this.#begin(ucxMessageKinds.refuse, 0, 0);
      this.#headers.words[this.#base + at.operation] = sequence;
      this.#headers.words[this.#base + at.part] = reason;
      this.#send(0, 0, false);
      sent = true;
    }
    return sent;
  }

  #jobOf(sequence: number): Job | undefined {
    for (const jobs of [this.#awaiting, this.#jobs.slice(0, 1), this.reading.values()]) {
      for (const job of jobs) {
        if (job.hasSent && ((sequence - job.first) | 0) >= 0 && ((sequence - job.last) | 0) <= 0) return job;
      }
    }
    return undefined;
  }
}

function refusal(reason: number, peer: string): WeftlineError {
  const details = { peer, reason };
  if (reason === ucxRefusals.region) {
    const message = `${peer} has no such region, or the key is not its: it was deregistered, or the metadata are of another life of the peer`;
    return new WeftlineError('WL_UNAUTHORIZED', message, { details });
  }
  if (reason === ucxRefusals.range) {
    return new WeftlineError('WL_INVALID_ARGUMENT', `The range lies outside the region of ${peer}`, { details });
  }
  if (reason === ucxRefusals.earlier) {
    return new WeftlineError('WL_CLOSED', `An earlier operation with ${peer} failed, so this one was not carried out`, {
      details,
    });
  }
  const what = reason === ucxRefusals.native ? 'its UCX could not receive it' : ucxStatusName(reason);
  return new WeftlineError('WL_PROTOCOL', `${peer} refused a message: ${what}`, { details });
}
