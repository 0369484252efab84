// One connection of an endpoint: messages that meet receives in order, and writes and reads of the peer's memory.
import {
  encodeMessage,
  encodePieces,
  endpointMessageKinds,
  MAX_OFFERED_BYTES,
  type MessageHead,
  MessageReader,
  offerCost,
  type WholeMessage,
} from './message.ts';
import { checkOptions } from '../../core/check-options.ts';
import { checkSignal, Deadline, deadlineOf, waitOptionNames, type WaitOptions, within } from '../../core/deadline.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import type { Agent } from '../agent.ts';
import type { TransferOperation } from '../backend.ts';
import type { BackendName } from '../backends/backend-table.ts';
import { DescriptorList, requireList } from '../descriptors.ts';
import { decodeMetadata } from '../metadata.ts';
import type { Registration } from '../registration.ts';
import type { RemoteMemory } from '../remote-agent.ts';
import { cutAlike, type EndpointParts, listOf, Mover, type Ways } from './mover.ts';

interface EndpointConnectionParts {
  readonly agent: Agent;
  /** This side's number of it, and the peer's. */
  readonly id: number;
  readonly remoteId: number;
  /** Name of the peer's agent. */
  readonly peer: string;
  readonly ip: string;
  readonly gpuIndex: number;
  readonly backend: BackendName;
  readonly onClose: (connection: EndpointConnection) => void;
}

/** A receive of the peer that no send has met. */
interface Offer {
  readonly request: number;
  readonly memory: DescriptorList;
  readonly cost: number;
}

interface Receive {
  readonly operation: Operation;
  readonly bytes: number;
  readonly cost: number;
}

interface Send {
  readonly operation: Operation;
  readonly memory: DescriptorList;
}

/**
 * A connection to the endpoint of a peer: messages that meet receives in order, writes and reads. Operations begin at once.
 */
export class EndpointConnection implements AsyncDisposable {
  /** The endpoint's number of the connection. */
  readonly id: number;
  readonly ip: string;
  /** The peer's. */
  readonly gpuIndex: number;
  readonly backend: BackendName;
  readonly #parts: EndpointConnectionParts;
  readonly #sends: Send[] = [];
  readonly #offers: Offer[] = [];
  readonly #receives = new Map<number, Receive>();
  readonly #running = new Set<Operation>();
  readonly #mover: Mover;
  readonly #reader = new MessageReader();
  readonly #waitingForMemory = new Set<() => void>();
  /** What this side tells goes out in order. */
  #outbox: Promise<void> = Promise.resolve();
  #inbox: Promise<void> = Promise.resolve();
  /** Costs of receives as `offerCost` counts them: this side's, which the peer may hold, and the peer's, which this side holds. */
  #offeredBytes = 0;
  #heldBytes = 0;
  /** Numbers of this side's next receive, and of the peer's. */
  #nextRequest = 1;
  #nextOffer = 1;
  #releasing: Promise<void> = Promise.resolve();
  #error: WeftlineError | undefined;

  /** @internal */
  constructor(parts: EndpointConnectionParts) {
    this.id = parts.id;
    this.ip = parts.ip;
    this.gpuIndex = parts.gpuIndex;
    this.backend = parts.backend;
    this.#parts = parts;
    const { agent, peer, backend } = parts;
    this.#mover = new Mover({ agent, peer, backend, who: this.#who(), learned: () => this.#inbox });
  }

  /** Name of the peer's agent. */
  get peer(): string {
    return this.#parts.peer;
  }

  /** Why it is over; undefined while it is not. */
  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Sends one message to the next receive of the peer. Fails with WL_CAPACITY on both sides if that is too small. */
  send(parts: EndpointParts): Operation {
    const memory = listOf(parts);
    const operation = this.#begin(`A send of ${memory.bytes} bytes`);
    this.#sends.push({ operation, memory });
    this.#match();
    return operation;
  }

