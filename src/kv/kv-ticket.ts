// What a store tells a reader of blocks: where they are, which life of them is meant, and what their bytes sum up to.
import { crc32 } from 'node:zlib';
import { z } from '#zod';
import { isWhole } from '../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';
import { MAX_KV_RANGES } from './kv-memory.ts';

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

/** Checked as a whole: one problem, however many elements are wrong. The copy is ours. */
function column<T>(isElement: (value: unknown) => boolean): z.ZodType<readonly T[]> {
  const isColumn = (value: unknown): boolean =>
    Array.isArray(value) && value.length <= MAX_KV_RANGES && Array.from(value).every(isElement);
  return z.custom<readonly T[]>(isColumn, 'not a list of such values').transform((list) => [...list]);
}

const count = z.number().int().nonnegative();
const counts = column<number>((value) => isWhole(value, 0));
const ticketShape = z.object({
  agent: z.string(),
  /** As agents have it: it goes to error messages. */
  incarnation: z.string().regex(/^[0-9a-f]{16}$/),
  store: z.string(),
  table: count,
  lease: z.object({ slot: count, id: count.positive(), ms: z.number().nonnegative() }).nullable(),
  keys: column<string>((value) => typeof value === 'string'),
  blocks: column<number>((value) => isWhole(value, -1)),
  generations: counts,
  checksums: counts,
});

/** Tickets come from elsewhere: fails with WL_INVALID_ARGUMENT for anything else, and for columns of different lengths. */
export function checkTicket(ticket: unknown): KvTicket {
  const expected = 'what ticket() of a store returned';
  if (typeof ticket === 'string') throw invalidArgument('ticket', ticket, `${expected}: JSON.parse it first`);
  const { success, data, error } = ticketShape.safeParse(ticket);
  if (!success) throw wrong([...error.issues[0]!.path, error.issues[0]!.message].join(': '));
  const { keys, blocks, generations, checksums } = data;
  if ([blocks, generations, checksums].every(({ length }) => length === keys.length)) return data;
  throw wrong(`columns of ${keys.length}, ${blocks.length}, ${generations.length} and ${checksums.length} elements`);

  function wrong(why: string): WeftlineError {
    return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid ticket: expected ${expected}, got ${printable(why)}`);
  }
}

/** What the sum of a block's bytes is changed by, so that it counts for this key, this store and this life of the block alone. */
export function identitySum(
  { incarnation, table }: Pick<KvTicket, 'incarnation' | 'table'>,
  key: string,
  generation: number,
): number {
  return crc32(`${incarnation} ${table} ${generation} ${key}`);
}
