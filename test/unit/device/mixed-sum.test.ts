// The kernels that carry f32 and fp8 sums between hosts, against the reference of combine: every kind of number among the rows.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, fromBf16, fromF16, type Tensor } from 'weftline';
import { elementFormats, FP8_SUM_FORMAT, fp8SumBytes } from '#lib/abi/element-formats.js';
import { referenceLossyRow } from '#lib/reference/fp8-rows.js';
import { type RankedRow, sumAcrossHosts } from '#lib/reference/host-sums.js';
import { patternsOf, random, rows, toPatterns } from '../../local/ranks/ep-case.ts';

const device = await CpuDevice.create();
const { kernels } = device;
const TOKENS = 9;
const dtypes = ['bf16', 'f16', 'f32'] as const;
type RowDType = (typeof dtypes)[number];

/** Rows of every token at `ranks` ranks: table[t][r] is a row of rank r or -1, data[r] the rows there. */
interface Held {
  readonly table: readonly (readonly number[])[];
  readonly data: readonly (readonly (readonly number[])[])[];
}

/** Rows of a rank stand in another order than tokens. Token 0 has none, and token 1 of one rank alone. */
function held(ranks: number, width: number, dtype: RowDType, next: () => number): Held {
  const table = Array.from({ length: TOKENS }, (_, token) =>
    Array.from({ length: ranks }, (_unused, rank) => {
      const holds = token > 1 ? next() < 0.7 : token === 1 && rank === ranks - 1;
      return holds ? TOKENS - 1 - token : -1;
    }),
  );
  return { table, data: Array.from({ length: ranks }, () => rows(TOKENS, width, next, dtype)) };
}

function upload(dtype: RowDType, values: readonly (readonly number[])[]): Promise<Tensor> {
  return device.tensor<RowDType>(dtype, [values.length, values[0]!.length], patternsOf(dtype, values.flat()));
}

function words(values: readonly number[]): Promise<Tensor<'i32'>> {
  return device.tensor('i32', [values.length], Int32Array.from(values));
}

/** Makes tensors and disposes of them all. */
class Made {
  readonly #all: Tensor[] = [];

  async add<T extends Tensor>(tensor: T | Promise<T>): Promise<T> {
    const one = await tensor;
    this.#all.push(one);
    return one;
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#all) tensor.close();
  }
}

/** In f32, from the first row on. */
function plainSum(rowsOf: readonly (readonly number[])[], width: number, dtype: RowDType): number[] {
  const read = (bits: number): number => {
    if (dtype === 'bf16') return fromBf16(bits);
    return dtype === 'f16' ? fromF16(bits) : new Float32Array(Uint32Array.of(bits).buffer)[0]!;
  };
  return Array.from({ length: width }, (_, column) =>
    rowsOf.length === 0 ? 0 : rowsOf.map((row) => read(row[column]!)).reduce((sum, value) => Math.fround(sum + value)),
  );
}

for (const dtype of dtypes) {
  test(`gatherSumF32 writes the f32 sums of ${dtype} rows, in order`, async () => {
    for (const width of [8, 24, 32, 64, 136, 264]) {
      using made = new Made();
      const { table, data } = held(3, width, dtype, random(width));
      const tensors = await Promise.all(data.map((one) => made.add(upload(dtype, one))));
      const bases = await made.add(words(tensors.map(({ address }) => address)));
      const rowTable = await made.add(words(table.flat()));
      const scratch = await made.add(device.empty('i32', [3]));
      const out = await made.add(device.empty('f32', [TOKENS, width]));
      out.view().fill(9);
      const rowBytes = tensors[0]!.bytes / TOKENS;
      const format = elementFormats[dtype];
      const tables = [rowTable.address, 0, bases.address] as const;
      kernels.gatherSumF32(out.address, rowBytes, TOKENS, 3, ...tables, 0, scratch.address, format);
      for (const [token, places] of table.entries()) {
        const addends = places.flatMap((row, rank) => (row < 0 ? [] : [data[rank]![row]!]));
        const got = [...out.view().subarray(token * width, (token + 1) * width)];
        assert.deepEqual(got, plainSum(addends, width, dtype), `token ${token} of ${width} columns`);
      }
    }
  });

  for (const hosts of [[[0, 1], [2, 3], [4]], [[0], [1], [2], [3], [4]], [[0, 1, 2, 3, 4]]]) {
    const name = hosts.map((ranks) => ranks.join('')).join(' ');
    test(`gatherSumMixed of ${dtype} rows agrees with the reference, hosts ${name}`, async () => {
      const precisions = dtype === 'bf16' ? (['f32', 'fp8-lossy'] as const) : (['f32'] as const);
      for (const [width, rank, biases] of [
        [8, 0, 0],
        [40, 2, 1],
        [64, 4, 2],
        [136, 3, 0],
        [264, 1, 2],
      ] as const) {
        for (const precision of precisions) await compareMixed({ dtype, hosts, width, rank, biases, precision });
      }
    });
  }
}

