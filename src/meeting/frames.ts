// The wire format of every meeting: length-prefixed frames of one JSON header and any number of byte parts.
import type { Socket } from 'node:net';
import { encodeError, type ErrorCode, errorCodes, type ErrorDetails, WeftlineError } from '../core/errors.ts';
import { printable, quote } from '../core/quote.ts';

// Why one side hangs up, as a frame that the other side may or may not be able to trust.

const MAX_TEXT = 600;
const MAX_DETAILS = 16;

/** What an error looks like in a frame: without stacks and causes, which are nobody else's business. */
export function encodeRefusal(error: unknown): Readonly<Record<string, unknown>> {
  const { code, message, details, rank } = encodeError(error);
  return { code, message: message.slice(0, 2000), details, ...(rank === undefined ? {} : { rank }) };
}

/** The error that a peer's refusal stands for. Whatever is in it: never throws, and WL_PROTOCOL if it is not one. */
export function decodeRefusal(value: unknown, peer: string): WeftlineError {
  return decodePeerError(value, `${peer} refused: `);
}

/** The same of an error that a peer tells in the course of a conversation. */
export function decodePeerError(value: unknown, prefix = '', mostText: number = MAX_TEXT): WeftlineError {
  if (typeof value !== 'object' || value === null) return protocolError('an error without a reason');
  const { code, message, details, rank } = value as Readonly<Record<string, unknown>>;
  const isKnown = typeof code === 'string' && Object.hasOwn(errorCodes, code);
  if (!isKnown || typeof message !== 'string') {
    const said = typeof message === 'string' ? `: ${printable(message, MAX_TEXT)}` : '';
    return protocolError(`an error of a kind that is not known here${said}`);
  }
  return new WeftlineError(code as ErrorCode, prefix + printable(message, mostText), {
    details: plainDetails(details),
    ...(typeof rank === 'number' && Number.isSafeInteger(rank) ? { rank } : {}),
  });
}

function plainDetails(details: unknown): ErrorDetails {
  if (typeof details !== 'object' || details === null || Array.isArray(details)) return {};
  const plain: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(details).slice(0, MAX_DETAILS)) {
    if (!/^\w{1,40}$/.test(name) || name === '__proto__') continue;
    if (typeof value === 'number' || typeof value === 'boolean') plain[name] = value;
    else if (typeof value === 'string') plain[name] = printable(value, MAX_TEXT);
    else if (Array.isArray(value) && value.every((item) => typeof item === 'number')) plain[name] = value;
  }
  return plain;
}

/** One message. `parts` are views of the bytes that arrived; they stay valid. */
export interface Frame {
  readonly header: Readonly<Record<string, unknown>>;
  readonly parts: readonly Uint8Array[];
}

/** What a peer may send: everything larger is refused before memory is spent on it. */
export interface FrameLimits {
  readonly headerBytes: number;
  readonly payloadBytes: number;
}

/** Little-endian header length, then payload length, 32 bits each. */
const PREFIX_BYTES = 8;
/** A gather of 64 Ki ranks has as many parts; its list of lengths must fit the header. */
const MAX_HEADER_BYTES = 1 << 20;

/** Limits for a peer that has not proven itself: what it says of itself is the payload. */
export const strangerLimits: FrameLimits = { headerBytes: 4096, payloadBytes: 16_384 };

/** Limits for a rank of the job. */
export function memberLimits(maxValueBytes: number): FrameLimits {
  // compareAndSet carries two values.
  return { headerBytes: MAX_HEADER_BYTES, payloadBytes: 2 * maxValueBytes };
}

/** The bytes of one frame, in pieces to write one after the other; the parts are not copied. */
export function encodeFrame(
  header: Readonly<Record<string, unknown>>,
  parts: readonly Uint8Array[] = [],
): readonly Uint8Array[] {
  const lengths = parts.map((part) => part.byteLength);
  const text = Buffer.from(JSON.stringify(parts.length === 0 ? header : { ...header, parts: lengths }));
  const prefix = Buffer.alloc(PREFIX_BYTES);
  prefix.writeUInt32LE(text.byteLength, 0);
  prefix.writeUInt32LE(
    lengths.reduce((sum, length) => sum + length, 0),
    4,
  );
  return [Buffer.concat([prefix, text]), ...parts];
}

/** Collects arriving bytes and hands out whole frames; the first byte that breaks the format fails with WL_PROTOCOL. */
export class FrameReader {
  /** May be widened between frames, once the peer is known. */
  limits: FrameLimits;
  readonly #chunks: Buffer[] = [];
  #bytes = 0;

  constructor(limits: FrameLimits) {
    this.limits = limits;
  }

  /** Bytes that arrived and were not handed out. */
  get unread(): number {
    return this.#bytes;
  }

