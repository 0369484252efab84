// One way to compute a block, run and measured: the time of its phases, what they move, the load, and the output.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { median } from '../../core/quantile.ts';
import { type ScaledRows, Tensor } from '../../device/tensor.ts';
import { EpBuffer } from '../../ep/buffer/ep-buffer.ts';
import type { DispatchResult, RowsLike } from '../../ep/buffer/call-arguments.ts';
import type { CombinePrecision } from '../../ep/across-hosts/network-size.ts';
import { EPAll2AllLayer } from '../../ep/layer/ep-all2all-layer.ts';
import type { LayerDispatchResult } from '../../ep/layer/layer-engine.ts';
import type { World } from '../../world/world.ts';
import { type BlockShare, largestTokenShare } from './block-share.ts';
import type { MoeBlock } from './moe-block.ts';
import type { MoeDevice, MoeEngine } from './moe-engine.ts';

/** What carries the tokens. */
export const moeDispatchers = ['buffer', 'all2all'] as const;

export interface MeasureOptions extends ForwardOptions {
  readonly dispatcher: (typeof moeDispatchers)[number];
  /** Timed passes. */
  readonly repeat: number;
}

/** Collective. What one way to compute a block took, and its output. `block.experts` are those of the choices. */
export async function measureForward(options: MeasureOptions) {
  const { world, engine, block, share, dispatcher, repeat } = options;
  const create = dispatcher === 'buffer' ? createBufferForward : createAllToAllForward;
  await using forward = await create(options);
  const times = await timePhases(world, forward, { repeat, finish: () => engine.finish() });
  const counts = countRouting(await share.topkIdx.toHost(), { ...block, ranks: world.size });
  const load = gatherLoad(await world.allGather('moe/load', counts), dispatcher === 'buffer' ? 'rank' : 'expert');
  const phases = describePhases(forward, { ...options, times, load });
  // The median of whole passes, without waiting for all ranks between phases; memory that the ranks of the host share.
  const [forwardMs, { windowBytes }] = [times.forward, forward];
  return {
    report: { phases, forwardMs, load, windowBytes },
    /** bf16 [T, H] for this rank's tokens. */
    output: await forward.output.toHost(),
  };
}

export interface PhaseReport {
  readonly name: MoePhaseName;
  /** Median over the passes of the slowest rank's time. */
  readonly ms: number;
  /** Rows of all ranks together, as all that follows. */
  readonly rows: number;
  /** What dispatch and combine bring to their destinations, a rank's own rows included; choices and weights not. */
  readonly bytes?: number;
  readonly gigabytesPerSecond?: number;
  /** The part that comes from other ranks. */
  readonly wireBytes?: number;
  readonly wireGigabytesPerSecond?: number;
}

type PhaseFacts = Pick<ForwardOptions, 'block' | 'dtype'> & { readonly times: PhaseTimes; readonly load: MoeLoad };

function describePhases(forward: MoeForward, { times, load, block, dtype }: PhaseFacts): PhaseReport[] {
  const total = (count: (rank: MoeLoad['ranks'][number]) => number): number => sum(load.ranks.map(count));
  const received = total((rank) => rank.received);
  const fromOthers = total((rank) => rank.receivedFromOthers);
  const { hidden } = block;
  const rowBytes = { bf16: hidden * 2, fp8: hidden + 4 * Math.ceil(hidden / FP8_GROUP) };
  const rows: Readonly<Record<MoePhaseName, number>> = {
    route: block.tokens,
    quantize: block.tokens,
    dispatch: received,
    dequantize: received,
    experts: total((rank) => rank.expertRows),
    shared: block.tokens,
    combine: received,
  };
  return forward.phases.map(({ name }, index) => {
    const ms = times.phases[index]!;
    const report = { name, ms, rows: rows[name] };
    if (name !== 'dispatch' && name !== 'combine') return report;
    const perRow = rowBytes[name === 'dispatch' ? dtype : 'bf16'];
    const bytes = received * perRow;
    const wireBytes = fromOthers * perRow;
    const perSecond = (amount: number): number => amount / ms / 1e6;
    return {
      ...report,
      bytes,
      gigabytesPerSecond: perSecond(bytes),
      wireBytes,
      wireGigabytesPerSecond: perSecond(wireBytes),
    };
  });
}

