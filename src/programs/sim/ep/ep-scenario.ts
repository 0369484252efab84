// A random job of expert parallelism, all of it determined by a seed: ranks, tokens, calls, the network, and what goes wrong.
import { seededRandom } from '../../../core/seeded-random.ts';
import { bufferSize, type EpBufferConfig, MAX_TOPK } from '../../../ep/buffer/buffer-size.ts';
import { Dice, makeScenario, type Scenario } from '../scenario.ts';

/** A dispatch with choices, perhaps a cached one behind it, and one combine or two. */
export interface EpRound {
  readonly seed: number;
  /** By rank. */
  readonly tokens: readonly number[];
  readonly topk: number;
  /** Share of choices that are none. */
  readonly dropped: number;
  /** All tokens choose among the first so many experts. */
  readonly experts: number;
  readonly fp8: boolean;
  readonly wideIndex: boolean;
  readonly weights: boolean;
  readonly givenLayout: boolean;
  readonly worst: boolean;
  readonly alignment: number;
  readonly cached: boolean;
  /** With two combines one follows on the other: no dispatch has brought the ranks together meanwhile. */
  readonly combines: number;
  readonly inPlace: boolean;
  readonly biases: number;
  /** Microseconds that each rank computes before each of its calls. */
  readonly pauses: readonly number[];
}

export interface EpScenario {
  readonly seed: number;
  readonly network: Scenario;
  readonly ranks: number;
  readonly config: EpBufferConfig;
  readonly rounds: readonly EpRound[];
  readonly wakeDelay: number;
  readonly hangUpDelay: number;
  /** Whether the agent outlives the buffer. */
  readonly keepsAgent: boolean;
  readonly death: EpDeath | undefined;
  readonly cancellation: EpCancellation | undefined;
}

interface EpDeath {
  readonly rank: number;
  readonly at: number;
  /** The host fell silent: nobody tells the peers. */
  readonly withHost: boolean;
  /** Microseconds until the world says so; undefined if it never does. */
  readonly noticedAfter: number | undefined;
}

/** A rank gives up whatever call it is in. */
interface EpCancellation {
  readonly rank: number;
  readonly at: number;
}

const MAX_RANKS = 8;
/** A command ring takes 4 MiB. */
const MAX_ENGINES = 12;

export function makeEpScenario(seed: number): EpScenario {
  const drawn = makeScenario(seed);
  const dice = new Dice(seededRandom(seed ^ 0x0e9_5ca1));
  const most = Math.min(MAX_RANKS, drawn.topology.hosts);
  const ranks = dice.chance(0.4) ? 2 : dice.integer(2, dice.chance(0.7) ? Math.min(4, most) : most);
  const engines = Math.min(drawn.engines ?? 1, 4, Math.floor(MAX_ENGINES / ranks));
  const network: Scenario = { ...drawn, engines };
  const expertsPerRank = dice.integer(1, 4);
  const mostTokens = dice.pick([1, 4, 16, 64]);
  const maxTopk = dice.integer(1, Math.min(MAX_TOPK, dice.pick([2, 8, 32])));
  const config: EpBufferConfig = {
    maxTokensPerRank: mostTokens,
    hidden: dice.pick([8, 8, 16, 40, 128, 136]),
    numExperts: expertsPerRank * ranks,
    maxTopk,
    combineRows: dice.chance(0.3) ? 'shared' : 'separate',
    combinePrecision: dice.chance(0.3) ? 'f32' : 'bf16',
  };
  const span = dice.exponential(10, 20_000);
  const hasFewBytes = dice.chance(0.5);
  const numRdmaBytes = hasFewBytes ? fewRdmaBytes(dice, config, ranks) : 0;
  const around = { config, ranks, span, isFull: hasFewBytes };
  const rounds = Array.from({ length: dice.integer(1, 4) }, () => makeRound(dice, around));
  const trouble = dice.real(0, 1);
  const at = dice.chance(0.3) ? dice.real(0, 100) : dice.real(0, span * 2 * rounds.length);
  const victim = dice.integer(0, ranks - 1);
  return {
    seed,
    network,
    ranks,
    config: { ...config, numRdmaBytes },
    rounds,
    wakeDelay: dice.chance(0.2) ? 0 : dice.exponential(0.5, 200),
    hangUpDelay: dice.exponential(20, 5000),
    keepsAgent: dice.chance(0.3),
    death:
      trouble < 0.1
        ? {
            rank: victim,
            at,
            withHost: dice.chance(0.5),
            noticedAfter: dice.chance(0.5) ? dice.exponential(10, 100_000) : undefined,
          }
        : undefined,
    cancellation: trouble > 0.9 ? { rank: victim, at } : undefined,
  };
}

interface RoundShape {
  readonly config: EpBufferConfig;
  readonly ranks: number;
  readonly span: number;
  /** Ranks have as many tokens as they may, mostly: memory that is used in turn then is. */
  readonly isFull: boolean;
}

function makeRound(dice: Dice, { config, ranks, span, isFull }: RoundShape): EpRound {
  const { maxTokensPerRank, numExperts, maxTopk } = config;
  const usual = isFull ? maxTokensPerRank : dice.pick([1, 4, 16, 64]);
  return {
    seed: dice.integer(1, 2 ** 31),
    tokens: Array.from({ length: ranks }, () =>
      dice.chance(0.2) ? 0 : dice.integer(0, Math.min(usual, maxTokensPerRank)),
    ),
    topk: dice.integer(1, maxTopk),
    dropped: dice.pick([0, 0, 0.2, 1]),
    experts: dice.chance(0.2) ? dice.integer(1, numExperts) : numExperts,
    fp8: dice.chance(0.4),
    wideIndex: dice.chance(0.5),
    weights: dice.chance(0.5),
    givenLayout: dice.chance(0.3),
    worst: dice.chance(0.2),
    alignment: dice.pick([1, 1, 4, 128]),
    cached: dice.chance(0.4),
    combines: dice.chance(0.4) ? 2 : 1,
    inPlace: dice.chance(0.5),
    biases: dice.integer(0, 2),
    pauses: Array.from({ length: ranks }, () => (dice.chance(0.3) ? 0 : dice.real(0, span))),
  };
}

/** Memory for the sums of some of the tokens, whose places are then used in turn. */
function fewRdmaBytes(dice: Dice, config: EpBufferConfig, ranks: number): number {
  const { maxTokensPerRank } = config;
  const { network } = bufferSize(
    config,
    ranks,
    Array.from({ length: ranks }, () => 1),
  );
  if (network === undefined || maxTokensPerRank <= 2) return 0;
  const { sums, sumWeights, hostRows, hostWeights } = network.regions;
  const all = [sums, sumWeights, hostRows, hostWeights].reduce((sum, { bytes }) => sum + bytes, 0);
  const tokens = dice.integer(1, Math.ceil((maxTokensPerRank - 1) / 2));
  // Regions begin at multiples of 128.
  return Math.min(network.bytes, Math.ceil(network.bytes - all * (1 - tokens / maxTokensPerRank)) + 4 * 128);
}
