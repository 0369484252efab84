// A prepared transfer within the host. `post` is a hot path: no allocation.
import { type CheckedCopies, type CopyJob, jobStates, jobWord } from './copy-lane.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { BackendTransfer, TransferState } from '../../backend.ts';
import { type CopyPlan, type HostCopies, INLINE_BYTES, type LocalTransferParts } from './copy-plan.ts';
import type { CopyThread, LaneToPeer } from './copy-thread.ts';
import type { LocalRegion } from './local-region.ts';
import { recordBytes } from './mailbox-layout.ts';
import { type PeerSteps, RegionGrants, REVOKED } from './sender-end.ts';
import type { LocalRemoteRegion } from './remote-region.ts';

/** What a transfer needs of its link. */
interface TransferLink {
  readonly peerName: string;
  readonly steps: PeerSteps;
  readonly isQuiet: boolean;
  checkPeer(): boolean;
  requireUsable(): void;
  requireRoom(bytes: number): void;
  push(message: Uint8Array): boolean;
  enqueue(transfer: LocalTransfer): void;
  drop(transfer: LocalTransfer, error: WeftlineError): void;
  drain(plan: CopyPlan): void;
  noteCopied(bytes: number): WeftlineError | undefined;
  findDeath(): WeftlineError | undefined;
  lose(error: WeftlineError): void;
  refusal(): WeftlineError;
}

export class LocalTransfer implements BackendTransfer {
  /** The link's list of pending transfers. */
  next: LocalTransfer | undefined;
  readonly #link: TransferLink;
  readonly #parts: LocalTransferParts;
  /** Everything that a post reads is in fields of this object: reading it through other objects costs as much as a check. */
  readonly #plan: CopyPlan;
  readonly #bytes: number;
  readonly #isShort: boolean;
  readonly #steps: PeerSteps;
  readonly #locals: readonly LocalRegion[];
  readonly #remotes: readonly LocalRemoteRegion[];
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  #areCopied = false;
  #isReleased = false;
  #hasMessage = false;
  #message: Uint8Array = new Uint8Array(0);
  /** Once the thread that copies was needed. */
  #shared: SharedCopies | undefined;
  /** Another thread goes on with it. */
  isHandedOver = false;

  constructor(link: TransferLink, parts: LocalTransferParts) {
    this.#link = link;
    this.#parts = parts;
    this.#plan = parts.plan;
    this.#bytes = parts.plan.bytes;
    this.#isShort = parts.plan.isShort;
    this.#steps = link.steps;
    this.#locals = parts.locals;
    this.#remotes = parts.remotes;
  }

