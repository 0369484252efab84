// Both ends of a connection within one process: as much of a socket as a control channel uses.
import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';

export class FakeSocket extends Duplex {
  readonly remoteAddress: string = '127.0.0.1';
  readonly localAddress: string = '127.0.0.1';
  readonly remotePort: number = 4711;
  other: FakeSocket | undefined;

  /** Two that are connected. */
  static pair(): readonly [FakeSocket, FakeSocket] {
    const [one, other] = [new FakeSocket(), new FakeSocket()];
    one.other = other;
    other.other = one;
    return [one, other];
  }

  constructor() {
    super({ allowHalfOpen: true });
  }

  get socket(): Socket {
    return this as unknown as Socket;
  }

  override _read(): void {}

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    if (this.other !== undefined && !this.other.destroyed) this.other.push(Buffer.from(chunk));
    done();
  }

  override _final(done: () => void): void {
    this.#hangUp();
    done();
  }

  override _destroy(_error: Error | null, done: (error: Error | null) => void): void {
    this.#hangUp();
    // An error of the other end shows as an end.
    done(null);
  }

  destroySoon(): void {
    if (this.writableFinished) this.destroy();
    else this.end(() => this.destroy());
  }

  setNoDelay(): this {
    return this;
  }

  setKeepAlive(): this {
    return this;
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }

  #hangUp(): void {
    if (this.other !== undefined && !this.other.destroyed && !this.other.readableEnded) this.other.push(null);
  }
}
