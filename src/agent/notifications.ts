// Notifications that have come and wait to be taken, oldest first; how many bytes of a peer may wait.
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';
import { MAX_NOTIFICATION_BYTES } from './backend.ts';
import type { Awaited } from './waiting.ts';

/** A message of a peer. */
export interface Notification {
  /** Name of the agent that sent it. */
  readonly peer: string;
  readonly message: Uint8Array;
}

/** The notifications that are waited for. */
export interface NotificationFilter {
  /** The only agent whose notifications count; all by default. */
  readonly from?: string;
}

/** What `notify` and `post` send: bytes as they are, or a string, which is encoded as UTF-8. */
export type Message = Uint8Array | string;

/**
 * Hot path; allocates for strings only. The bytes to send. Fails with WL_INVALID_ARGUMENT for more than
 * MAX_NOTIFICATION_BYTES, and for what is neither a Uint8Array nor a string.
 */
export function messageBytes(message: Message): Uint8Array {
  const bytes = typeof message === 'string' ? Buffer.from(message, 'utf8') : message;
  if (!(bytes instanceof Uint8Array)) throw invalidArgument('message', message, 'a Uint8Array or a string');
  const { length } = bytes;
  if (length <= MAX_NOTIFICATION_BYTES) return bytes;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Invalid message: expected at most ${MAX_NOTIFICATION_BYTES} bytes, got ${length}. Send it in pieces, or as data`,
    { details: { argument: 'message', bytes: length, expected: MAX_NOTIFICATION_BYTES } },
  );
}

/** What a message takes besides its bytes. */
const ENTRY_BYTES = 64;
/** Places of messages that were taken are given back when there are so many, and at least half are. */
const MAX_GAPS = 1024;

export class Notifications {
  readonly #mostBytes: number;
  readonly #onRoom: () => void;
  /** Notifications that came; those before `#head` were taken. */
  #waiting: (Notification | undefined)[] = [];
  #head = 0;
  /** Bytes that wait, by peer. Entries stay when nothing waits: to take one out and put it in again costs more than the rest. */
  readonly #peers = new Map<string, { bytes: number }>();
  /** Peers whose unread notifications are at the limit: nothing more of them is taken in. */
  readonly #full = new Set<string>();

  /** `onRoom` is called when more can be taken in of a peer that had to wait. */
  constructor(mostBytes: number, onRoom: () => void) {
    this.#mostBytes = mostBytes;
    this.#onRoom = onRoom;
  }

  push(peer: string, message: Uint8Array): void {
    this.#waiting.push({ peer, message });
    const bytes = message.length + ENTRY_BYTES;
    const waits = this.#peers.get(peer);
    if (waits === undefined) this.#peers.set(peer, { bytes });
    else waits.bytes += bytes;
  }

  /** False while the peer's unread notifications are at the limit. */
  hasRoom(peer: string): boolean {
    if ((this.#peers.get(peer)?.bytes ?? 0) < this.#mostBytes) return true;
    this.#full.add(peer);
    return false;
  }

  takeAll(): Notification[] {
    const all = (this.#head === 0 ? this.#waiting : this.#waiting.slice(this.#head)) as Notification[];
    this.#waiting = [];
    this.#head = 0;
    for (const waits of this.#peers.values()) waits.bytes = 0;
    if (this.#full.size > 0) {
      this.#full.clear();
      this.#onRoom();
    }
    return all;
  }

  take({ from }: NotificationFilter): Notification | undefined {
    const waiting = this.#waiting;
    for (let at = this.#head; at < waiting.length; at++) {
      const found = waiting[at] as Notification;
      if (from !== undefined && found.peer !== from) continue;
      this.#remove(at);
      this.#release(found);
      return found;
    }
    return undefined;
  }

  #remove(at: number): void {
    if (at !== this.#head) {
      this.#waiting.splice(at, 1);
      return;
    }
    this.#waiting[at] = undefined;
    this.#head++;
    if (this.#head < MAX_GAPS || this.#head * 2 < this.#waiting.length) return;
    this.#waiting.splice(0, this.#head);
    this.#head = 0;
  }

  #release({ peer, message }: Notification): void {
    const waits = this.#peers.get(peer) as { bytes: number };
    waits.bytes -= message.length + ENTRY_BYTES;
    if (this.#full.size > 0 && waits.bytes < this.#mostBytes && this.#full.delete(peer)) this.#onRoom();
  }
}

/** The next notification, taken as soon as it is there, unless the signal was aborted before. */
export class NextNotification implements Awaited {
  found: Notification | undefined;
  readonly #queue: Notifications;
  readonly #filter: NotificationFilter & { readonly signal?: AbortSignal };
  readonly #agent: string;

  constructor(queue: Notifications, filter: NotificationFilter & { readonly signal?: AbortSignal }, agent: string) {
    const { from } = filter;
    if (from !== undefined && typeof from !== 'string') throw invalidArgument('from', from, 'the name of an agent');
    this.#queue = queue;
    this.#filter = filter;
    this.#agent = agent;
  }

  get isSettled(): boolean {
    if (this.#filter.signal?.aborted !== true) this.found ??= this.#queue.take(this.#filter);
    return this.found !== undefined;
  }

  describe(): string {
    const { from } = this.#filter;
    return `No notification came to agent ${this.#agent}${from === undefined ? '' : ` from agent ${printable(from)}`}`;
  }

  missing(): { readonly peers: readonly string[] } {
    const { from } = this.#filter;
    return { peers: from === undefined ? [] : [from] };
  }
}