  /** What its message takes of the peer's ring. */
  get recordBytes(): number {
    return this.#hasMessage ? recordBytes(this.#message.length) : 0;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    if (this.state === 'pending') throw invalidArgument('post', 'a transfer that is pending', 'one that has ended');
    // A check costs nothing beside so long a copy.
    if (!this.#isShort) this.#link.checkPeer();
    this.#link.requireUsable();
    if (!areRegistered(this.#locals)) throw new WeftlineError('WL_CLOSED', 'The memory was deregistered');
    if (message !== undefined) this.#link.requireRoom(message.length);
    this.state = 'pending';
    this.error = undefined;
    this.#areCopied = false;
    this.#plan.begin();
    if (this.#isShort && this.#link.isQuiet) {
      if (this.#goOn(INLINE_BYTES, message)) return;
    } else if (!this.#steps.mayTouch(this.#remotes)) {
      this.fail(this.#link.refusal());
      return;
    }
    this.#keep(message);
    this.#link.enqueue(this);
  }

  /** False if only this thread can carry it out. */
  get canBeHandedOver(): boolean {
    return this.#parts.host !== undefined;
  }

  handOver(help: CopyHelp): void {
    this.#shared ??= new SharedCopies(help, {
      table: (this.#parts.host as HostCopies).table,
      grants: RegionGrants.of(this.#remotes),
    });
    this.isHandedOver = true;
    this.#shared.begin(this.#hasMessage ? this.#message : undefined);
  }

  uses(region: LocalRegion): boolean {
    return this.#locals.includes(region);
  }

  touches(region: LocalRemoteRegion): boolean {
    return this.#remotes.includes(region);
  }

  /** Goes on. True if it has ended. */
  advance(budget: number): boolean {
    if (this.state !== 'pending') return true;
    return this.isHandedOver ? this.#look() : this.#goOn(budget, this.#hasMessage ? this.#message : undefined);
  }

  /** How far the other thread has come. */
  #look(): boolean {
    const shared = this.#shared as SharedCopies;
    if (!shared.hasEnded) return false;
    this.isHandedOver = false;
    const { failure } = shared;
    // It took long enough for the peer to have died meanwhile.
    const error = failure === 0 ? this.#link.findDeath() : this.#failure(failure);
    if (error === undefined) this.state = 'done';
    else this.#end(error);
    return true;
  }

  #failure(code: number): WeftlineError | undefined {
    return code === REVOKED ? this.#link.refusal() : this.#parts.host?.failure(code);
  }

  #goOn(budget: number, message: Uint8Array | undefined): boolean {
    const steps = this.#steps;
    steps.begin();
    try {
      if (!this.#areCopied) this.#areCopied = this.#copy(budget);
      const isSent = this.#areCopied && (message === undefined || this.#link.push(message));
      // Behind the message, which would otherwise wait until the processor has written out the data.
      steps.end();
      if (!isSent) return false;
    } catch (error) {
      steps.end();
      this.#end(asWeftlineError(error));
      return true;
    }
    const death = this.#link.noteCopied(this.#bytes);
    if (death === undefined) this.state = 'done';
    else this.#end(death);
    return true;
  }

  /** Within a step. */
  #copy(budget: number): boolean {
    if (!this.#steps.mayTouch(this.#remotes)) throw this.#link.refusal();
    return this.#plan.advance(budget);
  }

  /** For what is to be sent after the post. */
  #keep(message: Uint8Array | undefined): void {
    this.#hasMessage = message !== undefined;
    if (message === undefined) return;
    if (message.length !== this.#message.length) this.#message = new Uint8Array(message.length);
    this.#message.set(message);
  }

  #end(error: WeftlineError): void {
    this.fail(error);
    if (error.code === 'WL_PEER_LOST') this.#link.lose(error);
  }

  /** Nothing is copied any more when it returns. What had been delivered before is done instead. */
  fail(error: WeftlineError): void {
    if (this.state !== 'pending') return;
    const wasHandedOver = this.isHandedOver;
    this.isHandedOver = false;
    if (wasHandedOver) {
      this.#shared?.takeBack();
      if (this.#shared?.isDone === true) {
        this.state = 'done';
        return;
      }
    }
    this.state = 'failed';
    this.error = error;
    if (!this.#plan.isOver()) this.#link.drain(this.#plan);
  }

  cancel(): void {
    if (this.state !== 'pending') return;
    this.#link.drop(this, new WeftlineError('WL_CLOSED', `A transfer with ${this.#link.peerName} was cancelled`));
  }

  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    this.cancel();
    this.#shared?.release();
    try {
      await this.#plan.over();
    } finally {
      this.#parts.dispose();
    }
  }
}

/** Memory that was deregistered may be unmapped. */
function areRegistered(locals: readonly LocalRegion[]): boolean {
  for (let index = 0; index < locals.length; index += 1) if ((locals[index] as LocalRegion).isReleased) return false;
  return true;
}

// A transfer's copies in the hands of the thread that copies, from a post to its end.

export interface CopyHelp {
  readonly thread: CopyThread;
  readonly lane: LaneToPeer;
}

class SharedCopies {
  readonly #help: CopyHelp;
  readonly #copies: CheckedCopies;
  #job: CopyJob | undefined;

  constructor(help: CopyHelp, copies: CheckedCopies) {
    this.#help = help;
    this.#copies = copies;
  }

  /** Allocates at the first call, and when the length of the message changes. */
  begin(message: Uint8Array | undefined): void {
    const { thread, lane } = this.#help;
    if (this.#job === undefined || (message !== undefined && message.length !== this.#job.message.length)) {
      this.#job = thread.makeJob(this.#copies, message?.length ?? 0, this.#job);
    }
    if (message !== undefined) this.#job.message.set(message);
    lane.copies.add(this.#job, message !== undefined);
  }

  /** Hot path. */
  get hasEnded(): boolean {
    return this.#job !== undefined && Atomics.load(this.#job.words, jobWord.state) === jobStates.ended;
  }

  /** Once it has ended: why, as CopyTable.copy says it, or REVOKED; 0 if all is copied and the message is sent. */
  get failure(): number {
    return this.#job?.words[jobWord.failure] ?? 0;
  }

  get isDone(): boolean {
    return this.hasEnded && this.failure === 0;
  }

  /** When it returns, nothing is copied any more. May wait for a step of a copy. */
  takeBack(): void {
    if (this.#job !== undefined) this.#help.lane.copies.remove(this.#job);
  }

  /** It must not be under way. */
  release(): void {
    if (this.#job !== undefined) this.#help.thread.forgetJob(this.#job);
    this.#job = undefined;
  }
}
