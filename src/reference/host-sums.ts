// The specification of the sums of combine: which rows are added in which order, and where the result is rounded.
//
// Rows of several hosts: what a host has of a token is summed there and crosses the network as one row, which is rounded
// to the rows' dtype or stays f32. The token's own host sends nothing, so its rows count one by one. Hence
//
//   round(first rows + a row of the own host + another row of it + … + round(row + row + …) of another host + …)
//
// added from left to right in f32, hosts in the order of their lowest ranks. A sum of one row alone is that row, bit for
// bit where it is not widened. On one host nothing is rounded but the end.
import type { CombinePrecision } from '../ep/across-hosts/network-size.ts';
import { f32Bits, f32FromBits, fromBf16, fromF16, toBf16, toF16 } from '../core/dtype.ts';

/** A bit pattern as a number, and a number rounded to a bit pattern; every NaN gets the same one. */
const codecs = {
  bf16: { read: fromBf16, write: toBf16 },
  f16: { read: fromF16, write: toF16 },
  f32: { read: f32FromBits, write: (value: number) => (Number.isNaN(value) ? 0x7fc0_0000 : f32Bits(value)) },
} as const;

/** Dtype of a row of bit patterns. */
type ReferenceDType = keyof typeof codecs;

/** The hosts of the ranks, and what crosses the network between them. */
export interface ReferenceHosts {
  /** The ranks of each host, as Topology.hosts has them; all on one host by default. */
  readonly hosts?: readonly (readonly number[])[] | undefined;
  /** What a host's sum travels as: rounded to the dtype of the rows ('bf16', default) or as f32. */
  readonly combinePrecision?: CombinePrecision | undefined;
}

/** A row that some rank adds to a token. */
export interface RankedRow {
  readonly rank: number;
  readonly bits: readonly number[];
}

interface SumOf extends ReferenceHosts {
  /** The rank whose token it is. */
  readonly rank: number;
  readonly hidden: number;
  readonly dtype?: ReferenceDType;
}

/** A row of bit patterns and how to read them. */
interface Addend {
  readonly dtype: ReferenceDType;
  readonly bits: readonly number[];
}

/**
 * Adds what all hosts have of a token, as the comment at the top of this file says.
 * @param first Rows of the token's rank that are added before all others: biases.
 * @param rows In the order in which they are added within a host.
 * @param of The rank of the token, and the hosts of the ranks.
 */
export function sumAcrossHosts(first: readonly (readonly number[])[], rows: readonly RankedRow[], of: SumOf): number[] {
  const { hidden, dtype = 'bf16', combinePrecision = 'bf16' } = of;
  const wire = combinePrecision === 'f32' ? 'f32' : dtype;
  const ofHosts = rowsByHost(rows, of).flatMap(({ isOwn, rows: here }): Addend[] => {
    const addends = here.map(({ bits }) => ({ dtype, bits }));
    if (isOwn || here.length === 0) return addends;
    return [{ dtype: wire, bits: sumAddends(addends, hidden, wire) }];
  });
  return sumAddends([...first.map((bits) => ({ dtype, bits })), ...ofHosts], hidden, dtype);
}

/** Adds the sums of f32 numbers that hosts have of a token, of which those of other hosts cross the network, and rounds to bf16. */
export function addHostSums(
  sums: readonly { readonly isOwn: boolean; readonly values: readonly number[] }[],
  { hidden, combinePrecision = 'bf16' }: Pick<SumOf, 'hidden' | 'combinePrecision'>,
): number[] {
  const addends = sums.map(({ isOwn, values }): Addend => {
    const dtype = isOwn ? 'f32' : combinePrecision;
    return { dtype, bits: values.map(codecs[dtype].write) };
  });
  return sumAddends(addends, hidden, 'bf16');
}

/**
 * The rows of each host, hosts in order.
 * @param rows In an order that stays within a host.
 * @param of The rank of the token, whose host is its own. Without hosts all rows are of that host.
 */
export function rowsByHost<Row extends { readonly rank: number }>(
  rows: readonly Row[],
  { rank, hosts }: ReferenceHosts & { readonly rank: number },
): { readonly isOwn: boolean; readonly rows: readonly Row[] }[] {
  if (hosts === undefined) return [{ isOwn: true, rows }];
  return hosts.map((ranks) => ({ isOwn: ranks.includes(rank), rows: rows.filter((row) => ranks.includes(row.rank)) }));
}

/** Sums rows of bit patterns in f32 from the first to the last and rounds once; one row alone is returned bit for bit. */
export function sumRows(
  rows: readonly (readonly number[])[],
  hidden: number,
  dtype: ReferenceDType = 'bf16',
): number[] {
  return sumAddends(
    rows.map((bits) => ({ dtype, bits })),
    hidden,
    dtype,
  );
}

/** The same for rows of several dtypes; a row alone that has the dtype of the result is returned bit for bit. */
function sumAddends(addends: readonly Addend[], hidden: number, dtype: ReferenceDType): number[] {
  const [first, ...others] = addends;
  if (first === undefined) return Array.from({ length: hidden }, () => 0);
  if (others.length === 0 && first.dtype === dtype) return [...first.bits];
  const valueOf = ({ dtype: format, bits }: Addend, column: number): number => codecs[format].read(bits[column] ?? 0);
  return Array.from({ length: hidden }, (_, column) => {
    let sum = valueOf(first, column);
    for (const other of others) sum = Math.fround(sum + valueOf(other, column));
    return codecs[dtype].write(sum);
  });
}
