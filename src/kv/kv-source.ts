// The stores that a reader has read of, as their tables tell; and transfers that are over, whichever way, when their call is.
import type { Agent } from '../agent/agent.ts';
import type { TransferOperation } from '../agent/backend.ts';
import { DescriptorList } from '../agent/descriptors.ts';
import type { RemoteMemory } from '../agent/remote-agent.ts';
import { type CallWait, remaining } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import type { KvRanges } from './kv-memory.ts';
import { readTable, type TablePlaces } from './kv-table.ts';
import type { KvTicket } from './kv-ticket.ts';

/** A store of a peer. */
export interface Source {
  readonly incarnation: string;
  readonly table: RemoteMemory;
  /** The table, word by word. */
  readonly words: DescriptorList;
  readonly ranges: KvRanges;
  readonly places: TablePlaces;
}

export class Sources {
  readonly #agent: Agent;
  /** Bytes of each part of the reader's blocks. */
  readonly #partBytes: string;
  readonly #known = new Map<string, Source>();

  constructor(agent: Agent, { parts }: KvRanges) {
    this.#agent = agent;
    this.#partBytes = parts.map(({ bytes }) => bytes).join(' ');
  }

  /**
   * The store that has given the ticket. Fails with WL_PEER_LOST if nothing is known of its agent, WL_STALE if another incarnation is, or
   * if the store was closed, WL_CONFIG_MISMATCH for parts of other sizes, WL_PROTOCOL for a ticket that is not of this store.
   */
  async of(ticket: KvTicket, wait: CallWait): Promise<Source> {
    const table = this.#tableOf(ticket);
    const { agent: peer, incarnation, store, lease, blocks } = ticket;
    const name = `${peer} ${store}`;
    let source = this.#known.get(name);
    if (source?.incarnation !== incarnation || source.table.number !== table.number) {
      source = { incarnation, table, ...(await this.#read(peer, table, wait)) };
      this.#known.set(name, source);
    }
    const { ranges, places } = source;
    const partBytes = ranges.parts.map(({ bytes }) => bytes).join(' ');
    if (partBytes !== this.#partBytes) {
      const message = `A block of KV store ${quote(store)} has parts of ${partBytes} bytes, one of this reader ${this.#partBytes}: both sides need the same`;
      throw new WeftlineError('WL_CONFIG_MISMATCH', message);
    }
    const isWithin = blocks.every((block) => block < ranges.blocks) && (lease?.slot ?? 0) < places.leases;
    if (isWithin) return source;
    throw new WeftlineError(
      'WL_PROTOCOL',
      `The ticket names blocks or a lease that KV store ${quote(store)} does not have`,
    );
  }

  #tableOf({ agent: peer, incarnation, table: number, store }: KvTicket): RemoteMemory {
    const known = this.#agent.incarnationOf(peer);
    const named = `Agent ${quote(peer)}, which has KV store ${quote(store)},`;
    if (known === undefined) throw new WeftlineError('WL_PEER_LOST', `${named} is not known here: load its metadata`);
    const table = this.#agent.remoteMemory(peer).find((memory) => memory.number === number);
    if (known === incarnation && table !== undefined) return table;
    const why =
      known === incarnation ? 'has closed it since' : `had incarnation ${incarnation}, and ${known} is known here`;
    throw new WeftlineError('WL_STALE', `${named} ${why}: load its present metadata, then ask for another ticket`);
  }

  async #read(peer: string, table: RemoteMemory, wait: CallWait): Promise<Pick<Source, 'words' | 'ranges' | 'places'>> {
    const copy = await this.#agent.allocate(table.length, { name: 'kv table' });
    try {
      const lists = { local: DescriptorList.of(copy), remote: DescriptorList.of(table) };
      await move(this.#agent, { operation: 'read', peer, ...lists, wait });
      return { words: DescriptorList.blocks(table, { blockBytes: 4 }), ...readTable(copy.bytes) };
    } finally {
      await copy.close();
    }
  }
}

interface Move {
  readonly operation: TransferOperation;
  readonly peer: string;
  readonly local: DescriptorList;
  readonly remote: DescriptorList;
  readonly wait: CallWait;
}

/** Resolves when it is done. Whichever way it ends, memory of this side is not touched any more. */
export async function move(agent: Agent, { wait, ...what }: Move): Promise<void> {
  const transfer = await agent.prepare({ ...what, ...remaining(wait) });
  try {
    transfer.post();
    await transfer.wait(remaining(wait));
  } finally {
    await transfer.close();
  }
}