test('a sum crosses as fp8 as the reference says, with every kind of number among its columns', async () => {
  for (const width of [8, 24, 128, 136, 264]) {
    using made = new Made();
    const next = random(width);
    const special = [NaN, Infinity, -Infinity, 3.4e38, -0, 1e-40, 1e-5, 0];
    const values = Float32Array.from({ length: width }, (_, column) =>
      column % 11 < 3 ? special[Math.floor(next() * special.length)]! : (next() - 0.5) * 2 ** (next() * 12 - 6),
    );
    // A group without any: the largest of it decides.
    values.fill(0.25, 0, 7);
    const x = await made.add(device.tensor('f32', [1, width], values));
    const sum = await made.add(device.empty('u8', [fp8SumBytes(width)]));
    kernels.quantizeSum(sum.address, x.address, width);
    const columns = await made.add(words([FP8_SUM_FORMAT]));
    const tables = await made.add(words([0]));
    const bases = await made.add(words([sum.address]));
    const scratch = await made.add(device.empty('i32', [6]));
    const wide = await made.add(device.empty('f32', [1, width]));
    const out = await made.add(device.empty('bf16', [1, width]));
    const rest = [0, 0, 0, scratch.address, elementFormats.bf16, columns.address, wide.address] as const;
    kernels.gatherSumMixed(out.address, 2 * width, 1, 1, tables.address, 0, bases.address, ...rest);
    assert.deepEqual([...wide.view()], referenceLossyRow([...values]), `${width} columns`);
  }
});

interface MixedCase {
  readonly dtype: RowDType;
  readonly hosts: readonly (readonly number[])[];
  readonly width: number;
  /** The rank whose tokens these are. */
  readonly rank: number;
  readonly biases: number;
  readonly precision: 'f32' | 'fp8-lossy';
}

