// The side that has the blocks: which are free, what the others hold under which key, and who has a lease on them.
import { Agent } from '../agent/agent.ts';
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { addSamples, type Sample } from '../core/metric-table.ts';
import { quote } from '../core/quote.ts';
import { BlockSums, openBlockSums } from './block-sums.ts';
import { type KvMemory, KvRanges } from './kv-memory.ts';
import { KvTable, MAX_LEASES, RELEASED } from './kv-table.ts';
import { checkTicket, identitySum, type KvTicket } from './kv-ticket.ts';

/** A store's name and memory. */
export interface KvStoreOptions extends KvMemory {
  /** What metrics and errors call it. Stores of a process that share a name are counted together. */
  readonly name: string;
  /** Most leases at a time; 1024 by default. */
  readonly leases?: number;
}

const optionNames: OptionNames<KvStoreOptions> = { name: true, blocks: true, parts: true, leases: true };
const ticketNames: OptionNames<{ leaseMs?: number }> = { leaseMs: true };

const LEASES = 1024;
const LEASE_MS = 30_000;
/** What a timer of the reader can wait for. */
const MAX_LEASE_MS = 2 ** 31 - 1;

/** A block under a key. */
interface Entry {
  readonly key: string;
  readonly block: number;
  /** Generation and checksum, once it is sealed. */
  sealed: { readonly generation: number; readonly checksum: number } | undefined;
  /** How many leases hold it. */
  leases: number;
}

interface Lease {
  readonly slot: number;
  readonly id: number;
  readonly ms: number;
  readonly entries: readonly Entry[];
  /** On the clock of performance.now(). */
  endsAt: number;
  /** The last mark of its reader. */
  mark: number;
}

/**
 * Blocks under keys, such as hashes of tokens, for readers of other processes. A block is reserved, written by the caller, sealed,
 * then handed out by tickets; one that no lease holds makes room for others, the one that was asked for longest ago first. After
 * `close`, and after that of its agent, all calls fail with WL_CLOSED.
 */
export class KvStore implements AsyncDisposable {
  readonly name: string;
  readonly #agent: Agent;
  readonly #table: KvTable;
  readonly #sums: BlockSums;
  /** What is reserved and sealed, the keys that were asked for longest ago first. */
  readonly #entries = new Map<string, Entry>();
  /** By block; undefined where it is free. */
  readonly #owners: (Entry | undefined)[];
  /** Blocks that are free, the one that was freed longest ago first. */
  readonly #free: Set<number>;
  readonly #leases: (Lease | undefined)[];
  readonly #forget: readonly (() => unknown)[];
  #nextLease = 1;
  #closing: Promise<void> | undefined;

  /**
   * Registers its table with the agent, so that metadata which peers load afterwards name it. Fails with WL_INVALID_ARGUMENT for
   * parts that leave their memory or have bytes in common, WL_COMPILE or WL_UNSUPPORTED where the kernel for memory of a GPU cannot be compiled.
   * @param agent Its memory is what the parts are in.
   * @param options Name, blocks, parts, number of leases.
   */
  static async create(agent: Agent, options: KvStoreOptions): Promise<KvStore> {
    if (!(agent instanceof Agent)) throw invalidArgument('agent', agent, 'an Agent');
    checkOptions(options, optionNames, 'options of KvStore.create');
    const { name, leases = LEASES } = options;
    if (typeof name !== 'string' || name === '') throw invalidArgument('name', name, 'a text');
    if (!isWhole(leases, 1) || leases > MAX_LEASES) throw invalidArgument('leases', leases, `1 to ${MAX_LEASES}`);
    const ranges = KvRanges.of(agent, options);
    const sums = await openBlockSums(options, ranges);
    try {
      return new KvStore(agent, name, {
        sums,
        table: await KvTable.create(agent, name, ranges, leases),
        ranges,
        leases,
      });
    } catch (error) {
      await sums.close();
      throw error;
    }
  }

  private constructor(
    agent: Agent,
    name: string,
    parts: { readonly table: KvTable; readonly sums: BlockSums; readonly ranges: KvRanges; readonly leases: number },
  ) {
    if (!(parts?.sums instanceof BlockSums))
      throw new WeftlineError('WL_INVALID_ARGUMENT', 'A KvStore is made by await KvStore.create(), not by new');
    const { blocks } = parts.ranges;
    this.#agent = agent;
    this.name = name;
    this.#table = parts.table;
    this.#sums = parts.sums;
    this.#owners = Array.from({ length: blocks });
    this.#free = new Set(Array.from({ length: blocks }, (_, block) => block));
    this.#leases = Array.from({ length: parts.leases });
    this.#forget = [agent.closeWith(() => this.close()), addSamples(() => this.#samples())];
  }

  /** The keys of sealed blocks, those that were asked for longest ago first. */
  get keys(): string[] {
    this.#checkOpen();
    return this.#sealed;
  }

  get #sealed(): string[] {
    return [...this.#entries.values()].flatMap(({ key, sealed }) => (sealed === undefined ? [] : [key]));
  }

