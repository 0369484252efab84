// What SparseAllReduce.create() takes, with defaults, and which rank has which role.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { nodesNeeded } from './reduction-tree.ts';
import type { SlotShape } from './slot-shape.ts';

/** Options of SparseAllReduce.create(). Ranks that only aggregate may leave all of them out: they take those of the workers. */
export interface SparseAllReduceOptions extends WaitOptions {
  /**
   * Ranks of the group that add up. By default those that `weftline run --aggregators` has started, if the group has any,
   * and else all: each rank is then a worker as well.
   */
  readonly aggregators?: readonly number[];
  /** Ranks of the group that have tensors: by default all but the aggregators, or all if every rank is one. */
  readonly workers?: readonly number[];
  /** Elements of a block, which is sent whole or not at all: a multiple of 64 from 64 to 65536. 256 by default. */
  readonly blockSize?: number;
  /**
   * Elements of a message at most, a multiple of `blockSize`: so many blocks are joined, up to 256. By default 65536, or 32768
   * where a rank has both roles, as far as 256 blocks go.
   */
  readonly messageSize?: number;
  /**
   * From how many ranks an aggregator takes blocks at most, 2 to 1024. With fewer than there are workers, aggregators form trees:
   * those below add up some workers each, those above add up what these send, and sums go down the same way. The order of
   * addition follows the tree. By default an aggregator takes those of all workers.
   */
  readonly fanIn?: number;
  /** Messages of a worker that are under way at the same time, 1 to 256; they are dealt out to the aggregators. 16 by default. */
  readonly slots?: number;
}

export const sparseOptionNames: OptionNames<SparseAllReduceOptions> = {
  ...waitOptionNames,
  aggregators: true,
  workers: true,
  blockSize: true,
  messageSize: true,
  fanIn: true,
  slots: true,
};

const BLOCK_UNIT = 64;
const MAX_BLOCK_SIZE = 65_536;
const DEFAULT_BLOCK_SIZE = 256;
/** So that a rank has about 8 MiB of shared memory. */
const DEFAULT_MESSAGE_SIZE = { oneRole: 65_536, bothRoles: 32_768 } as const;
const DEFAULT_SLOTS = 16;
export const MAX_LANES = 256;
const MAX_SLOTS = 256;
const MAX_FAN_IN = 1024;

/** Ranks of the group, ascending. */
interface SparseRoles {
  readonly workers: readonly number[];
  readonly aggregators: readonly number[];
}

/** What all ranks must have alike. */
export interface SparsePlan extends SparseRoles {
  readonly shape: SlotShape;
  readonly fanIn: number;
}

/** What travels to ranks that only aggregate. */
export type ToldOptions = {
  readonly [Name in Exclude<keyof SparseAllReduceOptions, keyof WaitOptions>]?:
    | SparseAllReduceOptions[Name]
    | undefined;
};

/** Fails with WL_INVALID_ARGUMENT. */
export function checkSparseOptions(options: SparseAllReduceOptions): void {
  checkOptions(options, sparseOptionNames, 'options of SparseAllReduce.create');
}

/** True if a rank has said nothing of how sparse all-reduces are to be made. */
export function isSilent(options: ToldOptions): boolean {
  return Object.values(options).every((value) => value === undefined);
}

/** Fails with WL_INVALID_ARGUMENT. */
export function sparsePlan(group: RankGroup, options: ToldOptions): SparsePlan {
  const { blockSize = DEFAULT_BLOCK_SIZE, slots = DEFAULT_SLOTS } = options;
  requireInteger('blockSize', blockSize, { min: BLOCK_UNIT, max: MAX_BLOCK_SIZE, unit: BLOCK_UNIT });
  requireInteger('slots', slots, { min: 1, max: MAX_SLOTS, unit: 1 });
  const roles = rolesOf(group, options);
  const fanIn = fanInOf(roles, options);
  const usual = DEFAULT_MESSAGE_SIZE[hasBothRoles(roles) ? 'bothRoles' : 'oneRole'];
  const lanes = Math.max(1, Math.min(MAX_LANES, Math.floor(usual / blockSize)));
  const { messageSize = lanes * blockSize } = options;
  requireInteger('messageSize', messageSize, { min: blockSize, max: blockSize * MAX_LANES, unit: blockSize });
  return { ...roles, fanIn, shape: { blockSize, lanes: messageSize / blockSize, slots } };
}

/** True if a worker aggregates as well. */
export function hasBothRoles({ workers, aggregators }: SparseRoles): boolean {
  return workers.some((rank) => aggregators.includes(rank));
}

/** True if aggregators send to aggregators. */
export function isTree({ workers, fanIn }: Pick<SparsePlan, 'workers' | 'fanIn'>): boolean {
  return fanIn < workers.length;
}

function fanInOf({ workers, aggregators }: SparseRoles, { fanIn = MAX_FAN_IN }: ToldOptions): number {
  requireInteger('fanIn', fanIn, { min: 2, max: MAX_FAN_IN, unit: 1 });
  const needed = nodesNeeded(workers.length, fanIn);
  if (needed <= aggregators.length) return fanIn;
  const expected = `${needed} aggregators or more for ${workers.length} workers, or a larger one; there are ${aggregators.length}`;
  throw invalidArgument('fanIn', fanIn, expected);
}

function rolesOf(group: RankGroup, options: ToldOptions): SparseRoles {
  const all = [...group.ranks.keys()];
  const started = startedAggregators(group);
  // Before they stand for the aggregators, in whose name they would be refused.
  if (options.workers !== undefined) requireRanks('workers', options.workers, group.size);
  const aggregators = options.aggregators ?? (started.length > 0 ? started : (options.workers ?? all));
  requireRanks('aggregators', aggregators, group.size);
  const others = all.filter((rank) => !aggregators.includes(rank));
  const workers = options.workers ?? (others.length > 0 ? others : all);
  const idle = all.find((rank) => !workers.includes(rank) && !aggregators.includes(rank));
  if (idle === undefined) {
    return { workers: ascending(workers), aggregators: ascending(aggregators) };
  }
  throw invalidArgument('workers', workers, `rank ${idle} among them, or among the aggregators`);
}

function ascending(ranks: readonly number[]): number[] {
  return ranks.toSorted((a, b) => a - b);
}

/** Ranks of the group that the launcher has started as aggregators. */
function startedAggregators({ ranks, settings }: RankGroup): number[] {
  const started = settings.aggregators
    .split(',')
    .filter((word) => word !== '')
    .map(Number);
  return ranks.flatMap((worldRank, rank) => (started.includes(worldRank) ? [rank] : []));
}

interface Bounds {
  readonly min: number;
  readonly max: number;
  readonly unit: number;
}

function requireInteger(name: string, value: unknown, { min, max, unit }: Bounds): void {
  const isRight = Number.isInteger(value) && (value as number) % unit === 0;
  if (isRight && (value as number) >= min && (value as number) <= max) return;
  const what = unit === 1 ? 'an integer' : `a multiple of ${unit}`;
  throw invalidArgument(name, value, `${what} from ${min} to ${max}`);
}

function requireRanks(name: string, ranks: unknown, size: number): void {
  const isRank = (rank: unknown): boolean => Number.isInteger(rank) && (rank as number) >= 0 && (rank as number) < size;
  const isRight = Array.isArray(ranks) && ranks.length > 0 && ranks.every(isRank);
  if (isRight && new Set(ranks).size === ranks.length) return;
  throw invalidArgument(name, ranks, `one or more ranks of the group, each once, 0 to ${size - 1}`);
}
