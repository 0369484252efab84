// The stores that a reader has read of, as their tables tell, and the transfers to them, each prepared once for all blocks.
import type { Agent } from '../agent/agent.ts';
import type { PrepareOptions } from '../agent/agent-options.ts';
import { DescriptorList } from '../agent/descriptors.ts';
import type { Registration } from '../agent/registration.ts';
import type { RemoteMemory } from '../agent/remote-agent.ts';
import type { Selection } from '../agent/transfer-plan.ts';
import type { Transfer } from '../agent/transfer.ts';
import { type CallWait, remaining } from '../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import { type KvRanges, WORD_BYTES } from './kv-memory.ts';
import { MARK_BYTES, MAX_TABLE_BYTES, readTable, tableName, type TablePlaces } from './kv-table.ts';
import type { KvTicket } from './kv-ticket.ts';

/** A move was given up, and a GPU that does not answer may still write what it moves. */
export class StillMoving extends WeftlineError {}

/** Moves entries of two lists; as many moves may be under way as wanted. */
class Mover {
  readonly #agent: Agent;
  readonly #lists: Pick<PrepareOptions, 'operation' | 'peer' | 'local' | 'remote'>;
  /** Transfers that are not under way. */
  readonly #free: Transfer[] = [];
  #isClosed = false;

  constructor(agent: Agent, lists: Pick<PrepareOptions, 'operation' | 'peer' | 'local' | 'remote'>) {
    this.#agent = agent;
    this.#lists = lists;
  }