// Times the phases of a forward pass: each phase begins on all ranks together and counts as long as the slowest takes.

type PhaseTimes = Awaited<ReturnType<typeof timePhases>>;

/**
 * Collective. One pass to warm up, then `repeat` passes phase by phase and as many in one go; medians, in milliseconds.
 * `finish` waits for what phases enqueued.
 */
async function timePhases(
  world: World,
  forward: MoeForward,
  { repeat, finish }: { readonly repeat: number; readonly finish: () => Promise<void> },
) {
  const runAll = async (): Promise<void> => {
    for (const phase of forward.phases) await phase.run();
    await finish();
  };
  await runAll();
  const phases: number[][] = forward.phases.map(() => []);
  const whole: number[] = [];
  for (let pass = 0; pass < repeat; pass++) {
    for (const [index, phase] of forward.phases.entries()) {
      const runOne = async (): Promise<void> => {
        await phase.run();
        await finish();
      };
      phases[index]?.push(await timeTogether(world, runOne));
    }
    whole.push(await timeTogether(world, runAll));
  }
  const everyone = await world.allGather('moe/times', [...phases, whole]);
  const slowest = [...phases, whole].map((own, index) =>
    own.map((_, pass) => Math.max(...everyone.map((rank) => rank[index]?.[pass] ?? 0))),
  );
  const medians = slowest.map(median);
  return { phases: medians.slice(0, -1), forward: medians.at(-1)! };
}

async function timeTogether(world: World, work: () => Promise<void>): Promise<number> {
  await world.barrier('moe/phase');
  const start = performance.now();
  await work();
  return performance.now() - start;
}

// One pass of a MoE block over all ranks, as a list of phases that can be timed one by one.

type MoePhaseName = 'route' | 'quantize' | 'dispatch' | 'dequantize' | 'experts' | 'shared' | 'combine';

/** A phase may end on GPUs while its work is still enqueued; MoeEngine.finish() waits for that. */
interface MoePhase {
  readonly name: MoePhaseName;
  run(): void | Promise<void>;
}

/** The phases must run in order, on all ranks; dispatch and combine are collective. */
interface MoeForward extends AsyncDisposable {
  readonly phases: readonly MoePhase[];
  /** bf16 [T, H]: the output for this rank's tokens, after the last phase. */
  readonly output: Tensor<'bf16'>;
  /** Shared memory that this rank contributes, in bytes. */
  readonly windowBytes: number;
}

/** The form in which rows travel to the experts: as they are, or as fp8 e4m3 with a scale per 128 columns. They return as bf16. */
export type MoeRowDtype = 'bf16' | 'fp8';

interface ForwardOptions {
  readonly world: World;
  readonly device: MoeDevice;
  readonly engine: MoeEngine;
  readonly block: MoeBlock;
  readonly share: BlockShare;
  readonly dtype: MoeRowDtype;
  readonly combinePrecision: CombinePrecision;
}

/** What dispatch has brought last; its handle is disposed before the next one and at the end. */
class Arrivals<Result extends { readonly handle: { close(): void } }> implements Disposable {
  #last: Result | undefined;

