// The expert-parallel bench on CPU ranks of one host: EpBuffer and EPAll2AllLayer beside bare copies of the same rows.
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { DeepEpConfig, type EpBuffer, type RowsLike } from '../../../ep/index.ts';
import { isDeepEpRankCount } from '../../../ep/buffer/deepep-sizes.ts';
import type { World } from '../../../world/index.ts';
import {
  type BenchCase,
  type BenchGroup,
  measureInTurn,
  monotonicMicroseconds,
  type Progress,
  type Rounds,
  type Samples,
  summarize,
  summarizeDifferences,
  summarizeRates,
  summarizeRatios,
} from '../harness.ts';
import { recordRun } from '../machine.ts';
import { type LayerCalls, makeBufferCalls, makeLayerCalls } from './ep-calls.ts';
import {
  requireAddressSpace,
  checkEpWorkload,
  combineRowBytes,
  dispatchRowBytes,
  type EpWorkload,
  countRows,
  planCopies,
  type RowCounts,
  shareTokens,
  type TrafficCopyPlan,
} from './ep-workload.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  time: 'Microseconds from the begin of the first rank to the end of the last one, after a barrier.',
  logical: 'Bytes of every received row of all ranks, own rows included (fp8 rows with their scales).',
  wire: 'Bytes of rows that came from another rank.',
  ceiling:
    'The same processes copy each (token, destination rank) row once, token-major, to the place where dispatch puts it.',
  ratioToCeiling:
    'Logical bandwidth of the case over that of the ceiling in the same iteration; combine reads what the ceiling wrote.',
  ratioToCopyBack:
    'Of combine: bandwidth over that of copy back in the same iteration, which copies each of the same rows from the windows over the other rows of its token in a local tensor.',
  beyondCopying: 'Time of the case less the time that the ceiling of the same iteration takes for as many bytes.',
  placement:
    'Taken on rank 0 before and after. On virtual machines the round trip between two cores may jump, and copies between processes with it: compare runs with similar values only.',
} as const;

/** What one case moves in one iteration, over all ranks. */
export interface CaseTraffic {
  readonly name: string;
  readonly description: string;
  readonly rows: RowCounts;
  readonly rowBytes: number;
  /** The name of the case that copies a combine's rows back. */
  readonly copyBack?: string;
}

interface EpCase extends BenchCase, CaseTraffic {}

export interface EpBenchOptions {
  readonly workload: EpWorkload;
  readonly iterations: number;
  readonly warmup: number;
  /** False leaves EPAll2AllLayer out, which needs more memory than all the rest. */
  readonly layer: boolean;
}

export type EpBenchReport = NonNullable<Awaited<ReturnType<typeof runEpBench>>>;

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with
 * WL_MEMORY or WL_SHARED_MEMORY when the windows do not fit, and with WL_CHECK when a rank's rows are not as expected.
 */
export async function runEpBench(world: World, device: CpuDevice, options: EpBenchOptions, progress?: Progress) {
  const { workload, iterations, warmup } = options;
  checkEpWorkload(workload);
  requireAddressSpace(workload, options.layer, device.space.limit);
  await using made = await makeCases(world, device, workload, options.layer);
  const { group, cases } = made;
  const head = { schema: 'weftline.bench.ep/1' as const, method, workload, warmup, iterations };
  return await recordRun(world, head, async () => ({
    cases: summarizeCases(await timeSpans(group, cases, { warmup, iterations, progress }), cases, world.size),
    memory: {
      /** Address space of one rank that the windows of all ranks of its host take. */
      bufferWindowsBytes: made.bufferWindowsBytes,
      layerWindowsBytes: made.layerWindowsBytes,
      /** Everything that rank 0 holds in its device memory while the cases run, windows included. */
      deviceBytes: device.space.used,
      /** What DeepEP's own size hint asks for in the same configuration, per rank. */
      deepEpHintBytes: deepEpHint(workload),
    },
  }));
}

/** DeepEP makes one buffer for both directions, so the larger hint counts; undefined for rank counts it cannot serve. */
function deepEpHint(workload: EpWorkload): number | undefined {
  const { ranks } = workload;
  if (!isDeepEpRankCount(ranks)) return undefined;
  const hints = (['dispatch', 'combine'] as const).map((operation) =>
    DeepEpConfig.forRanks(operation, ranks).getNvlBufferSizeHint(combineRowBytes(workload), ranks),
  );
  return Math.max(...hints);
}

export type SpanSamples = Samples<'begin' | 'end'>;

/** Collective. When each rank begins and ends, on one time line. */
export function timeSpans(
  group: BenchGroup,
  cases: readonly BenchCase[],
  rounds: Rounds,
  now: () => number = monotonicMicroseconds,
): Promise<SpanSamples[]> {
  return measureInTurn(group, cases, rounds, async ({ prepare, run }) => {
    await prepare?.();
    await group.barrier('bench');
    const begin = now();
    await run();
    return { begin, end: now() };
  });
}

