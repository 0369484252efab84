// One client of the store server: the handshake, its requests, and how it left.
import type { Socket } from 'node:net';
import { type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import { endWhenSilent } from '../native/tcp.ts';
import {
  encodeFrame,
  type Frame,
  FrameReader,
  memberLimits,
  protocolError,
  strangerLimits,
} from '../meeting/frames.ts';
import { clientProof, createNonce, PROTOCOL_NAME, PROTOCOL_VERSION, sameProof, serverProof } from '../meeting/proof.ts';
import type { Departure } from './membership.ts';
import type { StoreCore } from './store-core.ts';
import { parseRequest } from './store-request.ts';

export interface ConnectionOptions {
  readonly core: StoreCore;
  readonly size: number;
  readonly token: string;
  readonly jobId: string;
  readonly maxValueBytes: number;
  /** A client that has not shown the token by then is dropped. */
  readonly handshakeMs: number;
  /** A client whose system answers nothing for so long, at most 25 s, is lost. */
  readonly silenceMs: number;
  readonly onMember: (connection: StoreConnection) => void;
  /** Called once, at a rank's goodbye or when its connection broke. */
  readonly onDeparture: (connection: StoreConnection, departure: Departure) => void;
  /** Called once, when the socket is gone. */
  readonly onEnd: (connection: StoreConnection) => void;
}

/** A client that does not read its last replies for so long misses them. */
const FLUSH_MS = 500;

export class StoreConnection {
  /** The rank, once the client has shown the token. */
  rank: number | undefined;
  readonly #socket: Socket;
  readonly #options: ConnectionOptions;
  readonly #reader = new FrameReader(strangerLimits);
  readonly #nonce = createNonce();
  readonly #deadline: NodeJS.Timeout;
  readonly #running = new Map<number, AbortController>();
  #departed = false;

  constructor(socket: Socket, options: ConnectionOptions) {
    this.#socket = socket;
    this.#options = options;
    socket.setNoDelay(true);
    endWhenSilent(socket, options.silenceMs);
    this.#deadline = setTimeout(() => socket.destroy(), options.handshakeMs);
    socket.on('data', (chunk) => this.#receive(chunk));
    // A broken connection also ends with 'close'; a half-closed one is of no use to a client that waits for replies.
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    socket.on('close', () => this.#ended());
    this.#send({ protocol: PROTOCOL_NAME, version: PROTOCOL_VERSION, nonce: this.#nonce });
  }

  /** Tells a rank about another one that left. */
  announce(rank: number, error: EncodedError): void {
    this.#send({ event: 'left', rank, error });
  }

  destroy(): void {
    this.#socket.destroy();
  }

  /** Ends the connection once what was said to the client is on its way. */
  end(): void {
    this.#socket.destroySoon();
    setTimeout(() => this.#socket.destroy(), FLUSH_MS).unref();
  }

  #receive(chunk: Buffer): void {
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) this.#handle(frame);
    } catch (error) {
      this.#refuse(error);
    }
  }

  #handle(frame: Frame): void {
    if (this.#socket.destroyed || this.#socket.writableEnded) return;
    if (this.rank === undefined) this.#greet(frame.header);
    else if (frame.header['goodbye'] === true) this.#leave(frame.header['error']);
    else if (frame.header['cancel'] !== undefined) this.#running.get(Number(frame.header['cancel']))?.abort();
    else this.#answer(this.rank, frame);
  }

  /** Lets a client in that holds the token and agrees on the job; anything else is refused with a reason. */
  #greet(hello: Readonly<Record<string, unknown>>): void {
    const { core, token, size, jobId, maxValueBytes } = this.#options;
    const { version, rank, nonce, pid, host } = hello;
    if (version !== PROTOCOL_VERSION) {
      throw protocolError(
        `protocol version ${JSON.stringify(version)}, rank 0 speaks ${PROTOCOL_VERSION}: use the same weftline on all ranks`,
      );
    }
    if (typeof rank !== 'number' || typeof hello['size'] !== 'number' || typeof nonce !== 'string') {
      throw protocolError('a greeting without rank, size and nonce');
    }
    const facts = { serverNonce: this.#nonce, clientNonce: nonce, rank, size: hello['size'] };
    if (!sameProof(clientProof(token, facts), hello['proof'])) {
      throw new WeftlineError(
        'WL_UNAUTHORIZED',
        'The rendezvous store refused this process: it does not hold the token of the job (WEFTLINE_TOKEN must be the same on all ranks)',
      );
    }
    if (facts.size !== size || !Number.isInteger(rank) || rank < 0 || rank >= size) {
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `Rank ${rank} of a world of ${facts.size} cannot join: rank 0 was started for a world of ${size}`,
        { details: { rank, size: facts.size, expected: size } },
      );
    }
    core.join(rank, { pid: Number(pid), host: String(host).slice(0, 255) });
    clearTimeout(this.#deadline);
    this.rank = rank;
    this.#reader.limits = memberLimits(maxValueBytes);
    this.#send({ welcome: true, jobId, proof: serverProof(token, facts, jobId) });
    this.#options.onMember(this);
  }

  #answer(rank: number, frame: Frame): void {
    const { id } = frame.header;
    if (typeof id !== 'number' || !Number.isSafeInteger(id) || this.#running.has(id)) {
      throw protocolError('a request without a new id');
    }
    const request = parseRequest(frame.header);
    const cancel = new AbortController();
    this.#running.set(id, cancel);
    void this.#options.core
      .request(rank, request, frame.parts, cancel.signal)
      .then(({ parts, ...result }) => this.#send({ id, ...result }, parts))
      .catch((error: unknown) => this.#send({ id, error: encodeError(error) }))
      .finally(() => this.#running.delete(id));
  }

  #leave(error: unknown): void {
    const reason = typeof error === 'object' && error !== null ? (error as EncodedError) : undefined;
    // First: the client takes the end of the connection for the sign that the others have been told.
    this.#depart(reason === undefined ? { how: 'closed' } : { how: 'failed', error: reason });
    this.#socket.end();
  }

  #depart(departure: Departure): void {
    if (this.rank === undefined || this.#departed) return;
    this.#departed = true;
    this.#options.onDeparture(this, departure);
  }

  /** A stranger and a rank that breaks the protocol hear why, then they are dropped. */
  #refuse(error: unknown): void {
    const { stack: _hidden, ...reason } = encodeError(error);
    this.#send({ refused: reason });
    this.#socket.destroySoon();
  }

  #send(header: Readonly<Record<string, unknown>>, parts: readonly Uint8Array[] = []): void {
    if (this.#socket.destroyed || !this.#socket.writable) return;
    this.#socket.cork();
    for (const piece of encodeFrame(header, parts)) this.#socket.write(piece);
    this.#socket.uncork();
  }

  #ended(): void {
    clearTimeout(this.#deadline);
    for (const cancel of this.#running.values()) cancel.abort();
    this.#depart({ how: 'lost' });
    this.#options.onEnd(this);
  }
}
