// Random EpBuffer and EPAll2AllLayer cases: what each rank passes in, made alike on every rank from one seed.
import fc from '../../support/fast-check.ts';
import { type Device, toBf16, toF16, type TypedArrayOf } from 'weftline';
import type { RankGroup } from 'weftline/world';
import type { NetworkSize } from '#lib/ep/across-hosts/network-size.js';

export interface EpCase {
  readonly seed: number;
  readonly hidden: number;
  readonly expertsPerRank: number;
  readonly topk: number;
  /** Tokens of each rank; zero is common. */
  readonly tokens: readonly number[];
  readonly skew: 'uniform' | 'one expert' | 'one rank' | 'half idle';
  readonly dropPercent: number;
  /** Tokens may choose an expert more than once. */
  readonly repeats: boolean;
  readonly fp8: boolean;
  readonly wideIndex: boolean;
  readonly weights: boolean;
  readonly alignment: number;
  readonly worst: boolean;
  readonly biases: number;
  readonly givenLayout: boolean;
  readonly inPlace: boolean;
  readonly sharedRows: boolean;
  readonly localCombine: boolean;
  readonly combinePrecision: 'bf16' | 'f32';
  /** Memory of the network side: for all sums at once, for two at a time, or the caller's. */
  readonly rdma: 'all' | 'few' | 'own';
  readonly scatter: boolean;
  readonly capacity: number;
  /** Type of a layer's tokens. */
  readonly dtype: 'bf16' | 'f16' | 'f32';
  readonly wideOffsets: boolean;
  readonly keepOutput: boolean;
  /** Dispatch stage by stage. */
  readonly staged: boolean;
  /** Multiprocessors of a GPU. */
  readonly numSms: number;
  /** With previousEvent and asyncFinish. */
  readonly overlap: boolean;
  /** Experts return small whole numbers, whose sums are exact: where the ranks are makes no difference then. */
  readonly exact: boolean;
}

export function epCase(ranks: number): fc.Arbitrary<EpCase> {
  const cases = fc.record({
    seed: fc.integer(),
    hidden: fc.constantFrom(8, 16, 40, 64, 128, 136, 256, 264),
    expertsPerRank: fc.integer({ min: 1, max: 6 }),
    topk: fc.oneof({ weight: 4, arbitrary: fc.integer({ min: 1, max: 8 }) }, fc.integer({ min: 9, max: 32 })),
    tokens: fc.array(fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 24 })), { minLength: ranks, maxLength: ranks }),
    skew: fc.constantFrom('uniform', 'one expert', 'one rank', 'half idle'),
    dropPercent: fc.constantFrom(0, 0, 20, 100),
    repeats: fc.boolean(),
    fp8: fc.boolean(),
    wideIndex: fc.boolean(),
    weights: fc.boolean(),
    alignment: fc.constantFrom(1, 1, 4, 128),
    worst: fc.boolean(),
    biases: fc.integer({ min: 0, max: 2 }),
    givenLayout: fc.boolean(),
    inPlace: fc.boolean(),
    sharedRows: fc.boolean(),
    localCombine: fc.boolean(),
    combinePrecision: fc.constantFrom('bf16', 'f32'),
    rdma: fc.constantFrom('all', 'few', 'own'),
    scatter: fc.boolean(),
    capacity: fc.constantFrom(0.1, 1, 2),
    dtype: fc.constantFrom('bf16', 'bf16', 'f16', 'f32'),
    wideOffsets: fc.boolean(),
    keepOutput: fc.boolean(),
    staged: fc.boolean(),
    numSms: fc.constantFrom(1, 3, 16),
    overlap: fc.boolean(),
    exact: fc.boolean(),
  });
  // Rarely more tokens than the threads of a block, in short rows.
  const crowd = { hidden: 8, numSms: 1 };
  const crowded = cases.map((one) => ({ ...one, ...crowd, tokens: one.tokens.map((count) => count * 25) }));
  return fc.oneof({ weight: 40, arbitrary: cases }, crowded);
}

/**
 * What is drawn for a device that takes no places across hosts, and memory of the caller for the network only where its network
 * side is not pinned: a GPU.
 */
