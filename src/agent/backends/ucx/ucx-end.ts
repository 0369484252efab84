// One end of a connection over UCX: its endpoint, its requests, and the words that come for it.
import { randomInt } from 'node:crypto';
import { z } from '#zod';
import { ucsStatus, ucxStatusName } from '../../../native/ucx.ts';
import { sendFlag, sendOpcode } from '../../../native/verbs/c-structs.ts';
import { putWide } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { NativeBlock } from '../../../native/library.ts';
import type { EndOptions, EndUser, OwnMemory, RdmaEnd, RemoteKeys, SendQueue } from '../../rdma/rdma-device.ts';
import type { UcxMemories } from './ucx-context.ts';
import { UcxKeys, type UcxWorker } from './ucx-worker.ts';

const TAGS = 2 ** 47;
const MAX_ADDRESS_DIGITS = 8192;
const MAX_KEY_DIGITS = 2048;
/** UCX gives up what is under way at once; only a device that does not answer takes longer. */
const CLOSE_MS = 5000;
const COUNTER_BYTES = 8;
/** Looks that take in what has completed. */
const MAX_LOOKS = 64;

const hexadecimal = (most: number): z.ZodString =>
  z
    .string()
    .regex(/^([0-9a-f]{2})+$/)
    .max(most);
const addressSchema = z.object({
  /** The worker's address. */
  worker: hexadecimal(MAX_ADDRESS_DIGITS),
  port: z.string().max(100),
  /** The tag of words to this end, and the place where it reads how many of them count. */
  tag: z.number().int().min(0).max(TAGS),
  counter: z.object({
    address: z.number().int().min(0).max(Number.MAX_SAFE_INTEGER),
    key: hexadecimal(MAX_KEY_DIGITS),
  }),
});

/** What an end needs of its device. */
interface EndDevice {
  readonly port: { readonly name: string };
  readonly memories: UcxMemories;
  readonly completions: { enter(end: UcxEnd): void; leave(end: UcxEnd): void; poll(): boolean };
  /** UCX has not given up something. */
  abandon(): void;
}

export class UcxEnd implements RdmaEnd {
  readonly address: z.infer<typeof addressSchema>;
  readonly sends: UcxSends;
  route = '';
  readonly #device: EndDevice;
  readonly #worker: UcxWorker;
  readonly #peer: string;
  readonly #counter = new NativeBlock(COUNTER_BYTES);
  readonly #counterMemory: OwnMemory;
  /** UCX writes here when it has lost the peer. */
  readonly #lost = new NativeBlock(8);
  readonly #waiting: Uint32Array;
  #firstWaiting = 0;
  #nextWaiting = 0;
  #keys: UcxKeys | undefined;
  #counterKey: number | undefined;
  #endpoint = 0;
  /** The flush that ends when the connection is made; 0 once it has. */
  #connecting = 0;
  #user: EndUser | undefined;
  #hasFailed = false;
  #isClosed = false;

