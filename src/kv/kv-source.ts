// The stores that a reader has read of, as their tables tell, and the transfers to them, each prepared once for all blocks.
import type { Agent } from '../agent/agent.ts';
import type { PrepareOptions } from '../agent/agent-options.ts';
import { DescriptorList } from '../agent/descriptors.ts';
import type { Registration } from '../agent/registration.ts';
import type { RemoteMemory } from '../agent/remote-agent.ts';
import { MAX_SELECTED, type Selection } from '../agent/transfer-plan.ts';
import type { Transfer } from '../agent/transfer.ts';
import { type CallWait, remaining } from '../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import { type KvRanges, WORD_BYTES } from './kv-memory.ts';
import { MARK_BYTES, MAX_TABLE_BYTES, readTable, tableName, type TablePlaces } from './kv-table.ts';
import type { KvTicket } from './kv-ticket.ts';

/** A move was given up, and a GPU that does not answer may still write what it moves. */
export class StillMoving extends WeftlineError {}

/** Moves entries of two lists, as many as wanted; as many moves may be under way as wanted. */
class Mover {
  readonly #agent: Agent;
  readonly #lists: Pick<PrepareOptions, 'operation' | 'peer' | 'local' | 'remote'>;
  /** Transfers that are not under way. */
  readonly #free: Transfer[] = [];
  readonly #underWay = new Set<Transfer>();
  /** Why nothing is moved any more. */
  #closed: WeftlineError | undefined;

  constructor(agent: Agent, lists: Pick<PrepareOptions, 'operation' | 'peer' | 'local' | 'remote'>) {
    this.#agent = agent;
    this.#lists = lists;
  }

  /**
   * Entry `local[i]` and entry `remote[i]` go together. Resolves when all is done. Whichever way it ends, memory of this side is
   * not touched any more, but for StillMoving.
   */
  async move(local: Uint32Array, remote: Uint32Array, wait: CallWait): Promise<void> {
    for (let at = 0; at < local.length; at += MAX_SELECTED) {
      const [here, there] = [local, remote].map((entries) => entries.subarray(at, at + MAX_SELECTED));
      await this.#move({ local: here!, remote: there! }, wait);
    }
  }