/** Every other host's rows are summed as f32 first, or as fp8, in a table of the tokens that it has. */
async function compareMixed({ dtype, hosts, width, rank, biases, precision }: MixedCase): Promise<void> {
  using made = new Made();
  const next = random(width + rank);
  const { table, data } = held(5, width, dtype, next);
  const bias = Array.from({ length: biases }, () => rows(TOKENS, width, next, dtype));
  const tensors = await Promise.all(data.map((one) => made.add(upload(dtype, one))));
  const biasTensors = await Promise.all(bias.map((one) => made.add(upload(dtype, one))));
  const rowBytes = tensors[0]!.bytes / TOKENS;
  const format = elementFormats[dtype];
  const columns: { readonly format: number; readonly base: number; readonly table: readonly number[] }[] = [];
  for (const ranks of hosts) {
    const ofRank = (one: number): number[] => table.map((places) => places[one]!);
    if (ranks.includes(rank)) {
      for (const one of ranks) columns.push({ format, base: tensors[one]!.address, table: ofRank(one) });
      continue;
    }
    const tokens = table.flatMap((places, token) => (ranks.some((one) => places[one]! >= 0) ? [token] : []));
    const rowTable = await made.add(words(tokens.flatMap((token) => ranks.map((one) => table[token]![one]!))));
    const bases = await made.add(words(ranks.map((one) => tensors[one]!.address)));
    const sums = await made.add(device.empty('f32', [tokens.length, width]));
    const scratch = await made.add(device.empty('i32', [ranks.length]));
    const tables = [rowTable.address, 0, bases.address] as const;
    const { address } = sums;
    kernels.gatherSumF32(address, rowBytes, tokens.length, ranks.length, ...tables, 0, scratch.address, format);
    const isLossy = precision === 'fp8-lossy';
    const sumTable = table.map((_, token) => tokens.indexOf(token));
    const quantized = isLossy ? tokens : [];
    const lossy = await made.add(device.empty('u8', [quantized.length * fp8SumBytes(width)]));
    for (const at of quantized.keys()) {
      kernels.quantizeSum(lossy.address + at * fp8SumBytes(width), address + at * width * 4, width);
    }
    const [sumFormat, base] = isLossy ? [FP8_SUM_FORMAT, lossy.address] : [elementFormats.f32, address];
    columns.push({ format: sumFormat, base, table: sumTable });
  }
  const rowTable = await made.add(words(table.flatMap((_, token) => columns.map((column) => column.table[token]!))));
  const bases = await made.add(words(columns.map(({ base }) => base)));
  const formats = await made.add(words(columns.map((column) => column.format)));
  const scratch = await made.add(device.empty('i32', [2 * (columns.length + 2)]));
  const wide = await made.add(device.empty('f32', [hosts.length, width]));
  const out = await made.add(device.empty<RowDType>(dtype, [TOKENS, width]));
  kernels.gatherSumMixed(
    out.address,
    rowBytes,
    TOKENS,
    columns.length,
    rowTable.address,
    0,
    bases.address,
    0,
    biasTensors[0]?.address ?? 0,
    biasTensors[1]?.address ?? 0,
    scratch.address,
    format,
    formats.address,
    wide.address,
  );
  const got = toPatterns(out.view());
  for (const [token, places] of table.entries()) {
    const of = { rank, hidden: width, dtype, hosts, combinePrecision: precision } as const;
    const rowsOf = places.flatMap((row, at): RankedRow[] => (row < 0 ? [] : [{ rank: at, bits: data[at]![row]! }]));
    const want = sumAcrossHosts(
      bias.map((one) => one[token]!),
      rowsOf,
      of,
    );
    assert.deepEqual(got.slice(token * width, (token + 1) * width), want, `token ${token} of ${width} columns`);
  }
}

test('gatherSumMixed takes one row of each rank, and other hosts under numbers of their own', async () => {
  using made = new Made();
  const width = 16;
  // Columns: two choices, both of rank 0, of which the second was added to the first; then another host's sum.
  const own = await made.add(upload('bf16', [Array<number>(width).fill(0x3f80), Array<number>(width).fill(0x4000)]));
  const sums = await made.add(device.tensor('f32', [1, width], new Float32Array(width).fill(1 / 256)));
  const rowTable = await made.add(words([0, 1, 0]));
  const rankTable = await made.add(words([0, 0, 1]));
  const bases = await made.add(words([own.address, sums.address]));
  const formats = await made.add(words([elementFormats.bf16, elementFormats.bf16, elementFormats.f32]));
  const scratch = await made.add(device.empty('i32', [10]));
  const out = await made.add(device.empty('bf16', [1, width]));
  const tables = [rowTable.address, rankTable.address, bases.address] as const;
  const rest = [0, 0, scratch.address, elementFormats.bf16, formats.address, 0] as const;
  for (const [onePerRank, want] of [
    [1, 1 + 1 / 256],
    [0, 3 + 1 / 256],
  ] as const) {
    kernels.gatherSumMixed(out.address, 2 * width, 1, 3, ...tables, onePerRank, ...rest);
    // 1 + 1/256 is half-way between two bf16 and goes to 1; 3 + 1/256 is nearest to 3.
    assert.deepEqual([...out.view()].map(fromBf16), Array<number>(width).fill(Math.floor(want)));
  }
});
