// Hands each notification to the connection that it names, if it comes from that connection's peer.
import { WeftlineError } from '../../core/errors.ts';
import type { Notification } from '../notifications.ts';
import type { EndpointConnection } from './endpoint-connection.ts';
import { connectionOf } from './message.ts';

interface Early {
  readonly messages: Uint8Array[];
  hasOverflown: boolean;
}

/** Of one peer, for connections that are being made. */
const MAX_EARLY_BYTES: number = 16 << 20;
/** What a message takes besides its bytes. */
const ENTRY_BYTES = 64;

export class MessageRouter {
  /** The endpoint's, by its numbers. */
  readonly #connections: ReadonlyMap<number, EndpointConnection>;
  /**
   * For connections that are being made: messages can be quicker than the end of the greeting. Whose connection it will
   * be is not known yet, so each peer has a list and a limit of its own.
   */
  readonly #early = new Map<number, Map<string, Early>>();
  readonly #earlyBytes = new Map<string, number>();

  constructor(connections: ReadonlyMap<number, EndpointConnection>) {
    this.#connections = connections;
  }

  /** A connection of that number is being made. */
  expect(id: number): void {
    this.#early.set(id, new Map());
  }

  /** Hands over what came before the connection was there. */
  deliverEarly(connection: EndpointConnection): void {
    const early = this.#early.get(connection.id)?.get(connection.peer);
    this.settle(connection.id);
    if (early === undefined) return;
    for (const message of early.messages) connection.handle(message);
    if (!early.hasOverflown) return;
    const { peer } = connection;
    const why = `The endpoint ${peer} sent more than ${MAX_EARLY_BYTES} bytes before the connection was there`;
    connection.end(new WeftlineError('WL_PROTOCOL', why, { details: { peer, allowed: MAX_EARLY_BYTES } }));
  }

  /** The connection of that number was made, or not. Idempotent. */
  settle(id: number): void {
    for (const [peer, { messages }] of this.#early.get(id) ?? []) {
      const bytes = messages.reduce((sum, message) => sum + message.length + ENTRY_BYTES, 0);
      const left = (this.#earlyBytes.get(peer) ?? 0) - bytes;
      if (left > 0) this.#earlyBytes.set(peer, left);
      else this.#earlyBytes.delete(peer);
    }
    this.#early.delete(id);
  }

  /** Never throws. Notifications that are not of an endpoint, or name a connection of another peer, are ignored. */
  hear({ peer, message }: Notification): void {
    const id = connectionOf(message);
    if (id === undefined) return;
    const connection = this.#connections.get(id);
    if (connection === undefined) this.#keepEarly(id, peer, message);
    else if (connection.peer === peer) connection.handle(message);
  }

  #keepEarly(id: number, peer: string, message: Uint8Array): void {
    const byPeer = this.#early.get(id);
    if (byPeer === undefined) return;
    const early = byPeer.get(peer) ?? { messages: [], hasOverflown: false };
    byPeer.set(peer, early);
    const bytes = (this.#earlyBytes.get(peer) ?? 0) + message.length + ENTRY_BYTES;
    // ORDER: behind a message that is missing, the others make no sense.
    if (early.hasOverflown || bytes > MAX_EARLY_BYTES) {
      early.hasOverflown = true;
      return;
    }
    this.#earlyBytes.set(peer, bytes);
    early.messages.push(message);
  }
}
