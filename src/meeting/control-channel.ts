// A TCP connection between two that meet: frames one after the other while they talk, later a sign of life.
import type { Socket } from 'node:net';
import { endWhenSilent } from '../native/udp.ts';
import { WeftlineError } from '../core/errors.ts';
import {
  decodeRefusal,
  encodeFrame,
  encodeRefusal,
  type Frame,
  type FrameLimits,
  FrameReader,
  type OpenConnection,
  protocolError,
  strangerLimits,
} from './frames.ts';

export type ControlFrame = Readonly<Record<string, unknown>>;

/** Maximum bytes read ahead of `receive`; beyond that the peer has to wait. */
const MAX_UNREAD_BYTES = 65_536;

export class ControlChannel {
  /** Name of the other end, for errors. */
  peer: string;
  /** End of every receive, on the clock of performance.now(). */
  deadline: number;
  /** Called once, when the peer has proven itself. */
  onProven: (() => void) | undefined;
  readonly #socket: Socket;
  readonly #reader = new FrameReader(strangerLimits);
  #waiting: (() => void) | undefined;
  #failure: WeftlineError | undefined;
  #farewell = false;
  #isOver = false;
  #onEnd: ((farewell: boolean) => void) | undefined;

  /** The peer counts as gone after `silenceMs` without an answer of its system. */
  constructor(socket: Socket, deadline: number, silenceMs: number = Number.POSITIVE_INFINITY) {
    this.#socket = socket;
    this.deadline = deadline;
    this.peer = `${socket.remoteAddress ?? 'unknown'} port ${socket.remotePort ?? 0}`;
    socket.setNoDelay(true);
    endWhenSilent(socket, silenceMs);
    socket.on('data', this.#arrived);
    socket.on('error', this.#failed);
    socket.on('end', this.#hungUp);
    socket.on('close', this.#ended);
  }

  get remoteAddress(): string {
    // A dual-stack socket shows an IPv4 peer as an IPv4-mapped IPv6 address.
    return (this.#socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '');
  }

  get localAddress(): string {
    return (this.#socket.localAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '');
  }

  /** Address and port of this side and of the other, as the system of this side names them. */
  get ends(): { readonly own: string; readonly other: string } {
    const { localPort = 0, remotePort = 0 } = this.#socket;
    return { own: `${this.localAddress} ${localPort}`, other: `${this.remoteAddress} ${remotePort}` };
  }

  /** True once the connection has ended. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** How large frames may be; those of strangers until this is set, which the peer must have proven itself for. */
  set limits(limits: FrameLimits) {
    this.#reader.limits = limits;
  }

  /** The peer has proven itself. */
  prove(): void {
    const { onProven } = this;
    this.onProven = undefined;
    onProven?.();
  }

  send(frame: ControlFrame, parts: readonly Uint8Array[] = []): void {
    if (this.#socket.destroyed || !this.#socket.writable) return;
    for (const piece of encodeFrame(frame, parts)) this.#socket.write(piece);
  }

  /** The next frame. Fails with the peer's refusal, WL_PROTOCOL, WL_PEER_LOST, or WL_TIMEOUT at the deadline. */
  async receive(expected: string): Promise<ControlFrame> {
    return (await this.receiveFrame(expected)).header;
  }

  /** The same, with the bytes that came in the frame. */
  async receiveFrame(expected: string): Promise<Frame> {
    for (;;) {
      const frame = this.#next();
      if (frame !== undefined && frame.header['refused'] !== undefined) {
        throw decodeRefusal(frame.header['refused'], this.peer);
      }
      if (frame !== undefined) return frame;
      if (this.#failure !== undefined) throw this.#failure;
      this.#socket.resume();
      if (!(await this.#sleep())) {
        throw new WeftlineError('WL_TIMEOUT', `${this.peer} did not send its ${expected} in time (setting timeoutMs)`, {
          details: { peer: this.peer, expected },
        });
      }
    }
  }

  /** Tells the peer why, then hangs up. */
  refuse(error: unknown): void {
    if (this.#socket.destroyed) return;
    this.send({ refused: encodeRefusal(error) });
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
    this.#socket.resume();
    this.#checkQuiet();
    if (this.#isOver) queueMicrotask(() => this.#ended());
  }

  /** The connection keeps the process alive no longer. */
  unref(): void {
    this.#socket.unref();
  }

  /** Hands the connection over, with what has arrived of the next frames; this channel is of no use afterwards. */
  detach(): OpenConnection {
    const socket = this.#socket;
    socket.off('data', this.#arrived).off('error', this.#failed).off('end', this.#hungUp).off('close', this.#ended);
    // An error is always followed by 'close', which says enough.
    socket.on('error', () => {});
    socket.resume();
    return { socket, reader: this.#reader };
  }

  /** Fails with WL_PROTOCOL, having told the peer. */
  #next(): Frame | undefined {
    try {
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        if (frame.header['goodbye'] !== true) return frame;
        this.#farewell = true;
      }
      return undefined;
    } catch (error) {
      this.#failure = error instanceof WeftlineError ? error : protocolError('bytes that are no frame');
      this.refuse(this.#failure);
      throw this.#failure;
    }
  }

  /** Once both sides are set up, nothing but a goodbye may come. */
  #checkQuiet(): void {
    try {
      if (this.#next() !== undefined) this.refuse(protocolError('a frame after the connection was set up'));
    } catch {
      // The peer was told why.
    }
  }

  readonly #arrived = (chunk: Buffer): void => {
    // What comes behind bytes that made no sense makes no sense either.
    if (this.#failure !== undefined) return;
    this.#reader.push(chunk);
    if (this.#onEnd !== undefined) this.#checkQuiet();
    else if (this.#waiting !== undefined) this.#wake();
    else if (this.#reader.unread > MAX_UNREAD_BYTES) this.#socket.pause();
  };

  readonly #failed = (error: Error): void => {
    if (error instanceof WeftlineError) this.#failure ??= error;
  };

  readonly #hungUp = (): void => {
    this.#socket.destroy();
  };

  readonly #ended = (): void => {
    this.#failure ??= new WeftlineError('WL_PEER_LOST', `${this.peer} closed the connection`, {
      details: { peer: this.peer },
    });
    this.#wake();
    this.#isOver = true;
    const onEnd = this.#onEnd;
    this.#onEnd = undefined;
    onEnd?.(this.#farewell);
  };

  /** False at the deadline. */
  #sleep(): Promise<boolean> {
    const left = this.deadline - performance.now();
    if (left <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.#waiting = undefined;
        resolve(false);
      }, left);
      this.#waiting = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.();
  }
}