  get last(): Result {
    if (this.#last === undefined) throw new WeftlineError('WL_INTERNAL', 'A phase ran before dispatch');
    return this.#last;
  }

  async take(dispatch: () => Promise<Result>): Promise<void> {
    this[Symbol.dispose]();
    this.#last = await dispatch();
  }

  [Symbol.dispose](): void {
    this.#last?.handle.close();
    this.#last = undefined;
  }
}

/** The first phase of a block whose file has a gate instead of expert ids. */
function routePhase({ route }: BlockShare): readonly MoePhase[] {
  return route === undefined ? [] : [{ name: 'route', run: route }];
}

// A MoE block through EpBuffer: a token travels once to each rank that holds one of its experts.

type ReceivedTokens = DispatchResult<RowsLike, Tensor<'i64'>, Tensor<'f32'>>;

/** Collective, like every phase that it returns. */
async function createBufferForward(options: ForwardOptions): Promise<MoeForward> {
  const { world, device, engine, block, share, dtype, combinePrecision } = options;
  const { x, topkIdx, topkWeights, experts } = share;
  const buffer = await EpBuffer.create(world, device, {
    maxTokensPerRank: Math.max(1, largestTokenShare(block.tokens, world.size)),
    hidden: block.hidden,
    numExperts: block.experts,
    maxTopk: block.topk,
    combinePrecision,
  });
  const fp8 = dtype === 'fp8' ? emptyScaledRows(device, x) : undefined;
  const output = device.empty('bf16', x.shape);
  const arrivals = new Arrivals<ReceivedTokens>();

  const quantize: MoePhase = { name: 'quantize', run: () => fp8 && engine.quantizeRows(x, fp8) };
  const dispatch: MoePhase = {
    name: 'dispatch',
    run: () => arrivals.take(() => buffer.dispatch({ x: fp8 ?? x, topkIdx, topkWeights })),
  };
  const dequantize: MoePhase = {
    name: 'dequantize',
    run() {
      const { recvX, handle } = arrivals.last;
      // The rows that combine reads are free until the experts write them.
      if (!(recvX instanceof Tensor)) engine.dequantizeRows(recvX, buffer.combineInput(handle));
    },
  };
  const compute: MoePhase = {
    name: 'experts',
    run() {
      const { recvX, recvTopkIdx, recvTopkWeights, numRecvTokensPerExpert: rowsPerExpert, handle } = arrivals.last;
      const out = buffer.combineInput(handle);
      const rows = recvX instanceof Tensor ? recvX : out;
      const input = { x: rows, topkIdx: recvTopkIdx, topkWeights: recvTopkWeights, rowsPerExpert };
      experts.forwardTokens(input, out);
    },
  };
  const combine: MoePhase = {
    name: 'combine',
    async run() {
      const { handle } = arrivals.last;
      const bias = shared === undefined ? {} : { bias: output };
      await buffer.combine({ x: buffer.combineInput(handle), handle, ...bias, out: output });
    },
  };
  const { shared } = share;
  const computeShared: MoePhase = {
    name: 'shared',
    // The output is where combine() adds its sums.
    run: () => shared?.experts.forwardExperts({ ...shared, x, rowsPerExpert: [x.shape[0] ?? 0] }, output),
  };

  const arrive = fp8 ? [quantize, dispatch, dequantize] : [dispatch];
  return {
    phases: [...routePhase(share), ...arrive, compute, ...(shared === undefined ? [] : [computeShared]), combine],
    output,
    windowBytes: buffer.size.bytes + (buffer.size.network?.bytes ?? 0),
    async [Symbol.asyncDispose]() {
      arrivals[Symbol.dispose]();
      for (const tensor of [output, ...(fp8 ? [fp8.data, fp8.scales] : [])]) tensor.close();
      await buffer[Symbol.asyncDispose]();
    },
  };
}

function emptyScaledRows(device: MoeDevice, { shape: [tokens = 0, hidden = 0] }: Tensor<'bf16'>): ScaledRows {
  return {
    data: device.empty('fp8e4m3', [tokens, hidden]),
    scales: device.empty('f32', [tokens, Math.ceil(hidden / FP8_GROUP)]),
  };
}

// A MoE block through EPAll2AllLayer: a token arrives once for each of its experts, the rows of an expert together.

type ReceivedRows = LayerDispatchResult<'bf16', Tensor<'f32'>>;

/** Collective, like every phase that it returns. */
async function createAllToAllForward(options: ForwardOptions): Promise<MoeForward> {
  const { world, device, block, share, dtype, combinePrecision } = options;
  if (dtype !== 'bf16') throw invalidArgument('dtype', dtype, '"bf16" with dispatcher "all2all"');
  const { x, topkIdx, topkWeights, experts } = share;
  requireNoSharedExpert('all2all', block);
  const layer = await EPAll2AllLayer.create(world, device, {
    maxTokensPerRank: Math.max(1, largestTokenShare(block.tokens, world.size)),
    hidden: block.hidden,
    maxTopk: block.topk,
    numExperts: block.experts,
    combinePrecision,
  });
  const output = device.empty('bf16', x.shape);
  const arrivals = new Arrivals<ReceivedRows>();
  const dispatch: MoePhase = {
    name: 'dispatch',
    run: () => arrivals.take(() => layer.dispatch({ x, topkIdx, topkWeights })),
  };
  const compute: MoePhase = {
    name: 'experts',
    run() {
      const { recvX, recvTopkWeights: weights, handle } = arrivals.last;
      const input = { x: recvX, rowsPerExpert: handle.numRecvTokensPerExpert, weights };
      experts.forwardExperts(input, layer.combineInput(handle));
    },
  };
  const combine: MoePhase = {
    name: 'combine',
    async run() {
      const { handle } = arrivals.last;
      await layer.combine({ x: layer.combineInput(handle), handle, out: output });
    },
  };

  return {
    phases: [...routePhase(share), dispatch, compute, combine],
    output,
    get windowBytes() {
      return layer.context.windowBytes;
    },
    async [Symbol.asyncDispose]() {
      arrivals[Symbol.dispose]();
      output.close();
      await layer.close();
    },
  };
}

/** The layer adds up what experts give, and nothing else. Fails with WL_INVALID_ARGUMENT. */
export function requireNoSharedExpert(dispatcher: string, { sharedIntermediate }: MoeBlock): void {
  if (sharedIntermediate === undefined) return;
  throw invalidArgument('dispatcher', dispatcher, '"buffer" for a block with a shared expert, which its combine adds');
}

// How the routing of all tokens loads experts and ranks.

/** What one rank knows of the routing: counts over its own tokens. */
interface RoutingCounts {
  readonly tokens: number;
  /** [E] choices of each expert. */
  readonly perExpert: readonly number[];
  /** [ranks] tokens that have at least one expert there. */
  readonly tokensTo: readonly number[];
}

export type MoeLoad = ReturnType<typeof gatherLoad>;

/** Counts over expert ids [T, K], -1 for none. */
export function countRouting(
  topkIdx: BigInt64Array,
  shape: { readonly topk: number; readonly experts: number; readonly ranks: number },
): RoutingCounts {
  const { topk, experts, ranks } = shape;
  const perExpert = Array.from({ length: experts }, () => 0);
  const tokensTo = Array.from({ length: ranks }, () => 0);
  const tokens = topkIdx.length / topk;
  for (let token = 0; token < tokens; token++) {
    const destinations = new Set<number>();
    for (const id of topkIdx.subarray(token * topk, (token + 1) * topk)) {
      const expert = Number(id);
      if (expert < 0) continue;
      perExpert[expert] = perExpert[expert]! + 1;
      destinations.add(Math.floor((expert * ranks) / experts));
    }
    for (const rank of destinations) tokensTo[rank] = tokensTo[rank]! + 1;
  }
  return { tokens, perExpert, tokensTo };
}

/** The load of all from the counts of each rank. With 'expert' rows travel once per token and expert, else once per token and rank. */
export function gatherLoad(counts: readonly RoutingCounts[], rowsPer: 'rank' | 'expert') {
  const ranks = counts.length;
  const experts = counts[0]?.perExpert.map((_, expert) => sum(counts.map((each) => each.perExpert[expert]!)));
  const perRank = (experts?.length ?? 0) / ranks;
  const loads = counts.map((own, rank) => {
    const local = (each: RoutingCounts): number => sum(each.perExpert.slice(rank * perRank, (rank + 1) * perRank));
    const sent = (each: RoutingCounts): number => (rowsPer === 'expert' ? local(each) : each.tokensTo[rank]!);
    const received = sum(counts.map(sent));
    return {
      rank,
      /** Tokens that start here. */
      tokens: own.tokens,
      /** Rows that dispatch brings here, and how many of them come from other ranks. */
      received,
      receivedFromOthers: received - sent(own),
      /** Rows that the experts here compute: one per token and expert. */
      expertRows: sum(counts.map(local)),
    };
  });
  /** `experts`: [E] rows of each expert. */
  return { experts: experts ?? [], ranks: loads };
}

/** Mean, first smallest and first largest of some values. */
export function spread(values: readonly number[]) {
  const at = (value: number) => ({ index: values.indexOf(value), value });
  return { mean: sum(values) / values.length, least: at(Math.min(...values)), most: at(Math.max(...values)) };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
