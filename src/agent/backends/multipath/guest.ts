// A peer that connected to this agent: its messages arrive in an inbox, and it is told what was taken.
import type { Connection, MemoryRegion, RequestHandle, Transport } from '../../../transport/index.ts';
import type { Hello } from './agent-words.ts';
import type { BackendContext } from '../../backend.ts';
import type { Inbox, InboxDelivery } from './inbox.ts';

/**
 * That of the link's messages, so that the engines that carry them carry their credits as well: on a lane of its own, a
 * credit could come so late that a sender finds the ring full although every message was taken.
 */
const CREDIT_FLOW = 65_534;
const NONE = -1;

export interface GuestParts {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly inbox: Inbox;
  readonly inboxRegion: MemoryRegion;
  readonly hello: Hello;
}

export class Guest {
  readonly name: string;
  readonly #parts: GuestParts;
  readonly #delivery: InboxDelivery;
  /** Bytes that were taken and not told yet, and the signal that tells of earlier ones. */
  #unsent = 0;
  #credit: RequestHandle = NONE;
  readonly #signal: { flow: number; remoteRegion: number; remoteKey: number; remoteOffset: number; add: number };

  constructor(parts: GuestParts, { deliver, mayDeliver }: Pick<BackendContext, 'deliver' | 'mayDeliver'>) {
    const { hello } = parts;
    const { name } = hello;
    this.name = name;
    this.#parts = parts;
    this.#delivery = { deliver: (message) => deliver(name, message), mayDeliver: () => mayDeliver(name) };
    this.#signal = { flow: CREDIT_FLOW, remoteRegion: hello.region, remoteKey: hello.key, remoteOffset: 0, add: 0 };
  }

  get isGone(): boolean {
    return this.#parts.connection.error !== undefined;
  }

  /** Gone, and all that it sent was taken. */
  get isDone(): boolean {
    return this.isGone && this.#parts.inbox.isEmpty;
  }

  /** Hot path while nothing has arrived. True if something has. */
  poll(): boolean {
    const taken = this.#parts.inbox.drain(this.#delivery);
    this.#unsent += taken;
    this.#reap();
    if (this.#unsent > 0 && this.#credit === NONE && !this.isGone) this.#notify();
    return taken > 0;
  }

  async close(): Promise<void> {
    const { transport, connection, inboxRegion } = this.#parts;
    await connection.close();
    this.#reap();
    await transport.release(inboxRegion);
  }

  #notify(): void {
    this.#signal.add = this.#unsent;
    this.#credit = this.#parts.connection.signal(this.#signal);
    this.#unsent = 0;
  }

  #reap(): void {
    const { transport } = this.#parts;
    if (this.#credit === NONE || transport.state(this.#credit) === 'pending') return;
    try {
      transport.take(this.#credit);
    } catch {
      // The peer is gone, or does not want to know.
    }
    this.#credit = NONE;
  }
}
