// One TCP connection between two agents that exchange metadata: frames, a mutual proof of the token, a deadline.
import type { Socket } from 'node:net';
import { decodeError, type EncodedError, WeftlineError } from '../../core/errors.ts';
import {
  encodeFrame,
  type Frame,
  type FrameLimits,
  FrameReader,
  protocolError,
  strangerLimits,
} from '../../meeting/frames.ts';
import { createNonce, keyedProof, sameProof } from '../../meeting/proof.ts';

const PROTOCOL = 'weftline-agent';
const VERSION = 1;
/** Metadata of tens of thousands of regions. */
const knownLimits: FrameLimits = { headerBytes: 4096, payloadBytes: 64 << 20 };

/** What one side asks of the other: take these metadata, give yours, forget an agent. */
export type MetadataRequest =
  | { readonly verb: 'load'; readonly blob: Uint8Array }
  | { readonly verb: 'fetch' }
  | { readonly verb: 'invalidate'; readonly name: string };

export interface MetadataAnswer {
  readonly name: string;
  /** The answer to a fetch. */
  readonly blob: Uint8Array | undefined;
}

export class MetadataChannel implements Disposable {
  readonly #socket: Socket;
  readonly #reader = new FrameReader(strangerLimits);
  readonly #frames: Frame[] = [];
  readonly #deadline: NodeJS.Timeout;
  #wanted: { readonly resolve: (frame: Frame) => void; readonly reject: (error: unknown) => void } | undefined;
  #error: unknown;

  /** After so many milliseconds the other side has had its time: whatever waits fails with WL_TIMEOUT. */
  constructor(socket: Socket, milliseconds: number, peer: string) {
    this.#socket = socket;
    socket.setNoDelay(true);
    this.#deadline = setTimeout(() => {
      const message = `${peer} did not finish an exchange of metadata within ${milliseconds} ms`;
      this.#fail(new WeftlineError('WL_TIMEOUT', message, { details: { peer } }));
    }, milliseconds);
    socket.on('data', (chunk) => this.#receive(chunk));
    const lost = `${peer} broke off an exchange of metadata`;
    const end = (): void => this.#fail(new WeftlineError('WL_PEER_LOST', lost, { details: { peer } }));
    socket.on('error', end);
    socket.on('end', end);
    socket.on('close', end);
  }

  /** Of the side that was connected to. Fails with WL_UNAUTHORIZED, having told the other side. */
  async provePeer(token: string): Promise<void> {
    const nonce = createNonce();
    this.send({ protocol: PROTOCOL, version: VERSION, nonce });
    const { header } = await this.next();
    const theirs = String(header['nonce']);
    if (!sameProof(keyedProof(token, ['client', VERSION, nonce, theirs]), header['proof'])) {
      throw new WeftlineError('WL_UNAUTHORIZED', 'A caller does not hold the token of this agent');
    }
    this.send({ proof: keyedProof(token, ['server', VERSION, nonce, theirs]) });
    this.#reader.limits = knownLimits;
  }

  /** Of the side that connected. Fails with WL_PROTOCOL if the other is no agent, WL_UNAUTHORIZED. */
  async proveSelf(token: string): Promise<void> {
    const { header } = await this.next();
    if (header['protocol'] !== PROTOCOL || header['version'] !== VERSION) {
      throw protocolError(`a greeting that is not ${PROTOCOL} version ${VERSION}`);
    }
    const theirs = String(header['nonce']);
    const nonce = createNonce();
    this.send({ nonce, proof: keyedProof(token, ['client', VERSION, theirs, nonce]) });
    const answer = await this.next();
    if (!sameProof(keyedProof(token, ['server', VERSION, theirs, nonce]), answer.header['proof'])) {
      throw new WeftlineError('WL_UNAUTHORIZED', 'The listener does not hold the token of this agent');
    }
    this.#reader.limits = knownLimits;
  }

  async ask(request: MetadataRequest): Promise<MetadataAnswer> {
    if (request.verb === 'load') this.send({ verb: 'load' }, request.blob);
    else this.send(request);
    const { header, parts } = await this.next();
    if (typeof header['name'] !== 'string') throw protocolError('an answer without a name');
    return { name: header['name'], blob: parts[0] };
  }

  /** The next request, or undefined when the other side has no more. */
  async nextRequest(): Promise<MetadataRequest | undefined> {
    const { header, parts } = await this.next();
    const { verb, name } = header;
    if (verb === 'bye') return undefined;
    if (verb === 'load' && parts[0] !== undefined) return { verb, blob: parts[0] };
    if (verb === 'fetch') return { verb };
    if (verb === 'invalidate' && typeof name === 'string') return { verb, name };
    throw protocolError(`a request ${JSON.stringify(verb)}`);
  }

  send(header: Readonly<Record<string, unknown>>, ...parts: readonly Uint8Array[]): void {
    if (this.#socket.destroyed) return;
    for (const piece of encodeFrame(header, parts)) this.#socket.write(piece);
  }

  /** The next frame. One that carries an error fails with it. */
  async next(): Promise<Frame> {
    const frame =
      this.#frames.shift() ??
      (await new Promise<Frame>((resolve, reject) => {
        if (this.#error !== undefined) reject(this.#error);
        else this.#wanted = { resolve, reject };
      }));
    const { error } = frame.header;
    if (error !== undefined) throw decodeError(error as EncodedError);
    return frame;
  }

  /** What was sent goes out. */
  [Symbol.dispose](): void {
    clearTimeout(this.#deadline);
    this.#fail(new WeftlineError('WL_CLOSED', 'The exchange of metadata was ended'));
    this.#socket.destroySoon();
  }

  #receive(chunk: Buffer): void {
    if (this.#error !== undefined) return;
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        const wanted = this.#wanted;
        this.#wanted = undefined;
        if (wanted === undefined) this.#frames.push(frame);
        else wanted.resolve(frame);
      }
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error: unknown): void {
    this.#error ??= error;
    const wanted = this.#wanted;
    this.#wanted = undefined;
    wanted?.reject(this.#error);
  }
}
