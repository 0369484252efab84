// The TCP connection beside a transport connection: frames one after the other while it is set up, later a sign of life.
import type { Socket } from 'node:net';
import { endWhenSilent } from '../native/tcp.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import { encodeFrame, FrameReader, protocolError, strangerLimits } from './frames.ts';

export type ControlFrame = Readonly<Record<string, unknown>>;

/** Frames that nobody has asked for yet. */
const MOST_UNREAD = 8;

export class ControlChannel {
  /** For errors: who is at the other end. */
  peer: string;
  readonly #socket: Socket;
  readonly #reader = new FrameReader(strangerLimits);
  readonly #frames: ControlFrame[] = [];
  readonly #deadline: number;
  #waiting: (() => void) | undefined;
  #failure: WeftlineError | undefined;
  #farewell = false;
  #isOver = false;
  #onEnd: ((farewell: boolean) => void) | undefined;

  /**
   * `deadline`, on the clock of performance.now(), bounds every receive. After `silenceMs` without an answer of its system
   * the peer counts as gone.
   */
  constructor(socket: Socket, deadline: number, silenceMs: number = Number.POSITIVE_INFINITY) {
    this.#socket = socket;
    this.#deadline = deadline;
    this.peer = `${socket.remoteAddress ?? 'unknown'} port ${socket.remotePort ?? 0}`;
    socket.setNoDelay(true);
    endWhenSilent(socket, silenceMs);
    socket.on('data', (chunk) => this.#arrived(chunk));
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    socket.on('close', () => this.#ended());
  }

  get remoteAddress(): string {
    // A socket of both families names an IPv4 peer in IPv6 words.
    return (this.#socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '');
  }

  get localAddress(): string {
    return (this.#socket.localAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '');
  }

  send(frame: ControlFrame): void {
    if (this.#socket.destroyed || !this.#socket.writable) return;
    for (const piece of encodeFrame(frame)) this.#socket.write(piece);
  }

  /** The next frame. Fails with the peer's refusal, WL_PROTOCOL, WL_PEER_LOST, or WL_TIMEOUT at the deadline. */
  async receive(expected: string): Promise<ControlFrame> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame?.['refused'] !== undefined) throw decodeError(frame['refused'] as EncodedError);
      if (frame !== undefined) return frame;
      if (this.#failure !== undefined) throw this.#failure;
      if (!(await this.#sleep())) {
        throw new WeftlineError('WL_TIMEOUT', `${this.peer} did not send its ${expected} in time (setting timeoutMs)`, {
          details: { peer: this.peer, expected },
        });
      }
    }
  }

  /** Tells the peer why, then hangs up. */
  refuse(error: unknown): void {
    const { stack: _hidden, cause: _inner, ...reason } = encodeError(error);
    this.send({ refused: reason });
    this.#socket.destroySoon();
  }

  /** Says goodbye and hangs up. Idempotent. */
  close(): void {
    this.send({ goodbye: true });
    this.#socket.destroySoon();
    this.#socket.unref();
  }

  /** Hangs up without a goodbye, so that the peer takes this side for lost; a refusal still goes out. Idempotent. */
  hangUp(): void {
    this.#socket.destroySoon();
    this.#socket.unref();
  }

  /**
   * To be called when both sides are set up. The function is called once when the connection is over, soon if it is
   * already; `farewell` is true if the peer said goodbye first.
   */
  watch(onEnd: (farewell: boolean) => void): void {
    this.#onEnd = onEnd;
    if (this.#isOver) queueMicrotask(() => this.#ended());
  }

  /** The connection keeps the process alive no longer. */
  unref(): void {
    this.#socket.unref();
  }

  #arrived(chunk: Buffer): void {
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) this.#take(frame.header);
    } catch (error) {
      this.#failure = error instanceof WeftlineError ? error : protocolError('bytes that are no frame');
      this.refuse(this.#failure);
    }
    this.#wake();
  }

  #take(frame: ControlFrame): void {
    if (frame['goodbye'] === true) this.#farewell = true;
    else if (this.#onEnd !== undefined) throw protocolError('a frame after the connection was set up');
    else if (this.#frames.length === MOST_UNREAD) throw protocolError('more frames than a greeting has');
    else this.#frames.push(frame);
  }

  #ended(): void {
    this.#failure ??= new WeftlineError('WL_PEER_LOST', `${this.peer} closed the connection`, {
      details: { peer: this.peer },
    });
    this.#wake();
    this.#isOver = true;
    const onEnd = this.#onEnd;
    this.#onEnd = undefined;
    onEnd?.(this.#farewell);
  }

  /** False at the deadline. */
  #sleep(): Promise<boolean> {
    const left = this.#deadline - performance.now();
    if (left <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), left);
      this.#waiting = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  }

  #wake(): void {
    this.#waiting?.();
    this.#waiting = undefined;
  }
}