/** The first case is the ceiling that the others are compared with. */
export function summarizeCases(samples: readonly SpanSamples[], cases: readonly CaseTraffic[], ranks: number) {
  const times = samples.map((of) => {
    const begins = of.across('begin', (values) => Math.min(...values));
    return of.slowest('end').map((end, iteration) => end - begins[iteration]!);
  });
  /** What the case at `index` would take in each iteration for so many bytes. */
  const timesFor = (index: number, bytes: number): number[] => {
    const { rows, rowBytes } = cases[index]!;
    const moved = rows.logical * rowBytes;
    return times[index]!.map((time) => (moved === 0 ? 0 : (time * bytes) / moved));
  };
  return cases.map((moved, index) => {
    const bytes = moved.rows.logical * moved.rowBytes;
    const copying = timesFor(0, bytes);
    const back = cases.findIndex((other) => other.name === moved.copyBack);
    return {
      ...summarizeMoved(moved, times[index]!, ranks),
      startSkewMicroseconds: summarize(
        samples[index]!.across('begin', (values) => Math.max(...values) - Math.min(...values)),
      ),
      ratioToCeiling: summarizeRatios(copying, times[index]!),
      ...(back !== -1 && { ratioToCopyBack: summarizeRatios(timesFor(back, bytes), times[index]!) }),
      beyondCopyingMicroseconds: summarizeDifferences(times[index]!, copying),
    };
  });
}

/** What any case moved and how quickly; rates of all ranks together. */
export function summarizeMoved(
  { name, description, rows, rowBytes }: CaseTraffic,
  times: readonly number[],
  ranks: number,
) {
  const bytes = rows.logical * rowBytes;
  return {
    name,
    description,
    logicalRows: rows.logical,
    wireRows: rows.wire,
    rowBytes,
    microseconds: summarize(times),
    logicalGBps: summarizeRates(bytes, times),
    wireGBps: summarizeRates(rows.wire * rowBytes, times),
    logicalGBpsPerRank: summarizeRates(bytes / ranks, times),
  };
}

/** Collective. Makes buffer, layer and inputs, checks the bare copies, and dispatches once. The ceiling comes first. */
async function makeCases(world: World, device: CpuDevice, workload: EpWorkload, withLayer: boolean) {
  const calls = await makeBufferCalls(world, device, workload);
  const { group, buffer, routing, bf16, x, out, writeExpertOutput } = calls;
  const { inRanks, counts } = await shareTokens(world, routing.topkIdx, workload);
  const plan = planCopies(inRanks, counts, world.rank);
  const ceiling = copyThere(device, buffer, x, plan);
  await checkThere(group, receivedWords(device, calls.recvX), ceiling);
  const sources = Uint32Array.from(plan.destinations, (rank, copy) =>
    buffer.peerRowAddress(rank, plan.rows[copy]!, 'combineRows'),
  );
  const back = copyBack(device, sources, plan.tokens, out);
  await checkBack(group, { sent: bf16, out }, copyThere(device, buffer, bf16, plan), back);
  const sent = { rows: countRows(counts), rowBytes: dispatchRowBytes(workload) };
  const returned = { rows: sent.rows, rowBytes: combineRowBytes(workload) };
  const cases: EpCase[] = [
    {
      ...sent,
      name: 'copy ceiling',
      description: 'each row copied once to where dispatch puts it',
      run: ceiling,
    },
    { ...sent, ...calls.dispatch },
    { ...sent, ...calls.dispatchCached },
    {
      ...returned,
      name: 'copy back',
      description: 'each row copied once from where combine reads it, over the other rows of its token',
      prepare: writeExpertOutput,
      run: back,
    },
    { ...returned, ...calls.combine, copyBack: 'copy back' },
    { ...returned, ...calls.combineStaged, copyBack: 'copy back' },
  ];
  const layer = withLayer ? await makeLayerCalls({ ...calls, world, device, workload }) : undefined;
  if (layer !== undefined)
    cases.push(...(await layerCases(layer, { group, device, sent: bf16, out, rowBytes: returned.rowBytes })));
  return {
    group,
    cases,
    bufferWindowsBytes: buffer.size.addressSpaceBytes,
    layerWindowsBytes: layer?.layer.context.outputSize.addressSpaceBytes,
    async [Symbol.asyncDispose](): Promise<void> {
      await layer?.[Symbol.asyncDispose]();
      await calls[Symbol.asyncDispose]();
    },
  };
}

/** Collective. Rows are always bf16, one per (token, expert). */
async function layerCases(
  { layer, pairs, dispatch, combine, descriptor }: LayerCalls,
  of: {
    readonly group: BenchGroup;
    readonly device: CpuDevice;
    readonly sent: Tensor<'bf16'>;
    readonly out: Tensor<'bf16'>;
    readonly rowBytes: number;
  },
): Promise<EpCase[]> {
  // The tables say where combine finds the rows of this rank's tokens, which stays true: neither routing nor windows change.
  const { rowTable, rankTable } = descriptor().tables;
  const [places, ranks] = [rowTable.view(), rankTable.view()];
  const cells = [...ranks.keys()].filter((cell) => ranks[cell]! >= 0);
  const sources = Uint32Array.from(cells, (cell) => layer.context.peerRowAddress(ranks[cell]!, places[cell]!));
  const tokens = Int32Array.from(cells, (cell) => Math.floor(cell / layer.config.maxTopk));
  const back = copyBack(of.device, sources, tokens, of.out);
  await checkBack(of.group, of, dispatch.run, back);
  const moved = { rows: pairs, rowBytes: of.rowBytes };
  return [
    { ...moved, ...dispatch },
    {
      ...moved,
      name: 'layer copy back',
      description: 'each row copied once from where the layer combines it, over the other rows of its token',
      run: back,
    },
    { ...moved, ...combine, copyBack: 'layer copy back' },
  ];
}