export function caseFor(device: Device, { topology }: RankGroup, drawn: EpCase): EpCase {
  if (device.kind === 'cpu') return drawn;
  const isPinned = process.env['WEFTLINE_TEST_GPU_WINDOW'] === undefined;
  return {
    ...drawn,
    rdma: drawn.rdma === 'own' && !isPinned ? 'own' : 'all',
    scatter: drawn.scatter && topology.hosts.length === 1,
  };
}

/** What numRdmaBytes must be for a network side with room for two sums at a time; 0 for all. */
export function rdmaBytes({ rdma }: EpCase, network: NetworkSize | undefined, maxTokensPerRank: number): number {
  if (network === undefined || rdma !== 'few' || maxTokensPerRank <= 2) return 0;
  const { sums, sumWeights, hostRows, hostWeights } = network.regions;
  const perToken = [sums, sumWeights, hostRows, hostWeights].reduce(
    (sum, { bytes }) => sum + bytes / maxTokensPerRank,
    0,
  );
  // Regions begin at multiples of 128.
  return network.bytes - Math.floor(perToken * (maxTokensPerRank - 2)) + 4 * 128;
}

/** mulberry32. */
export function random(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** Top-k ids of one rank, [T][K]. */
export function choices(of: EpCase, rank: number, ranks: number): number[][] {
  const experts = of.expertsPerRank * ranks;
  const next = random(of.seed ^ Math.imul(rank + 1, 0x9e3779b1));
  return Array.from({ length: of.tokens[rank] ?? 0 }, () => {
    const free = Array.from({ length: experts }, (_, expert) => expert);
    return Array.from({ length: of.topk }, (_, k) => {
      if (next() * 100 < of.dropPercent) return -1;
      const allowed = free.filter((expert) => allows(of, expert, k));
      const expert = allowed[Math.floor(next() * allowed.length)];
      if (expert === undefined) return -1;
      if (!of.repeats) free.splice(free.indexOf(expert), 1);
      return expert;
    });
  });
}

function allows(of: EpCase, expert: number, k: number): boolean {
  if (of.skew === 'one expert') return k > 0 || expert === 0;
  if (of.skew === 'one rank') return expert < of.expertsPerRank;
  if (of.skew === 'half idle') return expert % (2 * of.expertsPerRank) < of.expertsPerRank;
  return true;
}

const patterns = {
  bf16: { any: 0x1_0000, of: toBf16 },
  f16: { any: 0x1_0000, of: toF16 },
  f32: { any: 0x1_0000_0000, of: (value: number) => new Uint32Array(Float32Array.of(value).buffer)[0]! },
};

/** Rows of bit patterns: mostly ordinary numbers, some of every kind (NaN, infinities, subnormals, -0). */
export function rows(
  count: number,
  width: number,
  next: () => number,
  dtype: keyof typeof patterns = 'bf16',
): number[][] {
  const { any, of } = patterns[dtype];
  return Array.from({ length: count }, () =>
    Array.from({ length: width }, () => (next() < 0.02 ? Math.floor(next() * any) : of((next() - 0.5) * 16))),
  );
}

/** What experts return. */
export function outputRows(
  of: EpCase,
  count: number,
  next: () => number,
  dtype: keyof typeof patterns = 'bf16',
): number[][] {
  if (!of.exact) return rows(count, of.hidden, next, dtype);
  const whole = (): number => patterns[dtype].of(Math.floor(next() * 9) - 4);
  return Array.from({ length: count }, () => Array.from({ length: of.hidden }, whole));
}

/** Bit patterns as a tensor of the dtype takes them. */
export function patternsOf<D extends 'bf16' | 'f16' | 'f32'>(dtype: D, values: readonly number[]): TypedArrayOf[D] {
  const array = dtype === 'f32' ? new Float32Array(Uint32Array.from(values).buffer) : Uint16Array.from(values);
  return array as TypedArrayOf[D];
}

/** The reverse of patternsOf. */
export function toPatterns(values: Uint16Array | Float32Array): number[] {
  return [
    ...(values instanceof Float32Array ? new Uint32Array(values.buffer, values.byteOffset, values.length) : values),
  ];
}
