// The receiving half of a link: puts data where it belongs, keeps the order of signals and notifications.
import { ucxMessageKinds, ucxRefusals } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { copyMemory } from '../../../native/libc.ts';
import { viewAt } from '../../../native/library.ts';
import { isErrorPointer } from '../../../native/ucx-status.ts';
import type { HostRegion, HostRegions } from './host-regions.ts';
import { Job } from './job.ts';
import { headerWord as at, wideAt } from './message-header.ts';
import { type LinkFacts, MOST_UNACKNOWLEDGED, type Outgoing, type Told } from './outgoing.ts';
import { RequestFifo } from './request-fifo.ts';
import type { ArrivingMessage } from './ucx-worker.ts';

/** What is known of a sequence that is beyond the watermark. */
const pending = 0;
const complete = 1;
/** Takes effect when all before it have: see `#deferred`. */
const deferred = 2;

const WINDOW = MOST_UNACKNOWLEDGED * 2;
/** Operations that failed; older ones are forgotten. */
const MOST_FAILED = 4096;

/** Of a region; those that have ended are then forgotten. */
const MOST_ANSWERS = 64;

interface Deferred {
  readonly operation: number;
  readonly region: HostRegion | undefined;
  readonly offset: number;
  readonly add: number;
  readonly notification: Uint8Array | undefined;
}

export interface IncomingOptions {
  readonly facts: LinkFacts;
  readonly told: Told;
  readonly regions: HostRegions;
  readonly outgoing: Outgoing;
  readonly onNotification: (message: Uint8Array) => void;
}

export class Incoming {
  /** Why UCX cannot receive any more; 0 while it can. */
  status: number = ucsStatus.ok;
  readonly #options: IncomingOptions;
  readonly #receives: RequestFifo;
  /** By place in `#receives`: whose memory is written. */
  readonly #jobs: (Job | undefined)[] = [];
  readonly #regions: (HostRegion | undefined)[] = [];
  readonly #operations = new Uint32Array(WINDOW);
  readonly #states = new Uint8Array(WINDOW);
  readonly #deferred = new Map<number, Deferred>();
  readonly #failed = new Set<number>();

  constructor(options: IncomingOptions) {
    this.#options = options;
    this.#receives = new RequestFifo(options.facts.worker, WINDOW);
  }

  /** Takes note of rendezvous that have ended. False if nothing happened. */
  step(): boolean {
    let isBusy = false;
    for (;;) {
      const place = this.#receives.popped % WINDOW;
      const status = this.#receives.pop();
      if (status === ucsStatus.inProgress) return isBusy;
      isBusy = true;
      this.#received(place, this.#receives.tag, status);
    }
  }

  /** True once no arriving data is written to memory of the job. */
  isDoneWith(job: Job): boolean {
    return !this.#jobs.includes(job);
  }

