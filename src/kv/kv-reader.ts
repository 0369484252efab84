// The side that wants blocks: reads them from the store that a ticket names, and hands out those alone that are what it says.
import { Agent } from '../agent/agent.ts';
import type { Registration } from '../agent/registration.ts';
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import {
  type CallWait,
  checkSignal,
  checkTimeout,
  Deadline,
  remaining,
  waitOptionNames,
  type WaitOptions,
} from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { addSamples, type Sample } from '../core/metric-table.ts';
import { quote } from '../core/quote.ts';
import { BlockSums, openBlockSums } from './block-sums.ts';
import { type KvMemory, KvRanges, WORD_BYTES } from './kv-memory.ts';
import { type Source, Sources, StillMoving } from './kv-source.ts';
import { RELEASED } from './kv-table.ts';
import { checkTicket, identitySum, type KvTicket } from './kv-ticket.ts';

/** Why a block was not handed out. Whatever the reason, the program computes it anew. */
export const kvMissReasons = {
  'not-found': 'the store had no block under the key when it gave the ticket',
  stale: 'the block was evicted, and may hold something else',
  'lease-expired': 'the lease has ended: its time is over, or one side released it',
  corrupt: 'the bytes that came are not those that were sealed',
  restarted: 'the store of the ticket is no more: its process began anew, or the store was closed',
  'peer-lost': 'the process of the store has ended, is out of reach, or is not known here',
  timeout: 'the blocks did not come in time',
  failed: 'another error, which the result carries',
} as const;

/** One of the keys of kvMissReasons. */
export type KvMissReason = keyof typeof kvMissReasons;

/** What became of one key of a ticket. A miss that an error led to has that; kvMissReasons says what each reason means. */
export type KvResult =
  | { readonly key: string; readonly isHit: true; readonly block: number }
  | { readonly key: string; readonly isHit: false; readonly reason: KvMissReason; readonly error?: WeftlineError };

const memoryNames: OptionNames<KvMemory> = { blocks: true, parts: true };

/** Words of each block that is read to: the generation that the store's table has, and of the first one the lease. */
const LOOK_WORDS = 2;
/** Renewals and releases of a reader that may be under way at a time, and the words of each: the lease, and its mark. */
const CELLS = 256;
const CELL_WORDS = 2;

/** What leases need of their reader. */
interface ReaderParts {
  readonly agent: Agent;
  readonly ranges: KvRanges;
  readonly sums: BlockSums;
  readonly sources: Sources;
  /** Words that are read from tables, and marks that are written there. */
  readonly memory: Registration;
  /** The first words of the cells that are free. */
  readonly cells: number[];
  /** Blocks that are being read to, and those that a GPU may write to whenever it goes on. */
  readonly busy: Set<number>;
  readonly stuck: Set<number>;
  readonly count: (store: string, results: readonly KvResult[]) => void;
  readonly checkOpen: () => void;
}

/**
 * Reads blocks of stores into blocks of this side's memory. Its parts have the sizes of those of the stores, and their names where both
 * have some, in the same order; where they lie is each side's own matter. After `close`, and after that of its agent, all calls fail with WL_CLOSED.
 */
export class KvReader implements AsyncDisposable {
  readonly #parts: ReaderParts;
  readonly #forget: readonly (() => unknown)[];
  /** How many blocks, by store and result. */
  readonly #counts = new Map<string, { readonly labels: readonly [store: string, result: string]; value: number }>();
  #closing: Promise<void> | undefined;

  /**
   * Fails with WL_INVALID_ARGUMENT for parts that leave their memory or have bytes in common, WL_COMPILE or WL_UNSUPPORTED where the kernel for memory of a
   * GPU cannot be compiled.
   * @param agent Its memory is what the parts are in; it reads from the agents of stores whose metadata it has loaded.
   * @param memory Where blocks are read to.
   */
  static async create(agent: Agent, memory: KvMemory): Promise<KvReader> {
    if (!(agent instanceof Agent)) throw invalidArgument('agent', agent, 'an Agent');
    checkOptions(memory, memoryNames, 'memory of KvReader.create');
    const ranges = KvRanges.of(agent, memory);
    const sums = await openBlockSums(memory, ranges);
    const bytes = (ranges.blocks * LOOK_WORDS + CELLS * CELL_WORDS) * WORD_BYTES;
    try {
      return new KvReader({ agent, ranges, sums, memory: await agent.allocate(bytes, { name: 'kv reader' }) });
    } catch (error) {
      await sums.close();
      throw error;
    }
  }