  /** Whether a block is sealed under the key. */
  has(key: string): boolean {
    this.#checkOpen();
    return this.#entries.get(key)?.sealed !== undefined;
  }

  /**
   * A block for each key, to be written and then sealed; nobody is told of it before, and it stays reserved until it is evicted.
   * Blocks that are sealed and that no lease holds are evicted where there is no free one, or where they are named.
   * Fails, having changed nothing, with WL_INVALID_ARGUMENT for a key that the store has, and with WL_BUSY as long as too few
   * blocks are free or can be evicted, or the blocks that were named are held.
   * @param keys Texts, each once, that say what the blocks will hold: the tokens up to the last, and whatever else makes bytes
   *   differ, such as model, dtype and layout.
   * @param blocks Their numbers, of a caller who places blocks himself; by default the store chooses.
   */
  reserve(keys: readonly string[], blocks?: readonly number[]): number[] {
    this.#checkOpen();
    requireKeys(keys);
    const seen = new Set<string>();
    for (const key of keys) {
      if (key === '') throw invalidArgument('key', key, 'a text that is not empty');
      if (this.#entries.has(key)) throw invalidArgument('key', key, 'one that the store does not have: evict it first');
      if (seen.has(key)) throw invalidArgument('key', key, 'each key once');
      seen.add(key);
    }
    this.#endLeases();
    const chosen = blocks === undefined ? this.#choose(keys.length) : this.#require(keys, blocks);
    for (const [index, block] of chosen.entries()) {
      const owner = this.#owners[block];
      if (owner !== undefined) this.#drop(owner);
      this.#free.delete(block);
      const key = keys[index]!;
      const entry = { key, block, sealed: undefined, leases: 0 };
      this.#owners[block] = entry;
      this.#entries.set(key, entry);
    }
    return chosen;
  }

  /**
   * Sums the blocks up where they lie, on GPUs behind what is enqueued on the device's stream, and lets readers have them. They
   * must not be written to any more; blocks that are evicted meanwhile stay so. Fails with WL_INVALID_ARGUMENT for a key that is not reserved.
   * @param keys The keys of blocks that were reserved and written.
   */
  async seal(keys: readonly string[]): Promise<void> {
    this.#checkOpen();
    requireKeys(keys);
    const entries = keys.map((key) => {
      const entry = this.#entries.get(key);
      if (entry === undefined || entry.sealed !== undefined)
        throw invalidArgument('key', key, 'a key that is reserved');
      return entry;
    });
    const sums = await this.#sums.of(entries.map(({ block }) => block));
    this.#checkOpen();
    for (const [index, entry] of entries.entries()) {
      if (this.#owners[entry.block] !== entry || entry.sealed !== undefined) continue;
      const generation = this.#table.advance(entry.block);
      const checksum = (sums[index]! ^ identitySum(this.#identity, entry.key, generation)) >>> 0;
      entry.sealed = { generation, checksum };
    }
  }

  /**
   * Where the blocks under these keys are, for one reader, and a lease that holds them: until the reader releases them, or has
   * not renewed it for `leaseMs`. Fails with WL_BUSY while all leases are taken.
   * @param keys In the order in which the reader wants them; those that the store does not have are in the ticket as such.
   * @param options `leaseMs`: above 0, 30,000 by default, of this side's clock.
   */
  ticket(keys: readonly string[], options: { readonly leaseMs?: number } = {}): KvTicket {
    this.#checkOpen();
    requireKeys(keys);
    checkOptions(options, ticketNames, 'options of ticket');
    const { leaseMs: ms = LEASE_MS } = options;
    if (!(typeof ms === 'number' && ms > 0 && ms <= MAX_LEASE_MS))
      throw invalidArgument('leaseMs', ms, `a number of milliseconds above 0, at most ${MAX_LEASE_MS}`);
    const entries = keys.map((key) => {
      const entry = this.#entries.get(key);
      if (entry?.sealed === undefined) return undefined;
      // It was asked for last.
      this.#entries.delete(key);
      this.#entries.set(key, entry);
      return entry;
    });
    const lease = this.#lease(
      entries.filter((entry) => entry !== undefined),
      ms,
    );
    return {
      ...this.#identity,
      agent: this.#agent.name,
      store: this.name,
      lease,
      keys: [...keys],
      blocks: entries.map((entry) => entry?.block ?? -1),
      generations: entries.map((entry) => entry?.sealed?.generation ?? 0),
      checksums: entries.map((entry) => entry?.sealed?.checksum ?? 0),
    };
  }

  /** Ends the lease of a ticket, as its reader does. False if it has ended before, or is another store's. */
  release(ticket: KvTicket): boolean {
    this.#checkOpen();
    const { incarnation, table, lease } = checkTicket(ticket);
    const held = lease === null ? undefined : this.#leases[lease.slot];
    const isOwn = incarnation === this.#identity.incarnation && table === this.#identity.table;
    if (!isOwn || held === undefined || held.id !== lease?.id) return false;
    this.#end(held);
    return true;
  }

  /**
   * Frees the blocks under these keys, reserved or sealed, unless a lease holds them. Returns the keys of those that it has freed.
   * @param keys Those that the store does not have are left out.
   */
  evict(keys: readonly string[]): string[] {
    this.#checkOpen();
    requireKeys(keys);
    this.#endLeases();
    return keys.filter((key) => {
      const entry = this.#entries.get(key);
      if (entry === undefined || entry.leases > 0) return false;
      this.#drop(entry);
      return true;
    });
  }

  /** Readers get misses from now on; the memory of the blocks stays the caller's. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    for (const forget of this.#forget) forget();
    this.#table.withdraw(this.#leases.length);
    await this.#sums.close();
    await this.#table.registration.close();
  }

  get #identity(): Pick<KvTicket, 'incarnation' | 'table'> {
    return { incarnation: this.#agent.incarnation, table: this.#table.registration.number };
  }

  /** Blocks that are free, then those that were asked for longest ago and that nobody holds. */
  #choose(count: number): number[] {
    const chosen = [...this.#free].slice(0, count);
    for (const { block, sealed, leases } of this.#entries.values()) {
      if (chosen.length === count) break;
      if (sealed !== undefined && leases === 0) chosen.push(block);
    }
    if (chosen.length === count) return chosen;
    throw this.#busy(
      `${count} blocks are wanted, and ${chosen.length} of ${this.#owners.length} are free or can be evicted`,
    );
  }

  #require(keys: readonly string[], blocks: readonly number[]): number[] {
    if (!Array.isArray(blocks) || blocks.length !== keys.length || new Set(blocks).size !== keys.length) {
      throw invalidArgument('blocks', blocks, `${keys.length} different numbers, one per key`);
    }
    for (const block of blocks as readonly number[]) {
      if (!isWhole(block, 0) || block >= this.#owners.length)
        throw invalidArgument('block', block, `0 to ${this.#owners.length - 1}`);
      const owner = this.#owners[block];
      if (owner === undefined || (owner.sealed !== undefined && owner.leases === 0)) continue;
      const named = `block ${block}, which has the key ${quote(owner.key)},`;
      if (owner.sealed === undefined) throw this.#busy(`${named} is reserved`, 'seal or evict it first');
      throw this.#busy(`${named} is held by ${owner.leases} leases`);
    }
    return [...blocks];
  }

  /** Whoever still has a ticket for it finds another generation. */
  #drop({ key, block, sealed }: Entry): void {
    if (sealed !== undefined) this.#table.advance(block);
    this.#owners[block] = undefined;
    this.#entries.delete(key);
    this.#free.add(block);
  }

  #lease(entries: readonly Entry[], ms: number): KvTicket['lease'] {
    if (entries.length === 0) return null;
    let slot = this.#leases.indexOf(undefined);
    if (slot === -1) {
      this.#endLeases();
      slot = this.#leases.indexOf(undefined);
    }
    if (slot === -1) throw this.#busy(`all ${this.#leases.length} leases are taken`);
    const id = this.#nextLease;
    this.#nextLease = id === RELEASED ? 1 : id + 1;
    for (const entry of entries) entry.leases++;
    this.#leases[slot] = { slot, id, ms, entries, endsAt: performance.now() + ms, mark: this.#table.markOf(slot, id) };
    this.#table.setLease(slot, id);
    return { slot, id, ms };
  }