  /** Fails with WL_CAPACITY. */
  constructor(device: EndDevice, worker: UcxWorker, { peer, maxSends, maxReceives }: EndOptions) {
    this.#device = device;
    this.#worker = worker;
    this.#peer = peer;
    this.#waiting = new Uint32Array(maxReceives);
    this.sends = new UcxSends({ worker, memories: device.memories, depth: maxSends });
    this.#counterMemory = device.memories.register(this.#counter.address, COUNTER_BYTES);
    this.address = {
      worker: Buffer.from(worker.address).toString('hex'),
      port: device.port.name,
      tag: randomInt(TAGS),
      counter: { address: this.#counter.address, key: Buffer.from(this.#counterMemory.remoteKey).toString('hex') },
    };
    device.completions.enter(this);
  }

  use(user: EndUser): void {
    this.#user = user;
  }

  connect(said: unknown, keys: RemoteKeys): void {
    const { data: remote } = addressSchema.safeParse(said);
    if (remote === undefined || !(keys instanceof UcxKeys)) throw protocolError('an address of UCX that is none');
    this.route = `${this.address.port} to ${remote.port}, UCX`;
    const counterKey = keys.add(Buffer.from(remote.counter.key, 'hex'));
    if (counterKey === undefined) throw protocolError('a key of UCX that is none');
    this.#counterKey = counterKey;
    this.#endpoint = this.#worker.connect(Buffer.from(remote.worker, 'hex'), this.#lost.address, this.#peer);
    this.#keys = keys;
    keys.attach(this.#worker, this.#endpoint);
    const { tag, counter } = remote;
    this.sends.connect({ endpoint: this.#endpoint, keys, tag, counterAddress: counter.address, counterKey });
    const request = this.#worker.flush(this.#endpoint);
    if (request < 0) throw this.#failureOf(request);
    this.#connecting = request;
  }

  /** Fails with WL_PEER_LOST if it will not be. */
  get isReady(): boolean {
    if (this.#connecting === 0) return true;
    const status = this.#worker.check(this.#connecting);
    if (status === ucsStatus.inProgress) return false;
    this.#connecting = 0;
    if (status !== ucsStatus.ok) throw this.#failureOf(status);
    return true;
  }

  replenish(): void {
    // Receives are the worker's.
  }

  /** Hot path. Tells the user what has completed. True if anything has. */
  progress(): boolean {
    const user = this.#user;
    if (user === undefined || this.#hasFailed) return false;
    const done = this.sends.progress();
    if (done !== undefined) user.done(done);
    const hasWords = this.#nextWaiting !== this.#firstWaiting && this.#takeWords(user);
    const { failure } = this.sends;
    if (failure !== ucsStatus.ok || Atomics.load(this.#lost.words, 0) !== 0) {
      this.#hasFailed = true;
      const kind = 'unclear';
      user.failed({ kind, sequence: 0, tag: 0, error: this.#failureOf(failure) });
      return true;
    }
    return done !== undefined || hasWords;
  }

  /** Hot path. A word came. */
  arrived(word: number): void {
    // More than there may be would be lost by a peer that does not keep to its credit.
    if (this.#nextWaiting - this.#firstWaiting === this.#waiting.length) this.#firstWaiting++;
    this.#waiting[this.#nextWaiting++ % this.#waiting.length] = word;
  }

  /** Words are here before what they tell of. */
  get isBusy(): boolean {
    return this.#nextWaiting !== this.#firstWaiting && !this.#hasFailed;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const { completions } = this.#device;
    for (let look = 0; look < MAX_LOOKS && completions.poll(); look++);
    completions.leave(this);
    if (this.#endpoint !== 0) this.#disconnect(this.#endpoint);
    this.#counterMemory.close();
  }

  #disconnect(endpoint: number): void {
    const end = performance.now() + CLOSE_MS;
    let closing = this.#worker.disconnect(endpoint);
    const isOver = (): boolean => {
      if (closing !== 0 && this.#worker.check(closing) !== ucsStatus.inProgress) closing = 0;
      if (this.#connecting !== 0 && this.#worker.check(this.#connecting) !== ucsStatus.inProgress) this.#connecting = 0;
      this.sends.progress();
      return closing === 0 && this.#connecting === 0 && this.sends.isEmpty;
    };
    while (!isOver()) {
      this.#worker.progress();
      if (performance.now() < end) continue;
      log('agent', 'warn', `UCX does not end a connection to ${this.#peer}: its memory stays`);
      this.#device.abandon();
      return;
    }
    this.#keys?.detach(endpoint);
    if (this.#counterKey !== undefined) this.#keys?.remove(this.#counterKey);
  }

  #takeWords(user: EndUser): boolean {
    const before = this.#firstWaiting;
    const visible = Atomics.load(this.#counter.words, 0);
    while (this.#firstWaiting !== this.#nextWaiting && ((visible - this.#firstWaiting) | 0) > 0) {
      user.received(this.#waiting[this.#firstWaiting++ % this.#waiting.length]!);
    }
    return this.#firstWaiting !== before;
  }

  #failureOf(status: number): WeftlineError {
    const name = status === ucsStatus.ok ? 'UCX lost the peer' : `it failed with ${ucxStatusName(status)}`;
    return new WeftlineError('WL_PEER_LOST', `The connection to ${this.#peer} (${this.route}) broke: ${name}`, {
      details: { peer: this.#peer, status: ucxStatusName(status) },
    });
  }
}

// Requests of one end as calls of UCX. Hot path: no allocation.

const CELL_BYTES = 8;

/** What both ends of a connection agree on. */
interface UcxRoute {
  readonly endpoint: number;
  readonly keys: UcxKeys;
  /** The tag of words to the peer. */
  readonly tag: number;
  /** The place where the peer reads how many words were sent, all before which is visible there; and the number of its key. */
  readonly counterAddress: number;
  readonly counterKey: number;
}

interface UcxSendsOptions {
  readonly worker: UcxWorker;
  readonly memories: UcxMemories;
  /** A power of two. */
  readonly depth: number;
}

class UcxSends implements SendQueue {
  /** The status of the first call that UCX refused, or of the first request that failed. */
  failure: number = ucsStatus.ok;
  readonly #worker: UcxWorker;
  readonly #memories: UcxMemories;
  readonly #depth: number;
  #route: UcxRoute | undefined;
  /** Sequences: of the next request, of the first that was not posted, of the first that is not done. */
  #next = 0;
  #unposted = 0;
  #oldest = 0;
  #at = 0;
  // Columns by request, modulo depth.
  readonly #opcode: Uint8Array;
  readonly #flags: Uint32Array;
  readonly #isOrdered: Uint8Array;
  readonly #address: Float64Array;
  readonly #bytes: Float64Array;
  readonly #localKey: Uint32Array;
  readonly #remote: Float64Array;
  readonly #remoteKey: Uint32Array;
  /** Two cells of 8 bytes each: numbers that are added or written, and words. */
  readonly #cells: NativeBlock;
  // Flushes under way, in their order: requests, 0 of those that ended at once, and the sequences that they are for.
  readonly #flush: Float64Array;
  readonly #flushed: Uint32Array;
  #firstFlush = 0;
  #nextFlush = 0;
  #wordsSent = 0;

  constructor({ worker, memories, depth }: UcxSendsOptions) {
    this.#worker = worker;
    this.#memories = memories;
    this.#depth = depth;
    this.#opcode = new Uint8Array(depth);
    this.#flags = new Uint32Array(depth);
    this.#isOrdered = new Uint8Array(depth);
    this.#address = new Float64Array(depth);
    this.#bytes = new Float64Array(depth);
    this.#localKey = new Uint32Array(depth);
    this.#remote = new Float64Array(depth);
    this.#remoteKey = new Uint32Array(depth);
    this.#cells = new NativeBlock(depth * 2 * CELL_BYTES);
    this.#flush = new Float64Array(depth);
    this.#flushed = new Uint32Array(depth);
  }

  connect(route: UcxRoute): void {
    this.#route = route;
  }

  get room(): number {
    return this.#depth - ((this.#next - this.#oldest) >>> 0);
  }

  get unposted(): number {
    return (this.#next - this.#unposted) >>> 0;
  }

  get nextSequence(): number {
    return this.#next;
  }

  start(opcode: number, flags: number): boolean {
    if (this.room === 0) return false;
    const at = this.#next % this.#depth;
    this.#at = at;
    this.#opcode[at] = opcode;
    this.#flags[at] = flags;
    this.#isOrdered[at] = (flags & sendFlag.fence) === 0 ? 0 : 1;
    this.#bytes[at] = 0;
    this.#next = (this.#next + 1) >>> 0;
    return true;
  }

  order(): void {
    this.#isOrdered[this.#at] = 1;
  }

  add(address: number, bytes: number, localKey: number): void {
    const at = this.#at;
    this.#address[at] = address;
    this.#bytes[at] = bytes;
    this.#localKey[at] = localKey;
  }

  target(remoteAddress: number, remoteKey: number): void {
    this.#remote[this.#at] = remoteAddress;
    this.#remoteKey[this.#at] = remoteKey;
  }

  addend(remoteAddress: number, remoteKey: number, low: number, high: number): void {
    this.target(remoteAddress, remoteKey);
    const cell = this.#at * 4;
    this.#cells.words[cell] = low;
    this.#cells.words[cell + 1] = high;
  }

  immediate(value: number): void {
    this.#cells.words[this.#at * 4 + 2] = value;
  }

  signal(): void {
    this.#flags[this.#at]! |= sendFlag.signaled;
  }

  /** A call that UCX refuses is the last: `failure` tells, and nothing more is posted. */
  post(): void {
    const route = this.#route;
    while (this.#unposted !== this.#next) {
      const at = this.#unposted % this.#depth;
      if (route !== undefined && this.failure === ucsStatus.ok) this.#postOne(route, at);
      this.#unposted = (this.#unposted + 1) >>> 0;
    }
  }

  doneUntil(sequence: number): void {
    const count = (sequence + 1 - this.#oldest) >>> 0;
    if (count <= this.#depth) this.#oldest = (sequence + 1) >>> 0;
  }

  /** The sequence up to which all is done now; undefined if nothing more is than at the last call. */
  progress(): number | undefined {
    let done: number | undefined;
    while (this.#firstFlush !== this.#nextFlush) {
      const at = this.#firstFlush % this.#depth;
      const request = this.#flush[at]!;
      const status = request === 0 ? ucsStatus.ok : this.#worker.check(request);
      if (status === ucsStatus.inProgress) break;
      this.#firstFlush++;
      if (status !== ucsStatus.ok && this.failure === ucsStatus.ok) this.failure = status;
      if (this.failure === ucsStatus.ok) done = this.#flushed[at]!;
    }
    return done;
  }

  get isEmpty(): boolean {
    return this.#firstFlush === this.#nextFlush;
  }

  #postOne(route: UcxRoute, at: number): void {
    const worker = this.#worker;
    const { endpoint, keys } = route;
    const opcode = this.#opcode[at]!;
    const [bytes, address, remote] = [this.#bytes[at]!, this.#address[at]!, this.#remote[at]!];
    const cell = this.#cells.address + at * 2 * CELL_BYTES;
    if (this.#isOrdered[at] === 1 || opcode === sendOpcode.fetchAdd) worker.fence();
    if (opcode === sendOpcode.fetchAdd) {
      this.#note(worker.addWord(endpoint, cell, remote, keys.handleOf(this.#remoteKey[at]!)));
    } else if (bytes > 0) {
      const memory = this.#memories.handleOf(this.#localKey[at]!);
      const key = keys.handleOf(this.#remoteKey[at]!);
      if (opcode === sendOpcode.read) this.#note(worker.get(endpoint, address, bytes, memory, remote, key));
      else this.#note(worker.put(endpoint, address, bytes, memory, remote, key));
    }
    if (opcode === sendOpcode.writeWithImmediate) this.#sendWord(route, at, cell);
    if ((this.#flags[at]! & sendFlag.signaled) === 0) return;
    const request = worker.flush(endpoint);
    if (request < 0) {
      this.#note(request);
      return;
    }
    const flush = this.#nextFlush++ % this.#depth;
    this.#flush[flush] = request;
    this.#flushed[flush] = this.#unposted;
  }

  /** UCX does not say in which order a word and puts arrive: the counter tells which words count. */
  #sendWord({ endpoint, keys, tag, counterAddress, counterKey }: UcxRoute, at: number, cell: number): void {
    const worker = this.#worker;
    this.#wordsSent = (this.#wordsSent + 1) >>> 0;
    putWide(this.#cells.words, at * 4, this.#wordsSent);
    worker.fence();
    this.#note(worker.putWord(endpoint, cell, counterAddress, keys.handleOf(counterKey)));
    this.#note(worker.sendWord(endpoint, cell + CELL_BYTES, tag));
  }

  #note(request: number): void {
    if (request > 0) this.#worker.forget(request);
    else if (request < 0 && this.failure === ucsStatus.ok) this.failure = request;
  }
}