  /**
   * Takes the next message that the peer sends; its bytes are what `wait` gives. Fails with WL_CAPACITY for more parts than
   * can be offered at all, WL_BUSY for more than can be beside earlier receives.
   */
  recv(parts: EndpointParts): Operation {
    const memory = listOf(parts);
    const payload = memory.encode();
    const cost = offerCost(memory.length);
    if (this.#offeredBytes + cost > MAX_OFFERED_BYTES) {
      throw tooManyOffers({ parts: memory.length, bytes: cost, offered: this.#offeredBytes }, this.#who());
    }
    const operation = this.#begin(`A receive of up to ${memory.bytes} bytes`);
    const request = this.#nextRequest;
    this.#nextRequest = (request + 1) >>> 0;
    this.#offeredBytes += cost;
    this.#receives.set(request, { operation, bytes: memory.bytes, cost });
    this.#tell({ kind: endpointMessageKinds.offer, request, bytes: memory.bytes }, payload);
    return operation;
  }

  /** Writes into memory of the peer, which need do nothing. Both sides have as many bytes. */
  write(parts: EndpointParts, remote: DescriptorList): Operation {
    return this.#oneSided('write', parts, remote);
  }

  /** Brings bytes of the peer into local parts; they are here when the operation is done. */
  read(parts: EndpointParts, remote: DescriptorList): Operation {
    return this.#oneSided('read', parts, remote);
  }

  /** Memory that the peer registered under this name, as soon as it has. */
  async memory(name: string, options: WaitOptions = {}): Promise<RemoteMemory> {
    checkOptions(options, waitOptionNames, 'options of memory');
    if (typeof name !== 'string') throw invalidArgument('name', name, 'a string');
    const { timeoutMs, signal } = options;
    checkSignal(signal);
    const { agent, peer } = this.#parts;
    const deadline = new Deadline(timeoutMs ?? agent.settings.timeoutMs);
    for (;;) {
      if (this.#error !== undefined) throw this.#error;
      signal?.throwIfAborted();
      const found = agent.remoteMemory(peer).find((memory) => memory.name === name);
      if (found !== undefined) return found;
      if (deadline.isOver) {
        const late = `No memory named ${quote(name)} at ${this.#who()} within ${deadline.timeoutMs} ms`;
        throw new WeftlineError('WL_TIMEOUT', late);
      }
      await this.#nextMemory(deadline.leftMs);
    }
  }

  /** Pending operations fail with WL_CLOSED, here and at the peer. Idempotent. */
  async close(): Promise<void> {
    this.end(new WeftlineError('WL_CLOSED', `The connection to ${this.#who()} was closed`));
    await this.#outbox;
    await this.#releasing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal The peer learns of memory, or that it was deregistered. */
  announce(region: Registration): void {
    const news = region.isOpen ? { regions: [region] } : { regions: [], withdrawn: [region] };
    const payload = this.#parts.agent.localMetadata({ ...news, connections: false });
    this.#tell({ kind: endpointMessageKinds.region, request: 0, bytes: 0 }, payload);
  }

  /** @internal Memory of this side is about to be taken back. */
  forget({ address, length }: Registration): Promise<void> {
    return this.#mover.releaseWithin(address, length);
  }

  /** @internal */
  end(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    for (const operation of this.#running) operation.fail(error);
    this.#running.clear();
    this.#sends.length = 0;
    this.#offers.length = 0;
    this.#receives.clear();
    this.#releasing = this.#mover.close();
    for (const wake of this.#waitingForMemory) wake();
    this.#parts.onClose(this);
  }

  /** @internal A message of the peer. One that makes no sense ends the connection with WL_PROTOCOL; never throws. */
  handle(notification: Uint8Array): void {
    if (this.#error !== undefined) return;
    try {
      const message = this.#reader.read(notification);
      if (message !== undefined) this.#carryOut(message);
      // The peer counts the same and stops earlier, so an honest peer never gets here.
      const held = this.#heldBytes + this.#reader.unfinishedBytes;
      if (held > MAX_OFFERED_BYTES) {
        throw this.#nonsense(`receives that take ${held} bytes`, `at most ${MAX_OFFERED_BYTES}`);
      }
    } catch (error) {
      this.#endUnread(error);
    }
  }

  #endUnread(cause: unknown): void {
    const why = cause instanceof Error ? cause.message : String(cause);
    const details = { peer: this.peer, ip: this.ip };
    this.end(new WeftlineError('WL_PROTOCOL', `Cannot read what ${this.#who()} sent: ${why}`, { details, cause }));
  }

  #carryOut({ kind, request, bytes, payload }: WholeMessage): void {
    if (kind === endpointMessageKinds.region) {
      this.#inbox = this.#inbox.then(() => this.#learn(payload));
    } else if (kind === endpointMessageKinds.offer) {
      if (request !== this.#nextOffer) throw this.#nonsense(`receive ${request}`, `receive ${this.#nextOffer}`);
      this.#nextOffer = (request + 1) >>> 0;
      const memory = DescriptorList.decode(payload);
      if (memory.length === 0 || memory.bytes !== bytes) {
        throw this.#nonsense(`a receive of ${bytes} bytes with memory of ${memory.bytes}`, 'as many, and at least one');
      }
      const cost = offerCost(memory.length);
      if (cost > MAX_OFFERED_BYTES) throw this.#nonsense(`a receive of ${memory.length} parts`, 'fewer');
      this.#heldBytes += cost;
      this.#offers.push({ request, memory, cost });
      this.#match();
    } else {
      if (payload.length > 0) throw this.#nonsense(`a payload of ${payload.length} bytes`, 'none');
      this.#received(kind, request, bytes);
    }
  }

  #begin(what: string): Operation {
    if (this.#error !== undefined) throw this.#error;
    const operation = new Operation(`${what}, connection to ${this.#who()},`, this.#parts.agent.settings.timeoutMs);
    this.#running.add(operation);
    return operation;
  }

  #end(operation: Operation, bytes: number): void {
    this.#running.delete(operation);
    operation.finish(bytes);
  }

  #fail(operation: Operation, error: unknown): void {
    this.#running.delete(operation);
    operation.fail(asWeftlineError(error));
  }

  #oneSided(operation: TransferOperation, parts: EndpointParts, remote: DescriptorList): Operation {
    const local = listOf(parts);
    requireList('remote', remote);
    if (offerCost(remote.length) > MAX_OFFERED_BYTES)
      throw invalidArgument('remote.length', remote.length, 'as many parts as a message may have, about 4 million');
    if (local.bytes !== remote.bytes) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        `Cannot ${operation} ${local.bytes} bytes here and ${remote.bytes} there: both sides must have as many`,
      );
    }
    const started = this.#begin(`A ${operation} of ${local.bytes} bytes`);
    void this.#carry(operation, started, { local, remote });
    return started;
  }

  /** Messages and receives meet in order. */
  #match(): void {
    while (this.#sends.length > 0 && this.#offers.length > 0) {
      const { operation, memory } = this.#sends.shift() as Send;
      const { request, memory: offered, cost } = this.#offers.shift() as Offer;
      this.#heldBytes -= cost;
      const { bytes } = memory;
      if (bytes <= offered.bytes) {
        void this.#carry('write', operation, { local: memory, remote: offered, request });
      } else {
        this.#tell({ kind: endpointMessageKinds.refused, request, bytes });
        this.#fail(operation, tooSmall(bytes, offered.bytes, this.#who()));
      }
    }
  }

  /** `request`: the receive of the peer that a send has met. */
  async #carry(
    kind: TransferOperation,
    operation: Operation,
    { local, remote, request }: Ways & { readonly request?: number },
  ): Promise<void> {
    const { bytes } = local;
    const { remoteId: connection } = this.#parts;
    const message =
      request === undefined
        ? undefined
        : encodeMessage({ kind: endpointMessageKinds.arrived, request, bytes, connection });
    try {
      await this.#mover.move(kind, cutAlike(local, remote), message);
      this.#end(operation, bytes);
    } catch (error) {
      this.#fail(operation, error);
      if (request !== undefined) this.#tell({ kind: endpointMessageKinds.failed, request, bytes: 0 });
    }
  }