  push(chunk: Buffer): void {
    if (chunk.byteLength === 0) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.byteLength;
  }

  /** The next whole frame, if it has arrived. */
  next(): Frame | undefined {
    if (this.#bytes < PREFIX_BYTES) return undefined;
    const prefix = this.#peek(PREFIX_BYTES);
    const headerBytes = prefix.readUInt32LE(0);
    const payloadBytes = prefix.readUInt32LE(4);
    if (headerBytes > this.limits.headerBytes || payloadBytes > this.limits.payloadBytes) {
      throw protocolError(
        `a frame of ${headerBytes} + ${payloadBytes} bytes, expected at most ${this.limits.headerBytes} + ${this.limits.payloadBytes}`,
      );
    }
    if (this.#bytes < PREFIX_BYTES + headerBytes + payloadBytes) return undefined;
    this.#take(PREFIX_BYTES);
    const header = parseHeader(this.#take(headerBytes));
    return { header, parts: split(this.#take(payloadBytes), header['parts']) };
  }

  #peek(count: number): Buffer {
    const first = this.#chunks[0];
    if (first !== undefined && first.byteLength >= count) return first.subarray(0, count);
    const joined = Buffer.concat(this.#chunks);
    this.#chunks.splice(0, this.#chunks.length, joined);
    return joined.subarray(0, count);
  }

  #take(count: number): Buffer {
    if (count === 0) return Buffer.alloc(0);
    const taken = this.#peek(count);
    const first = this.#chunks[0] as Buffer;
    if (first.byteLength === count) this.#chunks.shift();
    else this.#chunks[0] = first.subarray(count);
    this.#bytes -= count;
    return taken;
  }
}

/** A connection whose hello is done, with a reader that may hold bytes of the first frames behind it. */
export interface OpenConnection {
  readonly socket: Socket;
  readonly reader: FrameReader;
}

interface FrameHandlers {
  readonly onFrame: (frame: Frame) => void;
  /** Hears of bytes that are no frame, and of what `onFrame` throws. */
  readonly onError: (error: unknown) => void;
  readonly onClose: () => void;
}

/** Frames both ways over a connection that a ControlChannel has handed over. */
export class FrameSocket {
  readonly socket: Socket;
  readonly #reader: FrameReader;
  readonly #handlers: FrameHandlers;

  constructor({ socket, reader }: OpenConnection, limits: FrameLimits, handlers: FrameHandlers) {
    this.socket = socket;
    this.#reader = reader;
    this.#handlers = handlers;
    reader.limits = limits;
    socket.on('data', (chunk) => this.#receive(chunk));
    socket.on('close', () => handlers.onClose());
  }

  /** Must be called once the owner is ready: takes in what has arrived already, or that the connection is over. */
  start(): void {
    if (this.socket.closed) this.#handlers.onClose();
    else this.#receive(Buffer.alloc(0));
  }

  send(header: Readonly<Record<string, unknown>>, parts: readonly Uint8Array[] = []): void {
    const { socket } = this;
    if (socket.destroyed || !socket.writable) return;
    socket.cork();
    for (const piece of encodeFrame(header, parts)) socket.write(piece);
    socket.uncork();
  }

  /** Tells the peer why, then hangs up. */
  refuse(error: unknown): void {
    this.send({ refused: encodeRefusal(error) });
    this.socket.destroySoon();
  }

  #receive(chunk: Buffer): void {
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        this.#handlers.onFrame(frame);
      }
    } catch (error) {
      this.#handlers.onError(error);
    }
  }
}

export function protocolError(what: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `A peer sent ${what}`);
}

function parseHeader(bytes: Buffer): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch {
    throw protocolError('a header that is not JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw protocolError('a header that is not an object');
  }
  return value as Record<string, unknown>;
}

function split(payload: Buffer, lengths: unknown): Uint8Array[] {
  if (lengths === undefined && payload.byteLength === 0) return [];
  if (!Array.isArray(lengths)) throw protocolError('a payload without the lengths of its parts');
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const length of lengths as unknown[]) {
    if (typeof length !== 'number' || !Number.isInteger(length) || length < 0 || at + length > payload.byteLength) {
      throw protocolError('part lengths that do not fit the payload');
    }
    parts.push(payload.subarray(at, at + length));
    at += length;
  }
  if (at !== payload.byteLength) throw protocolError('part lengths that do not fill the payload');
  return parts;
}

// Reads fields of a frame that a peer sent. Each fails with WL_PROTOCOL.

export function textField(frame: Readonly<Record<string, unknown>>, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

/** An integer from 0 to `most`. */
export function integerField(frame: Readonly<Record<string, unknown>>, field: string, most: number): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value;
  throw protocolError(`a greeting whose ${field} is ${value === undefined ? 'missing' : quote(value, 40)}`);
}
