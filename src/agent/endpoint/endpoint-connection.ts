// One connection of an endpoint: messages that meet receives in order, and writes and reads of the peer's memory.
import { endpointMessage, endpointMessageKinds } from '../../abi/endpoint-message.ts';
import { Block } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { Agent } from '../agent.ts';
import type { BackendName, TransferOperation } from '../backend.ts';
import { DescriptorList } from '../descriptors.ts';
import type { Registration } from '../registration.ts';
import type { RemoteMemory } from '../remote-agent.ts';
import type { Transfer } from '../transfer.ts';
import { Operation } from './operation.ts';
import { cutAlike, listOf, type LocalParts } from './ranges.ts';

export interface ConnectionParts {
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

interface Offer {
  readonly request: number;
  readonly memory: DescriptorList;
}

interface Send {
  readonly operation: Operation;
  readonly memory: DescriptorList;
}

/** Prepared transfers that are kept for the next message between the same places. */
const KEPT_TRANSFERS = 256;
const RETRY_MS = 1;

export class EndpointConnection implements AsyncDisposable {
  /** Of the endpoint. */
  readonly id: number;
  readonly ip: string;
  /** The peer's. */
  readonly gpuIndex: number;
  /** Which path it got. */
  readonly backend: BackendName;
  readonly #parts: ConnectionParts;
  readonly #sends: Send[] = [];
  readonly #offers: Offer[] = [];
  readonly #receives = new Map<number, { readonly operation: Operation; readonly bytes: number }>();
  readonly #running = new Set<Operation>();
  /** By operation and ranges; those that are idle. */
  readonly #kept = new Map<string, Transfer>();
  readonly #waitingForMemory = new Set<() => void>();
  /** What this side tells goes out in order. */
  #outbox: Promise<void> = Promise.resolve();
  #inbox: Promise<void> = Promise.resolve();
  #nextRequest = 1;
  #error: WeftlineError | undefined;