  async #move(selection: Selection, wait: CallWait): Promise<void> {
    const known = this.#free.pop();
    const transfer = known ?? (await this.#agent.prepare({ ...this.#lists, bySelection: true, ...remaining(wait) }));
    let isPosted = false;
    this.#underWay.add(transfer);
    try {
      if (this.#closed !== undefined) throw this.#closed;
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
      if (this.#closed !== undefined) throw this.#closed;
      // Its link may have broken since, and a new one may do.
      if (known !== undefined && !isPosted) return this.#move(selection, wait);
      throw error;
    } finally {
      this.#underWay.delete(transfer);
    }
    if (this.#closed !== undefined) await transfer.close();
    else this.#free.push(transfer);
  }

  /** Moves that are under way fail with the error. Resolves when nothing moves any more; fails with WL_TIMEOUT while a GPU that does not answer may. */
  async close(error: WeftlineError): Promise<void> {
    this.#closed = error;
    await Promise.all([...this.#free.splice(0), ...this.#underWay].map((transfer) => transfer.close()));
  }
}

/** A store of a peer. */
export class Source {
  readonly peer: string;
  readonly incarnation: string;
  readonly table: RemoteMemory;
  readonly ranges: KvRanges;
  readonly places: TablePlaces;
  /** How its blocks differ from those of the reader; undefined if they do not. */
  readonly #whyUnlike: string | undefined;
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
    this.#whyUnlike = ranges.whyUnlike(own);
    const mover = (operation: 'read' | 'write', blockBytes: number): Mover => {
      const [local, remote] = [memory, table].map((one) => DescriptorList.blocks(one, { blockBytes }));
      return new Mover(agent, { operation, peer, local: local!, remote: remote! });
    };
    this.#blocks = new Mover(agent, { operation: 'read', peer, local: own.list, remote: ranges.list });
    this.#words = mover('read', WORD_BYTES);
    this.#marks = mover('write', MARK_BYTES);
  }

  /** Fails with WL_CONFIG_MISMATCH if its blocks have parts of other sizes or names than those of the reader. */
  requireAlike(store: string): void {
    if (this.#whyUnlike === undefined) return;
    const message = `A block of KV store ${quote(store)} ${this.#whyUnlike}: give both sides parts of the same sizes and names, in the same order`;
    throw new WeftlineError('WL_CONFIG_MISMATCH', message);
  }

  /** Reads blocks `there` of the store into blocks `here` of this side. */
  readBlocks(own: KvRanges, here: readonly number[], there: readonly number[], wait: CallWait): Promise<void> {
    return this.#blocks.move(own.entries(here), this.ranges.entries(there), wait);
  }

  /** Reads words of the table, at these offsets, into these words of the reader's memory. */
  readWords(words: readonly number[], offsets: readonly number[], wait: CallWait): Promise<void> {
    const remote = Uint32Array.from(offsets, (offset) => offset / WORD_BYTES);
    return this.#words.move(Uint32Array.from(words), remote, wait);
  }

  /** Writes the mark that begins with this word of the reader's memory. */
  writeMark(word: number, slot: number, wait: CallWait): Promise<void> {
    const local = Uint32Array.of((word * WORD_BYTES) / MARK_BYTES);
    return this.#marks.move(local, Uint32Array.of(this.places.mark(slot) / MARK_BYTES), wait);
  }

  /** As Mover.close() does. */
  async close(error: WeftlineError): Promise<void> {
    await Promise.all([this.#blocks, this.#words, this.#marks].map((mover) => mover.close(error)));
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
   * if the store was closed, WL_PROTOCOL for a ticket that is not of this store.
   */
  async of(ticket: KvTicket, wait: CallWait): Promise<Source> {
    const table = this.#tableOf(ticket);
    const { agent: peer, incarnation, store, lease, blocks } = ticket;
    this.names.add(store);
    const key = `${table.number} ${peer}`;
    let source = this.#known.get(key);
    if (source?.incarnation !== incarnation) {
      const read = await this.#read(peer, table, wait);
      // Meanwhile the peer may have begun anew, and another call may have found the store.
      this.#tableOf(ticket);
      const known = this.#known.get(key);
      source =
        known?.incarnation === incarnation ? known : new Source(this.#parts, { peer, incarnation, table, ...read });
      this.#known.set(key, source);
      if (known !== undefined && known !== source) await known.close(isOver(peer));
      await this.#forget(source);
    }
    const { ranges, places } = source;
    const isWithin = blocks.every((block) => block < ranges.blocks) && (lease?.slot ?? 0) < places.leases;
    if (isWithin) return source;
    const message = `The ticket names blocks or a lease that KV store ${quote(store)} does not have`;
    throw new WeftlineError('WL_PROTOCOL', message);
  }

  /** As Mover.close() does. */
  async close(error: WeftlineError): Promise<void> {
    await Promise.all([...this.#known.values()].map((source) => source.close(error)));
    this.#known.clear();
  }

  /** Forgets what is known of earlier lives of the peer, and of its stores that are no more. */
  async #forget({ peer, incarnation }: Source): Promise<void> {
    const tables = this.#parts.agent.remoteMemory(peer).map(({ number }) => number);
    for (const [key, source] of this.#known) {
      const isThere = source.incarnation === incarnation && tables.includes(source.table.number);
      if (source.peer !== peer || isThere) continue;
      this.#known.delete(key);
      await source.close(isOver(peer));
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
      await mover.move(Uint32Array.of(0), Uint32Array.of(0), wait);
      return readTable(copy.bytes);
    } finally {
      await mover.close(new WeftlineError('WL_INTERNAL', 'The table of a KV store was read'));
      await copy.close();
    }
  }
}

function isOver(peer: string): WeftlineError {
  return new WeftlineError('WL_STALE', `Agent ${quote(peer)} has closed the KV store, or began anew`);
}