  /** Ends leases that were released or whose time is over; one that was renewed goes on from now. */
  #endLeases(): void {
    const now = performance.now();
    for (const lease of this.#leases) {
      if (lease === undefined) continue;
      const mark = this.#table.markOf(lease.slot, lease.id);
      if (mark !== lease.mark) lease.endsAt = now + lease.ms;
      lease.mark = mark;
      if (mark === RELEASED || lease.endsAt <= now) this.#end(lease);
    }
  }

  #end({ slot, entries }: Lease): void {
    this.#table.setLease(slot, 0);
    this.#leases[slot] = undefined;
    for (const entry of entries) entry.leases--;
  }

  #samples(): Sample[] {
    this.#endLeases();
    const store = this.name;
    const sealed = this.#sealed.length;
    const states = { free: this.#free.size, reserved: this.#entries.size - sealed, sealed };
    const leases = this.#leases.filter((lease) => lease !== undefined).length;
    return [
      ...Object.entries(states).map(([state, value]): Sample => ({
        name: 'weftline_kv_blocks',
        labels: [store, state],
        value,
      })),
      { name: 'weftline_kv_leases', labels: [store], value: leases },
    ];
  }

  #busy(why: string, remedy = 'try again when leases have ended'): WeftlineError {
    return new WeftlineError('WL_BUSY', `KV store ${quote(this.name)}: ${why}: ${remedy}`, {
      details: { store: this.name },
    });
  }

  #checkOpen(): void {
    if (this.#closing === undefined) return;
    throw new WeftlineError('WL_CLOSED', `KV store ${quote(this.name)} was closed`, { details: { store: this.name } });
  }
}

function requireKeys(keys: readonly string[]): void {
  if (Array.isArray(keys) && Array.from(keys).every((key) => typeof key === 'string')) return;
  throw invalidArgument('keys', keys, 'an array of texts');
}
