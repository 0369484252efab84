// The specification of the sums of combine: which rows are added in which order, and where the result is rounded.
//
// Rows of several hosts: what a host has of a token is summed there and crosses the network as one row, which is rounded
// to the rows' dtype, stays f32 or, of EpLowLatency alone, becomes fp8 with scales. The token's own host sends nothing, so its rows
// count one by one. Hence
//
//   round(first rows + a row of the own host + another row of it + … + round(row + row + …) of another host + …)
//
// added from left to right in f32, hosts in the order of their lowest ranks. A sum of one row alone is that row, bit for
// bit where it is not widened. On one host nothing is rounded but the end.
import type { LowLatencyCombinePrecision } from '../ep/across-hosts/network-size.ts';
import { f32Bits, f32FromBits, fromBf16, fromF16, toBf16, toF16 } from '../core/dtype.ts';
import { referenceLossyRow } from './fp8-rows.ts';

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
  /**
   * What a host's sum travels as: rounded to the dtype of the rows ('bf16', default), as f32 or, of EpLowLatency alone, as fp8 of
   * its f32 numbers ('fp8-lossy').
   */
  readonly combinePrecision?: LowLatencyCombinePrecision | undefined;
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
  const wire = combinePrecision === 'bf16' ? dtype : 'f32';
  const ofHosts = rowsByHost(rows, of).flatMap(({ isOwn, rows: here }): Addend[] => {
    const addends = here.map(({ bits }) => ({ dtype, bits }));
    if (isOwn || here.length === 0) return addends;
    const sum: Addend = { dtype: wire, bits: sumAddends(addends, hidden, wire) };
    return [combinePrecision === 'fp8-lossy' ? lossySum(sum.bits.map(f32FromBits)) : sum];
  });
  return sumAddends([...first.map((bits) => ({ dtype, bits })), ...ofHosts], hidden, dtype);
}

/** Adds the sums of f32 numbers that hosts have of a token, of which those of other hosts cross the network, and rounds to bf16. */
export function addHostSums(
  sums: readonly { readonly isOwn: boolean; readonly values: readonly number[] }[],
  { hidden, combinePrecision = 'bf16' }: Pick<SumOf, 'hidden' | 'combinePrecision'>,
): number[] {
  const addends = sums.map(({ isOwn, values }): Addend => {
    if (!isOwn && combinePrecision === 'fp8-lossy') return lossySum(values);
    const dtype = isOwn || combinePrecision !== 'bf16' ? 'f32' : 'bf16';
    return { dtype, bits: values.map(codecs[dtype].write) };
  });
  return sumAddends(addends, hidden, 'bf16');
}

/** What the token's rank reads of a sum of f32 numbers that has crossed as fp8. */
function lossySum(values: readonly number[]): Addend {
  return { dtype: 'f32', bits: referenceLossyRow(values).map(codecs.f32.write) };
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
