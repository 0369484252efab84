// Runs random EpLowLatency cases in lockstep on all ranks, bit for bit against the reference: argv = runs, seed, most
// tokens of a rank (default 12).
import assert from 'node:assert/strict';
import fc from '../../support/fast-check.ts';
import type { Tensor } from 'weftline';
import {
  EpLowLatency,
  type LowLatencyDispatchArguments,
  type LowLatencyDispatchResult,
  type LowLatencyRows,
} from 'weftline/ep';
import { referenceLowLatencyCombine, referenceLowLatencyDispatch, type ReferenceInput } from 'weftline/reference';
import { join } from 'weftline/world';
import { bytesInUse, openTestDevice, testGroup } from '../support/test-device.ts';
import { flat, flat16 } from './ep-buffer-case.ts';
import { random, rows } from './ep-case.ts';
import { configOf, inputOf, lowLatencyCase, type LowLatencyCase, type LowLatencyRound } from './low-latency-case.ts';
import type { ReferenceLowLatencyReceived, ReferenceLowLatencyRow } from '#lib/reference/low-latency.js';

const [runs, seed, mostTokens = '12'] = process.argv.slice(2);
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
const n = group.size;

/** What one round passes in, and what the reference says of it. */
interface Prepared {
  readonly round: LowLatencyRound;
  readonly inputs: readonly ReferenceInput[];
  readonly received: readonly ReferenceLowLatencyReceived[];
  readonly args: LowLatencyDispatchArguments;
  readonly tensors: Tensor[];
  /** Rows of the experts that it counts. */
  readonly counted: Tensor<'i32'> | undefined;
}

async function prepare(of: LowLatencyCase, round: LowLatencyRound): Promise<Prepared> {
  const inputs = Array.from({ length: n }, (_, rank) => inputOf(of, round, rank, n));
  const { scales, topk } = round;
  const maxTokensPerExpert = of.capacity || undefined;
  const numExperts = of.expertsPerRank * n;
  const received = referenceLowLatencyDispatch(inputs, { numExperts, scales, maxTokensPerExpert });
  const mine = inputs[group.rank] as ReferenceInput;
  const tokens = mine.x.length;
  const ids = mine.topkIdx.flat();
  const x = await device.tensor('bf16', [tokens, of.hidden], flat16(mine.x));
  const topkIdx = round.wideIndex
    ? await device.tensor('i64', [tokens, topk], BigInt64Array.from(ids, BigInt))
    : await device.tensor('i32', [tokens, topk], Int32Array.from(ids));
  const goesWithRows = of.mode !== 'choices' && mine.topkWeights !== undefined;
  const topkWeights = goesWithRows ? await device.tensor('f32', [tokens, topk], flat(mine.topkWeights)) : undefined;
  const isExpertMajor = of.mode !== 'rank-major';
  const out = isExpertMajor && round.ownOut ? outOf(of, round) : undefined;
  const counted =
    isExpertMajor && round.stats
      ? await device.tensor('i32', [of.expertsPerRank], new Int32Array(of.expertsPerRank).fill(5))
      : undefined;
  const waitStats = round.stats ? await device.tensor('i64', [n], new BigInt64Array(n)) : undefined;
  const outs = out === undefined ? [] : 'data' in out ? [out.data, out.scales] : [out];
  return {
    round,
    inputs,
    received,
    counted,
    tensors: [x, topkIdx, topkWeights, counted, waitStats, ...outs].filter((tensor) => tensor !== undefined),
    args: {
      x,
      topkIdx,
      ...(topkWeights && { topkWeights }),
      ...(scales === undefined ? { dtype: 'bf16' } : { scales }),
      ...(out && { out }),
      ...(counted && { cumulativeLocalExpertRecvStats: counted }),
      ...(waitStats && { waitStats }),
    },
  };
}

function outOf(of: LowLatencyCase, { scales }: LowLatencyRound): LowLatencyRows {
  const capacity = of.capacity || n * (configOf(of, n).maxTokensPerRank ?? 0);
  const shape = [of.expertsPerRank, capacity, of.hidden];
  if (scales === undefined) return device.empty('bf16', shape);
  const groups = Math.ceil(of.hidden / 128);
  const words = scales === 'ue8m0' ? Math.ceil(groups / 4) : groups;
  const data = device.empty('fp8e4m3', shape);
  return { data, scales: device.empty(scales === 'ue8m0' ? 'i32' : 'f32', [of.expertsPerRank, words, capacity]) };
}