  constructor(parts: ConnectionParts) {
    this.id = parts.id;
    this.ip = parts.ip;
    this.gpuIndex = parts.gpuIndex;
    this.backend = parts.backend;
    this.#parts = parts;
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
  send(parts: LocalParts): Operation {
    const memory = listOf(parts);
    const operation = this.#begin(`A send of ${memory.bytes} bytes`);
    this.#sends.push({ operation, memory });
    this.#match();
    return operation;
  }

  /** Takes the next message that the peer sends; its bytes are what `wait` gives. */
  recv(parts: LocalParts): Operation {
    const memory = listOf(parts);
    const operation = this.#begin(`A receive of up to ${memory.bytes} bytes`);
    const request = this.#nextRequest++;
    this.#receives.set(request, { operation, bytes: memory.bytes });
    this.#tell(endpointMessageKinds.offer, { request, bytes: memory.bytes, payload: memory.encode() });
    return operation;
  }

  /** Writes into memory of the peer, which need do nothing. Both sides have as many bytes. */
  write(parts: LocalParts, remote: DescriptorList): Operation {
    return this.#oneSided('write', parts, remote);
  }

  read(parts: LocalParts, remote: DescriptorList): Operation {
    return this.#oneSided('read', parts, remote);
  }

  /** Memory that the peer registered under this name, as soon as it has. */
  async memory(name: string, { timeoutMs, signal }: WaitOptions = {}): Promise<RemoteMemory> {
    const { agent, peer } = this.#parts;
    const end = performance.now() + (timeoutMs ?? agent.settings.timeoutMs);
    for (;;) {
      if (this.#error !== undefined) throw this.#error;
      signal?.throwIfAborted();
      const found = agent.remoteMemory(peer).find((memory) => memory.name === name);
      if (found !== undefined) return found;
      const left = end - performance.now();
      if (left <= 0) {
        throw new WeftlineError(
          'WL_TIMEOUT',
          `${this.#who()} registered no memory of the name ${JSON.stringify(name)}`,
        );
      }
      await this.#nextMemory(left);
    }
  }

  /** Pending operations fail with WL_CLOSED, here and at the peer. Idempotent. */
  async close(): Promise<void> {
    this.end(new WeftlineError('WL_CLOSED', `The connection to ${this.#who()} was closed`));
    await this.#outbox;
    for (const transfer of this.#kept.values()) await transfer.release();
    this.#kept.clear();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  // Of the endpoint.

  /** The peer learns of memory. */
  announce(region: Registration): void {
    const payload = this.#parts.agent.localMetadata({ regions: [region], connections: false });
    this.#tell(endpointMessageKinds.region, { request: 0, bytes: 0, payload });
  }

  end(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    for (const operation of this.#running) operation.fail(error);
    this.#running.clear();
    for (const wake of this.#waitingForMemory) wake();
    this.#parts.onClose(this);
  }

  handle(message: Uint8Array): void {
    const head = new Block(endpointMessage, message.buffer, message.byteOffset);
    const [request, bytes] = [head.get('request'), head.get('bytes')];
    const payload = message.subarray(endpointMessage.size);
    switch (head.get('kind')) {
      case endpointMessageKinds.region:
        this.#inbox = this.#inbox.then(() => this.#learn(payload));
        return;
      case endpointMessageKinds.offer:
        this.#offers.push({ request, memory: DescriptorList.decode(payload) });
        this.#match();
        return;
      case endpointMessageKinds.arrived:
      case endpointMessageKinds.refused:
        this.#received(request, bytes, head.get('kind') === endpointMessageKinds.refused);
        return;
      default:
        this.end(new WeftlineError('WL_PROTOCOL', `${this.#who()} sent a message of an unknown kind`));
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
    operation.fail(error as WeftlineError);
  }

  #oneSided(operation: TransferOperation, parts: LocalParts, remote: DescriptorList): Operation {
    const local = listOf(parts);
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
      const offer = this.#offers.shift() as Offer;
      const { request } = offer;
      if (memory.bytes <= offer.memory.bytes) {
        const message = this.#message(endpointMessageKinds.arrived, { request, bytes: memory.bytes });
        void this.#carry('write', operation, { local: memory, remote: offer.memory, message });
      } else {
        this.#tell(endpointMessageKinds.refused, { request, bytes: memory.bytes });
        this.#fail(operation, tooSmall(memory.bytes, offer.memory.bytes, this.#who()));
      }
    }
  }

  async #carry(
    kind: TransferOperation,
    operation: Operation,
    way: { readonly local: DescriptorList; readonly remote: DescriptorList; readonly message?: Uint8Array },
  ): Promise<void> {
    const key = [kind, ...way.local.addresses, '', ...way.local.lengths, '', ...way.remote.addresses].join();
    try {
      const transfer = this.#take(key) ?? (await this.#prepare(kind, way));
      await this.#post(transfer, way.message);
      await transfer.wait();
      this.#end(operation, way.local.bytes);
      await this.#keep(key, transfer);
    } catch (error) {
      this.#fail(operation, error);
    }
  }

  async #prepare(
    operation: TransferOperation,
    way: { readonly local: DescriptorList; readonly remote: DescriptorList },
  ): Promise<Transfer> {
    // Memory of which the peer told before its offer must be known first.
    await this.#inbox;
    const { agent, peer, backend } = this.#parts;
    return agent.prepare({ operation, peer, backend, ...cutAlike(way.local, way.remote) });
  }

  /** Tries again while the peer has not taken what was told before. */
  async #post(transfer: Transfer, message: Uint8Array | undefined): Promise<void> {
    await this.#patiently(() => transfer.post(message));
  }

  async #patiently(attempt: () => void | Promise<void>): Promise<void> {
    for (;;) {
      try {
        return await attempt();
      } catch (error) {
        const isFull = error instanceof WeftlineError && error.code === 'WL_CAPACITY';
        if (!isFull || this.#error !== undefined) throw error;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  #take(key: string): Transfer | undefined {
    const transfer = this.#kept.get(key);
    this.#kept.delete(key);
    return transfer;
  }

  async #keep(key: string, transfer: Transfer): Promise<void> {
    const before = this.#kept.get(key);
    if (before !== undefined || this.#error !== undefined) return transfer.release();
    this.#kept.set(key, transfer);
    if (this.#kept.size <= KEPT_TRANSFERS) return;
    const [oldest, idle] = this.#kept.entries().next().value as [string, Transfer];
    this.#kept.delete(oldest);
    return idle.release();
  }

  #received(request: number, bytes: number, isRefused: boolean): void {
    const receive = this.#receives.get(request);
    if (receive === undefined) return;
    this.#receives.delete(request);
    if (isRefused) this.#fail(receive.operation, tooSmall(bytes, receive.bytes, this.#who()));
    else this.#end(receive.operation, bytes);
  }

  async #learn(metadata: Uint8Array): Promise<void> {
    try {
      await this.#parts.agent.loadRemoteMetadata(metadata);
    } catch (error) {
      this.end(error as WeftlineError);
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

  #message(kind: number, { request, bytes, payload }: MessageContent): Uint8Array {
    const message = new Uint8Array(endpointMessage.size + (payload?.length ?? 0));
    const head = new Block(endpointMessage, message.buffer, 0);
    head.set('kind', kind);
    head.set('connection', this.#parts.remoteId);
    head.set('request', request);
    head.set('bytes', bytes);
    if (payload !== undefined) message.set(payload, endpointMessage.size);
    return message;
  }

  #tell(kind: number, content: MessageContent): void {
    const message = this.#message(kind, content);
    const { agent, peer, backend } = this.#parts;
    this.#outbox = this.#outbox
      .then(() =>
        this.#error === undefined ? this.#patiently(() => agent.notify(peer, message, { backend })) : undefined,
      )
      .catch((error: unknown) => this.end(error as WeftlineError));
  }

  #who(): string {
    return `the endpoint ${this.#parts.peer} at ${this.ip}`;
  }
}

interface MessageContent {
  readonly request: number;
  readonly bytes: number;
  readonly payload?: Uint8Array;
}

function tooSmall(bytes: number, allowed: number, who: string): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `A message of ${bytes} bytes met a receive of ${allowed} bytes (connection to ${who}): give the receive more memory`,
    { details: { bytes, allowed } },
  );
}