  /** A message of this link. Returns true if UCX is to fetch the bytes of a rendezvous. */
  take(words: Uint32Array, message: ArrivingMessage): boolean {
    const { outgoing, told } = this.#options;
    outgoing.acknowledged(words[at.acknowledged] as number);
    const kind = words[at.kind] as number;
    if (kind === ucxMessageKinds.acknowledge) return false;
    if (kind === ucxMessageKinds.refuse) {
      outgoing.refused(words[at.operation] as number, words[at.part] as number);
      return false;
    }
    const sequence = words[at.sequence] as number;
    const ahead = (sequence - told.watermark) | 0;
    if (ahead <= 0 || ahead > WINDOW) return false;
    if (kind === ucxMessageKinds.data) return this.#takeAnswer(words, message, sequence);
    const operation = words[at.operation] as number;
    if (this.#failed.has(operation)) return this.#refuse(sequence, operation, ucxRefusals.earlier);
    if (kind === ucxMessageKinds.notify) {
      if (message.isRendezvous) return this.#refuse(sequence, operation, ucxRefusals.protocol);
      this.#defer(sequence, {
        operation,
        region: undefined,
        offset: 0,
        add: 0,
        notification: copyOf(message.data, message.bytes),
      });
      return false;
    }
    return this.#takeOneSided(words, message, kind);
  }

  #takeOneSided(words: Uint32Array, message: ArrivingMessage, kind: number): boolean {
    const sequence = words[at.sequence] as number;
    const operation = words[at.operation] as number;
    const region = this.#options.regions.find(words[at.region] as number, words[at.key] as number);
    if (region === undefined) return this.#refuse(sequence, operation, ucxRefusals.region);
    const offset = wideAt(words, at.offset);
    const bytes = wideAt(words, at.bytes);
    const isSignal = kind === ucxMessageKinds.signal;
    const isInside = offset + (isSignal ? 8 : bytes) <= region.bytes;
    if (!isInside || (isSignal && (region.address + offset) % 8 !== 0)) {
      return this.#refuse(sequence, operation, ucxRefusals.range);
    }
    if (isSignal) {
      this.#defer(sequence, { operation, region, offset, add: bytes, notification: undefined });
      return false;
    }
    if (kind === ucxMessageKinds.read) {
      this.#answer(words, region);
      this.#complete(sequence);
      return false;
    }
    const messageBytes = words[at.messageBytes] as number;
    const isSound = message.bytes === bytes + messageBytes && (messageBytes === 0 || !message.isRendezvous);
    if (kind !== ucxMessageKinds.write || !isSound) return this.#refuse(sequence, operation, ucxRefusals.protocol);
    const to = region.address + offset;
    if (message.isRendezvous) return this.#fetch({ message, to, sequence, operation }, undefined, region);
    copyMemory(to, message.data, bytes);
    if (messageBytes === 0) this.#complete(sequence);
    else {
      const notification = copyOf(message.data + bytes, messageBytes);
      this.#defer(sequence, { operation, region: undefined, offset: 0, add: 0, notification });
    }
    return false;
  }

  #takeAnswer(words: Uint32Array, message: ArrivingMessage, sequence: number): boolean {
    const { outgoing } = this.#options;
    const job = outgoing.reading.get(words[at.operation] as number);
    const part = words[at.part] as number;
    const inside = wideAt(words, at.offset) - (job?.remoteOffset[part] ?? Number.NaN);
    const isWanted = job !== undefined && inside >= 0 && inside + message.bytes <= (job.bytes[part] as number);
    if (!isWanted) {
      this.#complete(sequence);
      return false;
    }
    const to = (job.localAddress[part] as number) + inside;
    if (message.isRendezvous) return this.#fetch({ message, to, sequence, operation: 0 }, job, undefined);
    copyMemory(to, message.data, message.bytes);
    outgoing.answered(job);
    this.#complete(sequence);
    return false;
  }

  #answer(words: Uint32Array, region: HostRegion): void {
    const offset = wideAt(words, at.offset);
    const job = new Job('data', [
      {
        localAddress: region.address + offset,
        remoteRegion: 0,
        remoteKey: 0,
        remoteOffset: offset,
        bytes: wideAt(words, at.bytes),
      },
    ]);
    job.start(words[at.operation] as number, 0, 0);
    job.answeredPart = words[at.part] as number;
    if (region.answers.length >= MOST_ANSWERS) region.answers = region.answers.filter((earlier) => earlier.isPending);
    region.answers.push(job);
    this.#options.outgoing.push(job);
  }

  #fetch(
    place: {
      readonly message: ArrivingMessage;
      readonly to: number;
      readonly sequence: number;
      readonly operation: number;
    },
    job: Job | undefined,
    region: HostRegion | undefined,
  ): boolean {
    const { message, to, sequence, operation } = place;
    const request = this.#options.facts.worker.receive(message.data, to, message.bytes);
    if (isErrorPointer(request)) {
      this.#ended(sequence, operation, request, job);
      return true;
    }
    const { place: free } = this.#receives;
    this.#jobs[free] = job;
    this.#regions[free] = region;
    this.#operations[free] = operation;
    if (region !== undefined) region.writes += 1;
    this.#receives.push(request, sequence);
    return true;
  }

  #received(place: number, sequence: number, status: number): void {
    const job = this.#jobs[place];
    const region = this.#regions[place];
    this.#jobs[place] = undefined;
    this.#regions[place] = undefined;
    if (region !== undefined) region.writes -= 1;
    this.#ended(sequence, this.#operations[place] as number, status, job);
  }

  #ended(sequence: number, operation: number, status: number, job: Job | undefined): void {
    if (status !== ucsStatus.ok) this.status = status;
    if (job !== undefined) this.#options.outgoing.answered(job);
    else if (status !== ucsStatus.ok) {
      this.#refuse(sequence, operation, ucxRefusals.native);
      return;
    }
    this.#complete(sequence);
  }

  #refuse(sequence: number, operation: number, reason: number): boolean {
    if (this.#failed.size >= MOST_FAILED) this.#failed.clear();
    this.#failed.add(operation);
    this.#options.outgoing.refuse(sequence, reason);
    this.#complete(sequence);
    return false;
  }

  #defer(sequence: number, action: Deferred): void {
    const { told } = this.#options;
    if (sequence === (told.watermark + 1) >>> 0) {
      this.#carryOut(sequence, action);
      told.watermark = sequence;
      this.#advance();
      return;
    }
    this.#deferred.set(sequence, action);
    this.#states[sequence % WINDOW] = deferred;
  }

  #complete(sequence: number): void {
    this.#states[sequence % WINDOW] = complete;
    this.#advance();
  }

  #advance(): void {
    const { told } = this.#options;
    for (;;) {
      const next = (told.watermark + 1) >>> 0;
      const state = this.#states[next % WINDOW];
      if (state === pending) return;
      this.#states[next % WINDOW] = pending;
      if (state === deferred) {
        const action = this.#deferred.get(next) as Deferred;
        this.#deferred.delete(next);
        this.#carryOut(next, action);
      }
      told.watermark = next;
    }
  }

  #carryOut(sequence: number, { operation, region, offset, add, notification }: Deferred): void {
    if (this.#failed.has(operation)) this.#options.outgoing.refuse(sequence, ucxRefusals.earlier);
    else if (notification !== undefined) this.#options.onNotification(notification);
    else if (region !== undefined) {
      if (region.isReleased) this.#options.outgoing.refuse(sequence, ucxRefusals.region);
      else addToCell(region.address + offset, add);
    }
  }
}

/** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
function addToCell(address: number, add: number): void {
  Atomics.add(new BigUint64Array(viewAt(address, 8)), 0, BigInt(add));
}

function copyOf(address: number, bytes: number): Uint8Array {
  return bytes === 0 ? new Uint8Array() : new Uint8Array(viewAt(address, bytes)).slice();
}