async function compareReceived(
  of: LowLatencyCase,
  prepared: Prepared,
  result: LowLatencyDispatchResult,
): Promise<void> {
  const { round, received, args, counted } = prepared;
  const want = received[group.rank] as ReferenceLowLatencyReceived;
  const isExpertMajor = of.mode !== 'rank-major';
  const blocks = isExpertMajor ? want.byExpert : want.byRank;
  const { recvX, handle } = result;
  if (args.out) assert.equal(recvX, args.out);
  assert.deepEqual(
    [...(await result.recvCount.toHost())],
    blocks.map((block) => block.length),
    'recvCount',
  );
  const tensor = 'data' in recvX ? recvX.data : recvX;
  const most = tensor.shape[1]!;
  assert.deepEqual(tensor.shape, [blocks.length, most, of.hidden]);
  const data = await tensor.toHost();
  const sources = await handle.recvSrcIdx.toHost();
  const scales = 'data' in recvX ? await recvX.scales.toHost() : undefined;
  const words = scales && new Uint32Array(scales.buffer, scales.byteOffset, scales.length);
  const perRow = 'data' in recvX ? recvX.scales.shape[1]! : 0;
  for (const [block, blockRows] of blocks.entries()) {
    for (const [at, row] of blockRows.entries()) {
      const from = (block * most + at) * of.hidden;
      assert.deepEqual([...data.subarray(from, from + of.hidden)], row.data, `row ${at} of block ${block}`);
      const got = Array.from({ length: perRow }, (_, word) => words?.[(block * perRow + word) * most + at]);
      assert.deepEqual(got, row.scales, `scales of row ${at} of block ${block}`);
    }
    const tail = Array.from({ length: most - blockRows.length }, () => -1);
    const tokens = [...blockRows.map((row) => row.sourceToken), ...tail];
    assert.deepEqual([...sources.subarray(block * most, (block + 1) * most)], tokens, 'recvSrcIdx');
  }
  if (isExpertMajor) {
    assert.deepEqual([...((await result.dropped?.toHost()) ?? [])], want.dropped, 'dropped');
    assert.deepEqual([...((await handle.recvRange?.toHost()) ?? [])], rangesOf(want.byExpert), 'recvRange');
    const all = want.byExpert.map((block, expert) => 5 + block.length + want.dropped[expert]!);
    if (counted) assert.deepEqual([...(await counted.toHost())], all, 'statistics');
    return;
  }
  const cells = (value: (row: ReferenceLowLatencyRow) => readonly number[], rest: number): number[] =>
    want.byRank.flatMap((block) => [
      ...block.flatMap(value),
      ...Array.from({ length: (most - block.length) * round.topk }, () => rest),
    ]);
  assert.equal(result.recvTopkIdx?.dtype, round.wideIndex ? 'i64' : 'i32');
  assert.deepEqual(
    [...((await result.recvTopkIdx?.toHost()) ?? [])].map(Number),
    cells((row) => row.topkIdx, -1),
  );
  assert.equal(result.recvTopkWeights !== undefined, round.weights);
  if (!round.weights) return;
  assert.deepEqual(
    [...((await result.recvTopkWeights?.toHost()) ?? [])],
    cells((row) => row.topkWeights, 0),
  );
}

function rangesOf(byExpert: ReferenceLowLatencyReceived['byExpert']): number[] {
  return byExpert.flatMap((block) =>
    Array.from({ length: n }, (_, rank) => {
      const count = block.filter((row) => row.sourceRank === rank).length;
      return [block.filter((row) => row.sourceRank < rank).length, count];
    }).flat(),
  );
}

