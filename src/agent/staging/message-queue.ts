// Messages of the transfers of one lane: each goes out behind its data, in the order of posting.
import { WeftlineError } from '../../core/errors.ts';
import type { BackendLink } from '../backend.ts';
import type { StagedMessages } from './staged-messages.ts';

interface Entry {
  readonly transfer: number;
  readonly bytes: number;
  state: 'waiting' | 'ready' | 'dropped';
}

export class MessageQueue {
  readonly #messages: StagedMessages;
  /** To the peer's agent. */
  readonly #link: BackendLink;
  readonly #entries: Entry[] = [];

  constructor(messages: StagedMessages, link: BackendLink) {
    this.#messages = messages;
    this.#link = link;
  }

  /** Messages wait that could go. */
  get isStuck(): boolean {
    return this.#entries[0]?.state === 'ready';
  }

  /** A transfer was posted with the next message of the ring. */
  add(transfer: number, bytes: number): void {
    this.#entries.push({ transfer, bytes, state: 'waiting' });
  }

  /** The post of that transfer has ended. */
  settle(transfer: number, isGood: boolean): void {
    const entry = this.#entries.find((known) => known.transfer === transfer && known.state === 'waiting');
    if (entry !== undefined) entry.state = isGood ? 'ready' : 'dropped';
    this.send();
  }

  /** Sends what can go. */
  send(): void {
    for (let entry = this.#entries[0]; entry !== undefined && entry.state !== 'waiting'; entry = this.#entries[0]) {
      if (entry.state === 'ready' && !this.#deliver(entry.bytes)) return;
      this.#messages.drop(entry.bytes);
      this.#entries.shift();
    }
  }

  /** False while the peer does not take messages; one that it will never take is dropped. */
  #deliver(bytes: number): boolean {
    try {
      this.#link.notify(this.#messages.read(bytes));
      return true;
    } catch (error) {
      return !(error instanceof WeftlineError && error.code === 'WL_BUSY');
    }
  }
}