/**
 * The ceiling that every case is compared with: the same processes copy the same rows between the same windows, and do
 * nothing else. Addresses are worked out here, so that the timed part consists of copies only.
 */
function copyThere(device: CpuDevice, buffer: EpBuffer, x: RowsLike, plan: TrafficCopyPlan): () => void {
  const { copyBytes } = device.kernels;
  const { hidden } = buffer.config;
  const [data, scales] = 'scales' in x ? [x.data, x.scales] : [x, undefined];
  const rowBytes = data.dtype === 'bf16' ? hidden * 2 : hidden;
  const scaleBytes = (scales?.shape[1] ?? 0) * 4;
  // Scales go behind the fp8 rows, into the part of the region that only bf16 rows use.
  const scalesStart = buffer.size.maxRecvTokens * rowBytes;
  const columns = scales === undefined ? 2 : 4;
  const addresses = new Uint32Array(plan.tokens.length * columns);
  for (const [copy, token] of plan.tokens.entries()) {
    const row = plan.rows[copy]!;
    const region = buffer.peerRowAddress(plan.destinations[copy]!, 0);
    addresses.set([region + row * rowBytes, data.address + token * rowBytes], copy * columns);
    if (scales === undefined) continue;
    const target = region + scalesStart + row * scaleBytes;
    addresses.set([target, scales.address + token * scaleBytes], copy * columns + 2);
  }
  return () => {
    for (let at = 0; at < addresses.length; at += columns) {
      copyBytes(addresses[at]!, addresses[at + 1]!, rowBytes);
      if (columns === 4) copyBytes(addresses[at + 2]!, addresses[at + 3]!, scaleBytes);
    }
  };
}

/**
 * Collective. Makes sure that the ceiling does all of what it stands for: after a dispatch, with the received rows wiped
 * out, it must bring back the same bytes. Fails with WL_CHECK.
 */
async function checkThere(group: BenchGroup, received: Uint32Array, ceiling: () => void): Promise<void> {
  const expected = checksum(received);
  received.fill(0);
  await group.barrier('ceiling-wiped');
  ceiling();
  await group.barrier('ceiling-copied');
  if (checksum(received) === expected) return;
  throw new WeftlineError('WL_CHECK', `The copy ceiling left other rows at rank ${group.rank} than dispatch does`, {
    details: { rank: group.rank },
  });
}

function checksum(words: Uint32Array): number {
  let sum = 0;
  for (const word of words) sum = (Math.imul(sum, 31) + word) | 0;
  return sum;
}

/** The received rows as words, to compare them quickly. */
function receivedWords(device: CpuDevice, recvX: RowsLike): Uint32Array {
  const data = 'scales' in recvX ? recvX.data : recvX;
  const words = device.hostView('i32', data.address, data.bytes / 4);
  return new Uint32Array(words.buffer, words.byteOffset, words.length);
}

/**
 * The ceiling of combine: the same rows come back from where they lie in the windows, copied instead of summed. The rows of
 * one token are copied over one another in `out`, bf16 [T, H], since combine writes one row of them too.
 */
function copyBack(device: CpuDevice, sources: Uint32Array, tokens: Int32Array, out: Tensor<'bf16'>): () => void {
  const { copyBytes } = device.kernels;
  const rowBytes = out.bytes / out.shape[0]!;
  const targets = Uint32Array.from(tokens, (token) => out.address + token * rowBytes);
  return () => {
    for (let copy = 0; copy < sources.length; copy += 1) copyBytes(targets[copy]!, sources[copy]!, rowBytes);
  };
}

/**
 * Collective. Makes sure that the ceiling fetches the right rows: after `send`, which brings each token to its ranks,
 * every token must be back in its place. Fails with WL_CHECK.
 */
async function checkBack(
  group: BenchGroup,
  { sent, out }: { readonly sent: Tensor<'bf16'>; readonly out: Tensor<'bf16'> },
  send: () => void | Promise<void>,
  back: () => void,
): Promise<void> {
  out.view().fill(0);
  // Others may still look at what an earlier check left in their windows.
  await group.barrier('copy-back-begin');
  await send();
  await group.barrier('copy-back-sent');
  back();
  await group.barrier('copy-back-done');
  const got = out.view();
  const wrong = sent.view().findIndex((value, index) => value !== got[index]);
  if (wrong === -1) return;
  const token = Math.floor(wrong / out.shape[1]!);
  throw new WeftlineError(
    'WL_CHECK',
    `The copy-back ceiling brought another row for token ${token} of rank ${group.rank}`,
    { details: { rank: group.rank, token } },
  );
}
