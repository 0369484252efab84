// Messages between endpoints as notifications: written in pieces that a notification can carry, and joined again.
import { Block, defineLayout } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { MAX_NOTIFICATION_BYTES } from '../backend.ts';

// What two endpoints tell each other in notifications: a head, then the payload or a piece of it.

export const ENDPOINT_VERSION = 2;

/** "WLEM". Notifications that do not begin with it are not of endpoints. */
export const ENDPOINT_MAGIC = 0x4d_45_4c_57;

export const endpointMessageKinds = {
  /** Payload: metadata of a region of the sender. */
  region: 1,
  /** A receive was posted. Payload: its memory, as an encoded descriptor list. */
  offer: 2,
  /** The message for that receive lies in its memory. */
  arrived: 3,
  /** The message for that receive does not fit it: `bytes` is its size. */
  refused: 4,
  /** The send that this receive was matched with failed: no message follows. */
  failed: 5,
} as const;

/**
 * A payload that is too long for one notification goes in several, one behind the other, with equal heads but for
 * `payloadOffset`; all but the last are full. Between them come only messages without payload.
 */
export const endpointMessage = defineLayout('EndpointMessage', {
  magic: 'u32',
  kind: 'u32',
  /** The addressee's number of the connection. */
  connection: 'u32',
  /** The receiver's number of the receive: counts up by one from 1 on, and wraps. */
  request: 'u32',
  bytes: 'u64',
  /** Bytes of the whole payload, and where the piece in this notification begins. */
  payloadBytes: 'u32',
  payloadOffset: 'u32',
});

/** Limit of one side's receives that no send has matched yet, in bytes as `offerCost` counts them. */
export const MAX_OFFERED_BYTES: number = 64 << 20;

/** What an offered receive takes at the peer until a send matches it. */
export function offerCost(parts: number): number {
  return parts * 16 + 528;
}

export interface MessageHead {
  readonly kind: number;
  /** The addressee's number of the connection. */
  readonly connection: number;
  readonly request: number;
  readonly bytes: number;
}

/** The payload of every piece but the last. */
const PIECE_BYTES: number = MAX_NOTIFICATION_BYTES - endpointMessage.size;

/** A message without payload. */
export function encodeMessage(head: MessageHead): Uint8Array {
  return encodePiece(head, new Uint8Array(0), 0);
}

/** The notifications that carry a message, in order; those of a long one are made as they are taken. */
export function encodePieces(head: MessageHead, payload: Uint8Array): Iterable<Uint8Array> {
  return payload.length <= PIECE_BYTES ? [encodePiece(head, payload, 0)] : encodeLong(head, payload);
}

function* encodeLong(head: MessageHead, payload: Uint8Array): Generator<Uint8Array> {
  let offset = 0;
  do {
    yield encodePiece(head, payload, offset);
    offset += PIECE_BYTES;
  } while (offset < payload.length);
}

function encodePiece(head: MessageHead, payload: Uint8Array, offset: number): Uint8Array {
  const piece = payload.subarray(offset, offset + PIECE_BYTES);
  const message = new Uint8Array(endpointMessage.size + piece.length);
  const block = new Block(endpointMessage, message.buffer, 0);
  block.set('magic', ENDPOINT_MAGIC);
  block.set('kind', head.kind);
  block.set('connection', head.connection);
  block.set('request', head.request);
  block.set('bytes', head.bytes);
  block.set('payloadBytes', payload.length);
  block.set('payloadOffset', offset);
  message.set(piece, endpointMessage.size);
  return message;
}

/** The connection that a notification names; undefined if it is not of an endpoint. */
export function connectionOf(notification: Uint8Array): number | undefined {
  if (notification.length < endpointMessage.size) return undefined;
  const block = headOf(notification);
  return block.get('magic') === ENDPOINT_MAGIC ? block.get('connection') : undefined;
}

export interface WholeMessage extends MessageHead {
  readonly payload: Uint8Array;
}

/** Reader of one connection. It holds at most what its limit allows, and never more than has arrived. */
export class MessageReader {
  #first: MessageHead | undefined;
  #pieces: Uint8Array[] = [];
  #total = 0;
  #arrived = 0;

  /** Bytes that the unfinished message will have; 0 if there is none. */
  get unfinishedBytes(): number {
    return this.#total;
  }

  /** The message that ends with this notification; undefined if more of it must come. Fails with WL_PROTOCOL. */
  read(notification: Uint8Array): WholeMessage | undefined {
    const block = headOf(notification);
    const head: MessageHead = {
      kind: block.get('kind'),
      connection: block.get('connection'),
      request: block.get('request'),
      bytes: block.get('bytes'),
    };
    const [total, offset] = [block.get('payloadBytes'), block.get('payloadOffset')];
    const payload = notification.subarray(endpointMessage.size);
    if (!Number.isSafeInteger(head.bytes)) throw bad(`speaks of ${head.bytes} bytes, expected less than 2^53`);
    const expected = Math.min(PIECE_BYTES, total - offset);
    if (payload.length !== expected) {
      throw bad(`has ${payload.length} bytes of payload at ${offset} of ${total}, expected ${expected}`);
    }
    if (total === 0) return { ...head, payload };
    if (total > MAX_OFFERED_BYTES) throw bad(`has a payload of ${total} bytes, expected at most ${MAX_OFFERED_BYTES}`);
    const isFirst = this.#first === undefined;
    if (!isFirst && !isSame(this.#first as MessageHead, head)) throw bad('comes between the pieces of another one');
    if (offset !== this.#arrived || (!isFirst && total !== this.#total)) {
      throw bad(`goes on at ${offset} of ${total} bytes, expected ${this.#arrived} of ${this.#total}`);
    }
    if (isFirst && payload.length === total) return { ...head, payload };
    this.#first = head;
    this.#total = total;
    this.#arrived += payload.length;
    this.#pieces.push(payload);
    return this.#arrived === total ? { ...head, payload: this.#join() } : undefined;
  }

  #join(): Uint8Array {
    const whole = new Uint8Array(this.#total);
    let at = 0;
    for (const piece of this.#pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    this.#first = undefined;
    this.#pieces = [];
    this.#total = 0;
    this.#arrived = 0;
    return whole;
  }
}

function headOf(notification: Uint8Array): Block<Extract<keyof typeof endpointMessage.offset, string>> {
  return new Block(endpointMessage, notification.buffer, notification.byteOffset);
}

function isSame(one: MessageHead, other: MessageHead): boolean {
  return one.kind === other.kind && one.request === other.request && one.bytes === other.bytes;
}

function bad(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `A message of an endpoint ${why}`);
}