/** Begins a combine of random rows; returns the rows of all ranks and how to end it. */
async function beginCombine(
  ll: EpLowLatency,
  of: LowLatencyCase,
  prepared: Prepared,
  result: LowLatencyDispatchResult,
) {
  const { round, received, inputs } = prepared;
  const outputs = received.map(({ byExpert, byRank }, rank) => {
    const next = random(round.seed + 77 + rank);
    return (of.mode === 'rank-major' ? byRank : byExpert).map((block) => rows(block.length, of.hidden, next));
  });
  const shape = ('data' in result.recvX ? result.recvX.data : result.recvX).shape;
  const zeroCopy = round.zeroCopy && of.mode !== 'rank-sums';
  const y = zeroCopy ? await ll.combineInput(result.handle) : device.empty('bf16', shape);
  const most = shape[1]!;
  const values = await y.toHost();
  for (const [block, blockRows] of (outputs[group.rank] ?? []).entries()) {
    values.set(flat16(blockRows), block * most * of.hidden);
  }
  await y.fromHost(values);
  const mine = inputs[group.rank] as ReferenceInput;
  const weights = await device.tensor('f32', [mine.x.length, round.topk], new Float32Array(mine.x.length * round.topk));
  if (of.mode === 'choices') await weights.fromHost(flat(mine.topkWeights));
  const out = round.ownOut ? device.empty('bf16', [mine.x.length, of.hidden]) : undefined;
  const args = {
    x: y,
    handle: result.handle,
    zeroCopy,
    ...(of.mode === 'choices' && { topkWeights: weights }),
    ...(out && { out }),
  };
  const check = async (combinedX: Tensor<'bf16'>): Promise<void> => {
    if (out) assert.equal(combinedX, out);
    const got = await combinedX.toHost();
    const { hosts } = group.topology;
    const { combinePrecision } = of;
    for (let token = 0; token < mine.x.length; token++) {
      const at = { rank: group.rank, token, hidden: of.hidden };
      const want = referenceLowLatencyCombine(
        { inputs, received, outputs, mode: of.mode, hosts, combinePrecision },
        at,
      );
      assert.deepEqual([...got.subarray(token * of.hidden, (token + 1) * of.hidden)], want, `combined row ${token}`);
    }
    if (!zeroCopy) y.close();
    weights.close();
    combinedX.close();
  };
  return { args, check };
}

async function runOne(ll: EpLowLatency, of: LowLatencyCase, round: LowLatencyRound): Promise<void> {
  const prepared = await prepare(of, round);
  const result = await ll.dispatch({ ...prepared.args, returnRecvHook: false });
  await compareReceived(of, prepared, result);
  const { args, check } = await beginCombine(ll, of, prepared, result);
  await check((await ll.combine({ ...args, returnRecvHook: false })).combinedX);
  for (const tensor of prepared.tensors) tensor.close();
}

/** Two dispatches and two combines under way at once; their hooks in either order. */
async function runPair(ll: EpLowLatency, of: LowLatencyCase, pair: readonly LowLatencyRound[]): Promise<void> {
  const order = of.laterFirst ? [1, 0] : [0, 1];
  const prepared = await Promise.all(pair.map((round) => prepare(of, round)));
  const sent = [];
  for (const { args } of prepared) sent.push(await ll.dispatch({ ...args, returnRecvHook: true }));
  const results: LowLatencyDispatchResult[] = [];
  for (const at of order) results[at] = await sent[at]!.hook();
  for (const at of [0, 1]) await compareReceived(of, prepared[at]!, results[at]!);
  const combines = [];
  for (const at of [0, 1]) {
    const { args, check } = await beginCombine(ll, of, prepared[at]!, results[at]!);
    combines.push({ check, ...(await ll.combine({ ...args, returnRecvHook: true })) });
  }
  const sums: Tensor<'bf16'>[] = [];
  for (const at of order) sums[at] = (await combines[at]!.hook()).combinedX;
  for (const at of [0, 1]) await combines[at]!.check(sums[at]!);
  for (const tensor of prepared.flatMap(({ tensors }) => tensors)) tensor.close();
}

/** On GPUs all multiprocessors, one or few. */
function smsOf({ hidden }: LowLatencyCase): number {
  return device.kind === 'cpu' ? 0 : [0, 1, 5][(hidden / 8) % 3]!;
}

const shape = { ranks: n, most: Number(mostTokens), hosts: group.topology.hosts.length };
const property = fc.asyncProperty(lowLatencyCase(device, shape), async (of) => {
  let failure: string | null = null;
  try {
    await using ll = await EpLowLatency.create(group, device, { ...configOf(of, n), numSms: smsOf(of) });
    for (const round of of.rounds) await runOne(ll, of, round);
    for (const pair of of.hooked) await runPair(ll, of, pair);
    for (const round of of.rounds) await runOne(ll, of, round);
    await group.barrier('checked');
  } catch (error) {
    failure = error instanceof Error ? (error.stack ?? error.message) : String(error);
    await group.barrier('checked');
  }
  // All ranks fail together, so that all try the same smaller cases next.
  const failures = await group.allGather('failure', failure);
  const rank = failures.findIndex((one) => one !== null);
  if (rank !== -1) throw new Error(`rank ${rank}: ${failures[rank]}`);
});
await fc.assert(property, { numRuns: Number(runs), seed: Number(seed) });
const left = bytesInUse(device) ?? 0;
if (left > 0) throw new Error(`${left} bytes of the device's memory were not given back`);
console.log(`job ${world.filePrefix}, rank ${world.rank}: ${runs} cases agree with the reference`);
