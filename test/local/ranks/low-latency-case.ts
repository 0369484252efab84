// Random EpLowLatency cases: what each rank passes in, made alike on every rank from one seed.
import fc from '../../support/fast-check.ts';
import type { LowLatencyConfig } from 'weftline/ep';
import type { ReferenceInput } from 'weftline/reference';
import { random, rows } from './ep-case.ts';
import { type LowLatencyMode, modesOn } from './low-latency-shapes.ts';
import type { EpDevice } from '../support/test-device.ts';
import type { LowLatencyScales } from '#lib/ep/low-latency/low-latency-arguments.js';

/** One dispatch and its combine. */
export interface LowLatencyRound {
  readonly seed: number;
  readonly topk: number;
  /** Tokens of each rank. */
  readonly tokens: readonly number[];
  readonly skew: 'uniform' | 'one expert' | 'one rank';
  readonly dropPercent: number;
  /** Tokens may choose an expert more than once. */
  readonly repeats: boolean;
  /** undefined: bf16. */
  readonly scales: LowLatencyScales | undefined;
  readonly wideIndex: boolean;
  /** In 'rank-major', where it is the caller's choice. */
  readonly weights: boolean;
  readonly ownOut: boolean;
  readonly zeroCopy: boolean;
  readonly stats: boolean;
}

export interface LowLatencyCase {
  readonly hidden: number;
  readonly expertsPerRank: number;
  readonly mode: LowLatencyMode;
  /** 0: no limit. */
  readonly capacity: number;
  /** Calls one after another, then two at a time with hooks. */
  readonly rounds: readonly LowLatencyRound[];
  readonly hooked: readonly (readonly [LowLatencyRound, LowLatencyRound])[];
  /** True if the later call's hook comes first. */
  readonly laterFirst: boolean;
  readonly elastic: boolean;
  readonly combinePrecision: 'bf16' | 'f32' | 'fp8-lossy';
}

const MAX_TOPK = 12;

/** `most`: tokens of a rank. */
export function lowLatencyCase(
  device: EpDevice,
  { ranks, most, hosts }: { readonly ranks: number; readonly most: number; readonly hosts: number },
): fc.Arbitrary<LowLatencyCase> {
  const count = fc.oneof(fc.constant(0), fc.integer({ min: 1, max: most }));
  const round = fc.record({
    seed: fc.integer(),
    topk: fc.integer({ min: 1, max: MAX_TOPK }),
    tokens: fc.array(count, { minLength: ranks, maxLength: ranks }),
    skew: fc.constantFrom('uniform' as const, 'one expert' as const, 'one rank' as const),
    dropPercent: fc.constantFrom(0, 0, 20, 100),
    repeats: fc.boolean(),
    scales: fc.constantFrom(undefined, 'f32' as const, 'rounded' as const, 'ue8m0' as const),
    wideIndex: fc.boolean(),
    weights: fc.boolean(),
    ownOut: fc.boolean(),
    zeroCopy: fc.boolean(),
    stats: fc.boolean(),
  });
  return fc.record({
    hidden: fc.constantFrom(8, 24, 128, 136, 264, 640),
    expertsPerRank: fc.integer({ min: 1, max: 5 }),
    mode: fc.constantFrom(...modesOn(device, hosts)),
    capacity: fc.constantFrom(0, 0, 1, 3),
    rounds: fc.array(round, { minLength: 0, maxLength: 3 }),
    hooked: fc.array(fc.tuple(round, round), { minLength: 1, maxLength: 2 }),
    laterFirst: fc.boolean(),
    elastic: hosts === 1 ? fc.boolean() : fc.constant(false),
    combinePrecision: fc.constantFrom('bf16' as const, 'f32' as const, 'fp8-lossy' as const),
  });
}

export function configOf(of: LowLatencyCase, ranks: number): LowLatencyConfig {
  const all = [...of.rounds, ...of.hooked.flat()];
  const sizes = {
    maxTokensPerRank: Math.max(1, ...all.flatMap(({ tokens }) => tokens)),
    hidden: of.hidden,
    numExperts: of.expertsPerRank * ranks,
    maxTopk: MAX_TOPK,
    elastic: of.elastic,
    combinePrecision: of.combinePrecision,
  };
  if (of.mode === 'rank-major') return { ...sizes, layout: 'rank-major' };
  return { ...sizes, combineTravels: of.mode, maxTokensPerExpert: of.capacity, overflow: 'drop' };
}

/** What that rank passes to dispatch; weights stand there also where only combine takes them. */
export function inputOf(of: LowLatencyCase, round: LowLatencyRound, rank: number, ranks: number): ReferenceInput {
  const next = random(round.seed + 31 * rank);
  const tokens = round.tokens[rank] ?? 0;
  const experts = of.expertsPerRank * ranks;
  const allowed = round.skew === 'one rank' ? of.expertsPerRank : experts;
  const topkIdx = Array.from({ length: tokens }, () => {
    const free = Array.from({ length: allowed }, (_, expert) => expert);
    return Array.from({ length: round.topk }, (_, k) => {
      if (free.length === 0 || next() * 100 < round.dropPercent) return -1;
      const at = round.skew === 'one expert' && k === 0 ? 0 : Math.floor(next() * free.length);
      return (round.repeats ? free[at] : free.splice(at, 1)[0]) ?? -1;
    });
  });
  const x = rows(tokens, of.hidden, next);
  const topkWeights = topkIdx.map((choices) => choices.map(() => Math.fround(next() * 2 - 0.5)));
  const isGiven = of.mode !== 'rank-major' || round.weights;
  return { x, topkIdx, ...(isGiven && { topkWeights }) };
}