  /** What a receive ended with. */
  #received(kind: number, request: number, bytes: number): void {
    const { arrived, refused, failed } = endpointMessageKinds;
    if (kind !== arrived && kind !== refused && kind !== failed) throw this.#nonsense(`kind ${kind}`, 'a known one');
    const receive = this.#receives.get(request);
    if (receive === undefined) {
      // A send may fail after its message was on the way.
      if (kind === failed) return;
      throw this.#nonsense(`a message for receive ${request}`, 'one that is pending');
    }
    const { operation, cost } = receive;
    const most = receive.bytes;
    if (kind === arrived && (bytes === 0 || bytes > most)) throw this.#nonsense(`${bytes} bytes`, `1 to ${most}`);
    if (kind === refused && bytes <= most) throw this.#nonsense(`a refusal of ${bytes} bytes`, `more than ${most}`);
    this.#receives.delete(request);
    this.#offeredBytes -= cost;
    if (kind === arrived) this.#end(operation, bytes);
    else if (kind === refused) this.#fail(operation, tooSmall(bytes, most, this.#who()));
    else this.#fail(operation, sendFailed(this.#who()));
  }

  async #learn(metadata: Uint8Array): Promise<void> {
    try {
      const { name } = decodeMetadata(metadata);
      if (name !== this.peer) throw this.#nonsense(`memory of ${quote(name)}`, 'its own');
      await this.#parts.agent.loadRemoteMetadata(metadata);
    } catch (error) {
      this.#endUnread(error);
    }
    for (const wake of this.#waitingForMemory) wake();
  }

  #nextMemory(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#waitingForMemory.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, milliseconds);
      this.#waitingForMemory.add(wake);
    });
  }

  #tell(content: MessageContent, payload: Uint8Array = NO_BYTES): void {
    const pieces = encodePieces({ ...content, connection: this.#parts.remoteId }, payload);
    this.#outbox = this.#outbox
      .then(() => this.#send(pieces))
      .catch((error: unknown) => this.end(asWeftlineError(error)));
  }

  async #send(pieces: Iterable<Uint8Array>): Promise<void> {
    const { agent, peer, backend } = this.#parts;
    for (const piece of pieces) {
      if (this.#error !== undefined) return;
      await this.#mover.patiently(() => agent.notify(peer, piece, { backend }));
    }
  }

  #nonsense(got: string, expected: string): WeftlineError {
    return new WeftlineError('WL_PROTOCOL', `${this.#who()} sent ${got}, expected ${expected}`);
  }

  #who(): string {
    return `the endpoint ${this.#parts.peer} at ${this.ip}`;
  }
}

