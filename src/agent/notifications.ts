// Notifications that have come and wait to be taken, oldest first.
import type { Awaited } from './waiting.ts';

export interface Notification {
  /** Name of the agent that sent it. */
  readonly peer: string;
  readonly message: Uint8Array;
}

export interface NotificationFilter {
  /** Only of this agent. */
  readonly from?: string;
}

export class Notifications {
  #waiting: Notification[] = [];

  push(peer: string, message: Uint8Array): void {
    this.#waiting.push({ peer, message });
  }

  takeAll(): Notification[] {
    const all = this.#waiting;
    this.#waiting = [];
    return all;
  }

  take({ from }: NotificationFilter): Notification | undefined {
    const at = this.#waiting.findIndex(({ peer }) => from === undefined || peer === from);
    return at === -1 ? undefined : this.#waiting.splice(at, 1)[0];
  }
}

/** The next notification, taken as soon as it is there. */
export class NextNotification implements Awaited {
  found: Notification | undefined;
  readonly #queue: Notifications;
  readonly #filter: NotificationFilter;
  readonly #agent: string;

  constructor(queue: Notifications, filter: NotificationFilter, agent: string) {
    this.#queue = queue;
    this.#filter = filter;
    this.#agent = agent;
  }

  get isSettled(): boolean {
    this.found ??= this.#queue.take(this.#filter);
    return this.found !== undefined;
  }

  describe(): string {
    const { from } = this.#filter;
    return `No notification came to agent ${this.#agent}${from === undefined ? '' : ` from agent ${from}`}`;
  }
}
