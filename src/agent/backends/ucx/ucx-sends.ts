// Requests of one end as calls of UCX. Hot path: no allocation.
import { sendFlag, sendOpcode } from '../../../abi/verbs-words.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { putWide } from '../../../abi/wide-words.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import type { SendQueue } from '../../rdma/rdma-device.ts';
import type { UcxKeys } from './ucx-keys.ts';
import type { UcxMemories } from './ucx-memories.ts';
import type { UcxWorker } from './ucx-worker.ts';

const CELL_BYTES = 8;

/** What both ends of a connection agree on. */
interface UcxRoute {
  readonly endpoint: number;
  readonly keys: UcxKeys;
  /** Of words to the peer. */
  readonly tag: number;
  /** Where the peer reads how many words were sent, all before which is visible there; and the number of its key. */
  readonly counterAddress: number;
  readonly counterKey: number;
}

interface UcxSendsOptions {
  readonly worker: UcxWorker;
  readonly memories: UcxMemories;
  /** A power of two. */
  readonly depth: number;
}

export class UcxSends implements SendQueue {
  /** Of the first call that UCX refused, or of the first request that failed. */
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
  // By request, modulo depth.
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