type MessageContent = Omit<MessageHead, 'connection'>;

const NO_BYTES: Uint8Array = new Uint8Array(0);

// Why a send or a receive of an endpoint failed, as its two sides are told.

function sendFailed(who: string): WeftlineError {
  return new WeftlineError(
    'WL_PEER_FAILED',
    `The send that matched this receive failed at ${who}: its own error says why`,
  );
}

function tooSmall(bytes: number, allowed: number, who: string): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `A message of ${bytes} bytes met a receive of ${allowed} bytes (connection to ${who}): give the receive more memory`,
    { details: { bytes, allowed } },
  );
}

/** A receive that cannot be offered to the peer: WL_CAPACITY if it never can, WL_BUSY while earlier ones wait. */
function tooManyOffers(
  offer: { readonly parts: number; readonly bytes: number; readonly offered: number },
  who: string,
): WeftlineError {
  const details = { ...offer, allowed: MAX_OFFERED_BYTES };
  return offer.bytes > MAX_OFFERED_BYTES
    ? new WeftlineError('WL_CAPACITY', `A receive of ${offer.parts} parts is too long: give it fewer, larger ones`, {
        details,
      })
    : new WeftlineError('WL_BUSY', `Too many receives are offered to ${who}: wait for some first`, { details });
}

/** Something that was begun on a connection: its state, its end, and how to wait for it. */
export class Operation {
  /** What was begun, for errors: "A send of 4096 bytes to 10.0.0.2". */
  readonly #what: string;
  readonly #timeoutMs: number;
  readonly #ended: Promise<void>;
  #end: () => void = () => {};
  #bytes: number | undefined;
  #error: WeftlineError | undefined;

  /** @internal */
  constructor(what: string, timeoutMs: number) {
    this.#what = what;
    this.#timeoutMs = timeoutMs;
    this.#ended = new Promise((resolve) => (this.#end = resolve));
  }

  /** Done means delivered. Never waits. */
  get state(): 'pending' | 'done' | 'failed' {
    if (this.#error !== undefined) return 'failed';
    return this.#bytes === undefined ? 'pending' : 'done';
  }

  /** Why it failed. */
  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Resolves to the bytes that were moved. Fails with why it failed, with WL_TIMEOUT (it then goes on) or the signal's reason. */
  async wait(options: WaitOptions = {}): Promise<number> {
    checkOptions(options, waitOptionNames, 'options of wait');
    const deadline = deadlineOf(options, this.#timeoutMs);
    const late = (): WeftlineError =>
      new WeftlineError('WL_TIMEOUT', `${this.#what} did not end within ${deadline.timeoutMs} ms`, {
        details: { timeoutMs: deadline.timeoutMs },
      });
    options.signal?.throwIfAborted();
    if (this.state === 'pending') await within(this.#ended, { deadline, signal: options.signal }, late);
    if (this.#error !== undefined) throw this.#error;
    return this.#bytes as number;
  }

  /** @internal */
  finish(bytes: number): void {
    if (this.state !== 'pending') return;
    this.#bytes = bytes;
    this.#end();
  }

  /** @internal */
  fail(error: WeftlineError): void {
    if (this.state !== 'pending') return;
    this.#error = error;
    this.#end();
  }
}
