// A transfer that the transport's engine knows: posted with one command, looked at until it has ended.
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import type { Connection, RequestHandle, Transport } from '../../../transport/index.ts';
import type { BackendTransfer, TransferState } from '../../backend.ts';
import type { MessageRing } from './message-ring.ts';

const NO_MESSAGE = { offset: 0, bytes: 0 };
const NONE = -1;

/** What a transfer needs of its link. */
export interface TransferLink {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: MessageRing;
  readonly error: WeftlineError | undefined;
  /** It has been posted. */
  watch(transfer: MultipathTransfer): void;
}

export class MultipathTransfer implements BackendTransfer {
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  readonly #link: TransferLink;
  readonly #plan: number;
  /** Where it goes back to when it has ended; the plan is then another's to release. */
  readonly #pool: MultipathTransfer[] | undefined;
  #request: RequestHandle = NONE;
  #message = NONE;
  #messageBytes = 0;
  #isReleased = false;
  readonly #onEnd: (() => void)[] = [];

  constructor(link: TransferLink, plan: number, pool?: MultipathTransfer[]) {
    this.#link = link;
    this.#plan = plan;
    this.#pool = pool;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    const { connection, messages } = this.#link;
    if (connection.error !== undefined) throw connection.error;
    this.#message = message === undefined ? NONE : messages.reserve(message);
    this.#messageBytes = message === undefined ? 0 : messages.message.bytes;
    try {
      this.#request = connection.postTransfer(this.#plan, message === undefined ? NO_MESSAGE : messages.message);
    } catch (error) {
      this.#releaseMessage(false);
      throw error;
    }
    this.state = 'pending';
    this.error = undefined;
    this.#link.watch(this);
  }

  cancel(): void {
    if (this.state === 'pending' && this.#link.error === undefined) this.#link.connection.cancel(this.#request);
  }

  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    if (this.state === 'pending') {
      const ended = new Promise<void>((resolve) => this.#onEnd.push(resolve));
      this.cancel();
      await ended;
    }
    if (this.#link.error === undefined) await this.#link.connection.releaseTransfer(this.#plan);
  }

  /** Hot path. True if it has ended. */
  look(): boolean {
    const { transport } = this.#link;
    if (transport.state(this.#request) === 'pending') return false;
    try {
      transport.take(this.#request);
      this.end(undefined);
    } catch (error) {
      this.end(this.#link.error ?? asWeftlineError(error));
    }
    return true;
  }

  /** Its post has ended, with an error or without. */
  end(error: WeftlineError | undefined): void {
    this.error = error;
    this.state = error === undefined ? 'done' : 'failed';
    this.#request = NONE;
    this.#releaseMessage(error === undefined);
    this.#pool?.push(this);
    for (const resolve of this.#onEnd.splice(0)) resolve();
  }

  #releaseMessage(wasSent: boolean): void {
    if (this.#message === NONE) return;
    this.#link.messages.release(this.#message, wasSent, this.#messageBytes);
    this.#message = NONE;
  }
}