  /** Resolves when it is done. Whichever way it ends, memory of this side is not touched any more, but for StillMoving. */
  async move(selection: Selection, wait: CallWait): Promise<void> {
    const known = this.#free.pop();
    const transfer = known ?? (await this.#agent.prepare({ ...this.#lists, bySelection: true, ...remaining(wait) }));
    let isPosted = false;
    try {
      transfer.post(undefined, selection);
      isPosted = true;
      await transfer.wait(remaining(wait));
    } catch (error) {
      try {
        await transfer.close();
      } catch (cause) {
        const { code, message } = asWeftlineError(cause);
        throw new StillMoving(code, message, { cause });
      }
      // Its link may have broken since, and a new one may do.
      if (known !== undefined && !isPosted) return this.move(selection, wait);
      throw error;
    }
    if (this.#isClosed) await transfer.close();
    else this.#free.push(transfer);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#free.splice(0).map((transfer) => transfer.close()));
  }
}

/** A store of a peer. */
export class Source {
  readonly peer: string;
  readonly incarnation: string;
  readonly table: RemoteMemory;
  readonly ranges: KvRanges;
  readonly places: TablePlaces;
  readonly #blocks: Mover;
  readonly #words: Mover;
  readonly #marks: Mover;

  constructor(
    { agent, memory, ranges: own }: SourceParts,
    of: Pick<Source, 'peer' | 'incarnation' | 'table' | 'ranges' | 'places'>,
  ) {
    const { peer, table, ranges } = of;
    this.peer = peer;
    this.incarnation = of.incarnation;
    this.table = table;
    this.ranges = ranges;
    this.places = of.places;
    const mover = (operation: 'read' | 'write', blockBytes: number): Mover => {
      const [local, remote] = [memory, table].map((one) => DescriptorList.blocks(one, { blockBytes }));
      return new Mover(agent, { operation, peer, local: local!, remote: remote! });
    };
    this.#blocks = new Mover(agent, { operation: 'read', peer, local: own.list, remote: ranges.list });
    this.#words = mover('read', WORD_BYTES);
    this.#marks = mover('write', MARK_BYTES);
  }

  /** Reads blocks `there` of the store into blocks `here` of this side. */
  readBlocks(own: KvRanges, here: readonly number[], there: readonly number[], wait: CallWait): Promise<void> {
    return this.#blocks.move({ local: own.entries(here), remote: this.ranges.entries(there) }, wait);
  }

  /** Reads words of the table, at these offsets, into these words of the reader's memory. */
  readWords(words: readonly number[], offsets: readonly number[], wait: CallWait): Promise<void> {
    return this.#words.move({ local: words, remote: offsets.map((offset) => offset / WORD_BYTES) }, wait);
  }

  /** Writes the mark that begins with this word of the reader's memory. */
  writeMark(word: number, slot: number, wait: CallWait): Promise<void> {
    const local = [(word * WORD_BYTES) / MARK_BYTES];
    return this.#marks.move({ local, remote: [this.places.mark(slot) / MARK_BYTES] }, wait);
  }

  async close(): Promise<void> {
    await Promise.all([this.#blocks.close(), this.#words.close(), this.#marks.close()]);
  }
}

/** What a reader gives its sources. */
interface SourceParts {
  readonly agent: Agent;
  /** Ranges of the reader's blocks. */
  readonly ranges: KvRanges;
  /** Words that tables are read to, and marks. */
  readonly memory: Registration;
}

export class Sources {
  readonly #parts: SourceParts;
  /** By number of the table and name of the agent. */
  readonly #known = new Map<string, Source>();
  /** Names of stores whose tables were found: names of tickets are anybody's, and metrics keep each for ever. */
  readonly names = new Set<string>();

  constructor(parts: SourceParts) {
    this.#parts = parts;
  }

  /**
   * The store that has given the ticket. Fails with WL_PEER_LOST if nothing is known of its agent, WL_STALE if another incarnation is, or
   * if the store was closed, WL_CONFIG_MISMATCH for parts of other sizes or names, WL_PROTOCOL for a ticket that is not of this store.
   */
  async of(ticket: KvTicket, wait: CallWait): Promise<Source> {
    const table = this.#tableOf(ticket);
    const { agent: peer, incarnation, store, lease, blocks } = ticket;
    this.names.add(store);
    const key = `${table.number} ${peer}`;
    let source = this.#known.get(key);
    if (source?.incarnation !== incarnation) {
      const read = await this.#read(peer, table, wait);
      await this.#forget(key, peer, incarnation);
      source = new Source(this.#parts, { peer, incarnation, table, ...read });
      this.#known.set(key, source);
    }
    const { ranges, places } = source;
    const why = ranges.whyUnlike(this.#parts.ranges);
    if (why !== undefined) {
      const message = `A block of KV store ${quote(store)} ${why}: give both sides parts of the same sizes and names, in the same order`;
      throw new WeftlineError('WL_CONFIG_MISMATCH', message);
    }
    const isWithin = blocks.every((block) => block < ranges.blocks) && (lease?.slot ?? 0) < places.leases;
    if (isWithin) return source;
    const message = `The ticket names blocks or a lease that KV store ${quote(store)} does not have`;
    throw new WeftlineError('WL_PROTOCOL', message);
  }

  async close(): Promise<void> {
    await Promise.all([...this.#known.values()].map((source) => source.close()));
    this.#known.clear();
  }

  /** The source under the key, which another one takes the place of, and those of the peer whose tables are no more. */
  async #forget(key: string, peer: string, incarnation: string): Promise<void> {
    const tables = this.#parts.agent.remoteMemory(peer).map(({ number }) => number);
    for (const [other, source] of this.#known) {
      const isThere = source.incarnation === incarnation && tables.includes(source.table.number);
      if (other !== key && (source.peer !== peer || isThere)) continue;
      this.#known.delete(other);
      await source.close();
    }
  }

  #tableOf({ agent: peer, incarnation, table: number, store }: KvTicket): RemoteMemory {
    const { agent } = this.#parts;
    const known = agent.incarnationOf(peer);
    const named = `Agent ${quote(peer)}, which has KV store ${quote(store)},`;
    if (known === undefined) throw new WeftlineError('WL_PEER_LOST', `${named} is not known here: load its metadata`);
    const table = agent.remoteMemory(peer).find((memory) => memory.number === number);
    if (known === incarnation && table !== undefined) {
      if (table.kind === 'host' && table.name === tableName(store) && table.length <= MAX_TABLE_BYTES) return table;
      const message = `${named} has no table of it as memory ${number}: the ticket was changed on its way`;
      throw new WeftlineError('WL_PROTOCOL', message);
    }
    const why =
      known === incarnation
        ? 'has no table of it in the metadata that are loaded here, which were made before the store, or after it was closed'
        : `had incarnation ${incarnation}, and ${known} is known here`;
    throw new WeftlineError('WL_STALE', `${named} ${why}: load its present metadata, then ask for another ticket`);
  }

  async #read(peer: string, table: RemoteMemory, wait: CallWait): Promise<ReturnType<typeof readTable>> {
    const { agent } = this.#parts;
    const copy = await agent.allocate(table.length, { name: 'kv table' });
    const lists = { local: DescriptorList.of(copy), remote: DescriptorList.of(table) };
    const mover = new Mover(agent, { operation: 'read', peer, ...lists });
    try {
      await mover.move({ local: [0] }, wait);
      return readTable(copy.bytes);
    } finally {
      await mover.close();
      await copy.close();
    }
  }
}