  private constructor(parts: Pick<ReaderParts, 'agent' | 'ranges' | 'sums' | 'memory'>) {
    if (!(parts?.sums instanceof BlockSums))
      throw new WeftlineError('WL_INVALID_ARGUMENT', 'A KvReader is made by await KvReader.create(), not by new');
    const { agent, ranges } = parts;
    this.#parts = {
      ...parts,
      sources: new Sources(parts),
      cells: Array.from({ length: CELLS }, (_, cell) => ranges.blocks * LOOK_WORDS + cell * CELL_WORDS),
      busy: new Set(),
      stuck: new Set(),
      count: (store, results) => this.#count(store, results),
      checkOpen: () => this.#checkOpen(),
    };
    this.#forget = [agent.closeWith(() => this.close()), addSamples(() => this.#samples())];
  }

  /**
   * Takes a ticket; the time of its lease, as far as this side knows, begins now. Fails with WL_INVALID_ARGUMENT for what is no
   * ticket.
   * @param ticket What `ticket()` of the store returned, by whatever way it came.
   */
  open(ticket: KvTicket): KvLease {
    this.#checkOpen();
    return new KvLease(this.#parts, checkTicket(ticket));
  }

  /**
   * Reads under way fail, and nothing is written to the blocks once it has resolved; their memory stays the caller's. Leases end by themselves.
   * Fails with WL_TIMEOUT while a GPU that does not answer may write. Idempotent.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    for (const forget of this.#forget) forget();
    const { sums, sources, memory } = this.#parts;
    await sums.close();
    try {
      await sources.close(this.#closed());
    } finally {
      await memory.close();
    }
  }

  #count(named: string, results: readonly KvResult[]): void {
    const store = this.#parts.sources.names.has(named) ? named : '';
    for (const result of results) {
      const labels = [store, result.isHit ? 'hit' : result.reason] as const;
      const known = this.#counts.get(labels.join(' ')) ?? { labels, value: 0 };
      known.value++;
      this.#counts.set(labels.join(' '), known);
    }
  }

  #samples(): Sample[] {
    const { blockBytes } = this.#parts.ranges;
    return [...this.#counts.values()].flatMap(({ labels, value }): Sample[] => {
      const [store, result] = labels;
      const bytes: Sample = { name: 'weftline_kv_bytes_total', labels: [store], value: value * blockBytes };
      return [{ name: 'weftline_kv_reads_total', labels, value }, ...(result === 'hit' ? [bytes] : [])];
    });
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw this.#closed();
  }

  #closed(): WeftlineError {
    return new WeftlineError('WL_CLOSED', `The KV reader of agent ${this.#parts.agent.name} was closed`);
  }
}

/** A ticket that a reader has taken. */
export class KvLease {
  readonly ticket: KvTicket;
  readonly #parts: ReaderParts;
  /** On the clock of performance.now(). */
  #endsAt: number;
  #renewals = 0;
  /** The last renewal or release. */
  #marking: Promise<unknown> = Promise.resolve();

  /** @internal Use reader.open(). */
  constructor(parts: ReaderParts, ticket: KvTicket) {
    this.#parts = parts;
    this.ticket = ticket;
    this.#endsAt = performance.now() + (ticket.lease?.ms ?? 0);
  }

  /** How long the lease lasts, in ms, counted from when the ticket was taken or renewed; never negative. */
  get leftMs(): number {
    return Math.max(0, this.#endsAt - performance.now());
  }

  /**
   * Reads the block under key i of the ticket into block `blocks[i]` of this side, all by one transfer, and looks then whether
   * each still is the one that was sealed, and whether what has come here has its checksum. Whatever is wrong with a block is a miss; what
   * lies in its place then is undefined. Fails with WL_INVALID_ARGUMENT for numbers that are no blocks, that come twice or are
   * being read to, with the signal's reason, and with what this side's memory fails with when it is summed up. Once it has resolved nothing is written to the blocks any more;
   * where a GPU does not answer, its blocks are refused from then on.
   * @param blocks Numbers of blocks of this side, one per key of the ticket.
   * @param options How long to wait, at most as long as the lease lasts.
   */
  async read(blocks: readonly number[], options: WaitOptions = {}): Promise<KvResult[]> {
    const wait = this.#begin(options);
    const { busy, stuck, ranges, count } = this.#parts;
    const { keys, store } = this.ticket;
    if (!Array.isArray(blocks) || blocks.length !== keys.length || new Set(blocks).size !== keys.length) {
      throw invalidArgument('blocks', blocks, `${keys.length} different numbers, one per key of the ticket`);
    }
    // The caller's array may change meanwhile.
    const places: readonly number[] = [...blocks];
    for (const block of places) {
      if (!isWhole(block, 0) || block >= ranges.blocks)
        throw invalidArgument('block', block, `0 to ${ranges.blocks - 1}`);
      if (busy.has(block))
        throw invalidArgument('block', block, 'one that nothing is read to: wait for the read that has it');
      if (stuck.has(block))
        throw invalidArgument(
          'block',
          block,
          'one that no GPU may still write to, as an earlier read had no end: take another',
        );
    }
    for (const block of places) busy.add(block);
    try {
      const results = await this.#read(places, wait);
      count(store, results);
      return results;
    } finally {
      for (const block of places) busy.delete(block);
    }
  }

  /**
   * Lets the lease begin anew. True if it lies with the store; it counts unless the store had ended the lease before, which the next
   * read then says. False if the time of the lease is over, or if the store cannot be told: ask for another ticket.
   */
  renew(options: WaitOptions = {}): Promise<boolean> {
    return this.#mark(++this.#renewals, options);
  }

  /**
   * Gives the blocks back, behind renewals that are under way. True if it lies with the store, which may have ended the lease before.
   * False if the time of the lease is over, or if the store cannot be told; it then ends by itself.
   */
  release(options: WaitOptions = {}): Promise<boolean> {
    return this.#mark(RELEASED, options);
  }

  /** Checks the options of a call, and gives it a deadline within the lease. */
  #begin(options: WaitOptions): CallWait {
    const { checkOpen, agent } = this.#parts;
    checkOpen();
    checkOptions(options, waitOptionNames, 'options of a wait for a KV store');
    const { timeoutMs = agent.settings.timeoutMs, signal } = options;
    checkSignal(signal);
    signal?.throwIfAborted();
    return { deadline: new Deadline(Math.min(checkTimeout(timeoutMs), this.leftMs)), signal };
  }

  async #read(blocks: readonly number[], wait: CallWait): Promise<KvResult[]> {
    const { ranges, sums, sources, stuck, checkOpen } = this.#parts;
    const { ticket } = this;
    const results = ticket.keys.map((key): KvResult => ({ key, isHit: false, reason: 'not-found' }));
    const miss = (indices: readonly number[], reason: KvMissReason, error?: WeftlineError): KvResult[] => {
      const why = { isHit: false, reason, ...(error === undefined ? {} : { error }) } as const;
      for (const index of indices) results[index] = { key: ticket.keys[index]!, ...why };
      return results;
    };
    const found = [...blocks.keys()].filter((index) => ticket.blocks[index]! >= 0);
    if (found.length === 0) return results;
    if (this.leftMs === 0) return miss(found, 'lease-expired');
    const here = found.map((index) => blocks[index]!);
    const there = found.map((index) => ticket.blocks[index]!);
    let seen: readonly number[];
    try {
      const source = await sources.of(ticket, wait);
      checkOpen();
      source.requireAlike(ticket.store);
      await source.readBlocks(ranges, here, there, wait);
      // ORDER: behind the data. What was overwritten meanwhile shows by its generation.
      seen = await this.#look(source, here, there, wait);
    } catch (error) {
      if (error instanceof StillMoving) for (const block of here) stuck.add(block);
      const reason = this.#reasonOf(error, wait);
      // No read will be a hit: others need not wait until the lease ends.
      if ((error as WeftlineError).code === 'WL_CONFIG_MISMATCH') await this.release(remaining(wait));
      return miss(found, reason, this.#withdrawn(error as WeftlineError));
    }
    const isHeld = seen.at(-1) === ticket.lease?.id;
    const whole = found.filter((index, at) => seen[at] === ticket.generations[index]);
    miss(found, 'stale');
    if (!isHeld) return miss(whole, 'lease-expired');
    const summed = await sums.of(whole.map((index) => blocks[index]!));
    wait.signal?.throwIfAborted();
    for (const [at, index] of whole.entries()) {
      const key = ticket.keys[index]!;
      const checksum = (summed[at]! ^ identitySum(ticket, key, ticket.generations[index]!)) >>> 0;
      if (checksum === ticket.checksums[index]) results[index] = { key, isHit: true, block: blocks[index]! };
      else miss([index], 'corrupt');
    }
    return results;
  }

  /** The generations that the table has now of these blocks of the store, which were read to those `here`, then the lease. */
  async #look(source: Source, here: readonly number[], there: readonly number[], wait: CallWait): Promise<number[]> {
    const { places } = source;
    const words = [...here.map((block) => block * LOOK_WORDS), here[0]! * LOOK_WORDS + 1];
    const remote = [...there.map((block) => places.generation(block)), places.leaseId(this.ticket.lease?.slot ?? 0)];
    await source.readWords(words, remote, wait);
    return words.map((word) => this.#words(word, 1)[0]!);
  }

  async #mark(mark: number, options: WaitOptions): Promise<boolean> {
    const wait = this.#begin(options);
    // ORDER: one after the other. The later of two marks must be the one that stays.
    const marking = this.#marking.then(() => this.#write(mark, wait));
    this.#marking = marking.catch(() => {});
    return marking;
  }

  async #write(mark: number, wait: CallWait): Promise<boolean> {
    const { cells, sources } = this.#parts;
    const { lease } = this.ticket;
    if (lease === null || this.leftMs === 0) return false;
    const cell = cells.pop();
    if (cell === undefined) return false;
    const begin = performance.now();
    try {
      this.#words(cell, CELL_WORDS).set([lease.id, mark]);
      const source = await sources.of(this.ticket, wait);
      await source.writeMark(cell, lease.slot, wait);
    } catch (error) {
      this.#reasonOf(error, wait);
      return false;
    } finally {
      cells.push(cell);
    }
    this.#endsAt = begin + (mark === RELEASED ? 0 : lease.ms);
    return true;
  }

  #words(first: number, count: number): Uint32Array {
    const { buffer, byteOffset } = this.#parts.memory.bytes;
    return new Uint32Array(buffer, byteOffset + first * WORD_BYTES, count);
  }

  /** An error of a store whose table or memory is no more says little of it. */
  #withdrawn(error: WeftlineError): WeftlineError {
    if (error.code !== 'WL_UNAUTHORIZED') return error;
    const { store, agent } = this.ticket;
    const message = `KV store ${quote(store)} of agent ${quote(agent)}, or its memory, was closed: ask another store for the blocks`;
    return new WeftlineError('WL_CLOSED', message, { details: { store, agent }, cause: error });
  }

  /** What an error of the store's side means; any other is thrown. */
  #reasonOf(error: unknown, { signal }: CallWait): KvMissReason {
    signal?.throwIfAborted();
    this.#parts.checkOpen();
    if (!(error instanceof WeftlineError)) throw error;
    const { code } = error;
    if (code === 'WL_STALE' || code === 'WL_UNAUTHORIZED') return 'restarted';
    if (code === 'WL_PEER_LOST' || code === 'WL_CLOSED') return 'peer-lost';
    if (code !== 'WL_TIMEOUT') return 'failed';
    return this.leftMs === 0 ? 'lease-expired' : 'timeout';
  }
}
