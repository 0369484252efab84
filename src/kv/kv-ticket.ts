// What a store tells a reader of blocks: where they are, which life of them is meant, and what their bytes sum up to.
import { crc32 } from 'node:zlib';
import { z } from '#zod';
import { invalidArgument } from '../core/errors.ts';
import { printable } from '../core/quote.ts';

/**
 * Blocks of a store, by key, and the lease that holds them. Plain data: `JSON.stringify` and `JSON.parse` carry it. Column i of
 * each list is of `keys[i]`. A ticket is for one reader, who may give the blocks back before the others have read them.
 */
export interface KvTicket {
  /** Name and incarnation of the store's agent, whose metadata the reader must have loaded after the store was made. */
  readonly agent: string;
  readonly incarnation: string;
  /** Name of the store, and number of its table at the agent. */
  readonly store: string;
  readonly table: number;
  /** Holds the blocks for `ms` from its begin, or from the last renewal; null if the store has none of the keys. */
  readonly lease: { readonly slot: number; readonly id: number; readonly ms: number } | null;
  readonly keys: readonly string[];
  /** The number of the block, or -1 where the store has none under the key. */
  readonly blocks: readonly number[];
  /** How often the block was begun and ended, the one of this content being even. */
  readonly generations: readonly number[];
  /** The sum of the block's bytes, combined with that of its key and life. */
  readonly checksums: readonly number[];
}

const count = z.number().int().nonnegative();
const ticketShape = z.object({
  agent: z.string(),
  incarnation: z.string(),
  store: z.string(),
  table: count,
  lease: z.object({ slot: count, id: count.positive(), ms: z.number().nonnegative() }).nullable(),
  keys: z.array(z.string()),
  blocks: z.array(z.number().int()),
  generations: z.array(count),
  checksums: z.array(count),
});

/** Tickets come from elsewhere: fails with WL_INVALID_ARGUMENT for anything else, and for columns of different lengths. */
export function checkTicket(ticket: unknown): KvTicket {
  const { success, data, error } = ticketShape.safeParse(ticket);
  const expected = 'what ticket() of a store returned';
  if (!success) throw invalidArgument('ticket', printable(error.issues[0]?.message ?? ''), expected);
  const { keys, blocks, generations, checksums } = data;
  if ([blocks, generations, checksums].every(({ length }) => length === keys.length)) return data;
  throw invalidArgument('ticket', 'columns of different lengths', expected);
}

/** What the sum of a block's bytes is changed by, so that it counts for this key, this store and this life of the block alone. */
export function identitySum(
  { incarnation, table }: Pick<KvTicket, 'incarnation' | 'table'>,
  key: string,
  generation: number,
): number {
  return crc32(`${incarnation} ${table} ${generation} ${key}`);
}
