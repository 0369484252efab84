// One random EpBuffer case on one rank, compared bit for bit with the reference.
import assert from 'node:assert/strict';
import { CudaDevice, type Device, fromBf16, type Tensor } from 'weftline';
import {
  type DispatchHandle,
  type DispatchResult,
  bufferSize,
  EpBuffer,
  type CallOptions,
  type RowsLike,
} from 'weftline/ep';
import { referenceCombine, referenceCombineWeights, referenceDispatch, type ReferenceInput } from 'weftline/reference';
import type { RankGroup } from 'weftline/world';
import { type TriedShapes, tryShapes } from '#lib/group/cuda-shapes.js';
import type { EpDevice } from '../support/test-device.ts';
import { caseFor, choices, type EpCase, outputRows, random, rdmaBytes, rows } from './ep-case.ts';
import type { ReferenceReceived } from '#lib/reference/ep-buffer.js';

/** Several dispatches of different shapes and kinds over one buffer, and at the end a combine of the first one again. */
export async function runBufferCase(group: RankGroup, device: EpDevice, drawn: EpCase): Promise<void> {
  const of = caseFor(device, group, drawn);
  const rounds = [of, another(of), of];
  const maxTokensPerRank = Math.max(1, ...of.tokens);
  const config = {
    maxTokensPerRank,
    hidden: of.hidden,
    numExperts: of.expertsPerRank * group.size,
    maxTopk: of.topk,
    combineRows: of.sharedRows ? 'shared' : 'separate',
    combinePrecision: of.combinePrecision,
    numSms: of.numSms,
  } as const;
  const ranksOfHosts = group.topology.hosts.map(({ length }) => length);
  const { network } = bufferSize(config, group.size, ranksOfHosts);
  const numRdmaBytes = rdmaBytes(of, network, maxTokensPerRank);
  const own = device.kind === 'cpu' ? network : bufferSize(config, group.size, ranksOfHosts, 'cuda').network;
  using rdmaBuffer = of.rdma === 'own' ? device.empty('u8', [own?.bytes ?? 128]) : undefined;
  const options = rdmaBuffer && { rdmaBuffer };
  tryShapes(device, shapesOf(group, device, of));
  await using buffer = await EpBuffer.create(group, device, { ...config, numRdmaBytes }, options);
  tryShapes(device, {});
  const handles: DispatchHandle[] = [];
  for (const round of rounds) handles.push(await runRound(buffer, round));
  const [first, , last] = handles as [DispatchHandle, DispatchHandle, DispatchHandle];
  // The last round was the first one again, so its rows fit the first handle; each is 1, so sums count ranks.
  const x = buffer.combineInput(last);
  await x.fromHost(new Uint16Array(x.elements).fill(0x3f80));
  const out = device.empty('bf16', [first.numTokens, of.hidden]);
  assert.equal((await buffer.combine({ x, handle: first, out })).combinedX, out);
  const counts = [...(await out.toHost())].map(fromBf16);
  const table = await first.rowTable.toHost();
  for (const [cell, count] of counts.entries()) {
    const token = Math.floor(cell / of.hidden);
    // On GPUs a table may have more columns.
    const from = token * first.rowTable.shape[1]!;
    const places = table.subarray(from, from + group.size);
    assert.equal(count, places.filter((row) => row >= 0).length);
  }
  await x.fromHost(new Uint16Array(x.elements).fill(0x3f80));
  await buffer.combine({ x, handle: last, bias: out, out });
  assert.deepEqual(
    [...(await out.toHost())].map(fromBf16),
    counts.map((count) => 2 * count),
    'a bias may be the output',
  );
  out.close();
  for (const handle of handles) handle.close();
}

/** Every other case on GPUs of one host runs in a shape that perhaps no rule chooses. */
function shapesOf(group: RankGroup, device: EpDevice, { seed, numSms: blocks }: EpCase): TriedShapes {
  if (!(device instanceof CudaDevice) || group.topology.hosts.length > 1 || seed % 2 === 0) return {};
  const next = random(seed + 5);
  const below = (count: number): number => Math.floor(next() * count);
  const mostPartBytes = 2 ** (10 + below(5));
  return {
    sending: { blocks, warps: 1 + below(12), mostPartBytes },
    gather: { blocks, warps: 1 + below(16) },
  };
}

/** Fewer choices, other tokens, the other kind of rows. */
function another(of: EpCase): EpCase {
  return {
    ...of,
    seed: of.seed + 1,
    topk: Math.max(1, of.topk - 1),
    tokens: [...of.tokens.slice(1), of.tokens[0] ?? 0],
    fp8: !of.fp8,
    wideIndex: !of.wideIndex,
    weights: !of.weights,
    worst: !of.worst,
    biases: 2 - of.biases,
  };
}

async function runRound(buffer: EpBuffer, of: EpCase): Promise<DispatchHandle> {
  const { group, device } = buffer;
  const n = group.size;
  const numExperts = of.expertsPerRank * n;
  const inputs = Array.from({ length: n }, (_, rank) => makeInput(of, rank, n));
  const expected = referenceDispatch(inputs, { numExperts, expertAlignment: of.alignment });
  const mine = inputs[group.rank] as ReferenceInput;
  const x = await upload(device, mine, of);
  const topkIdx = await uploadChoices(device, mine.topkIdx, of);
  const weights = of.weights ? await device.tensor('f32', [mine.x.length, of.topk], flat(mine.topkWeights)) : undefined;
  const layout = of.givenLayout ? buffer.getDispatchLayout({ topkIdx }) : undefined;
  // The tightest bound that holds at every rank, or none.
  const numWorstTokens = of.worst ? Math.max(0, ...expected.map((received) => received.x.length)) : 0;
  const result = await buffer.dispatch({
    x,
    topkIdx,
    ...(weights && { topkWeights: weights }),
    ...(layout && { layout }),
    expertAlignment: of.alignment,
    numWorstTokens,
    ...overlapOf(of, device),
  });
  await result.event?.wait();
  await compareReceived(result, expected[group.rank] as ReferenceReceived, { of, numWorstTokens });
  const cached = await buffer.dispatch({ x, handle: result.handle, ...overlapOf(of, device) });
  await cached.event?.wait();
  await compareRows(cached.recvX, expected[group.rank] as ReferenceReceived);
  assert.equal(cached.recvTopkIdx, undefined);

  // Every rank knows all ranks' expert outputs, random ones, so that no two rows are alike.
  const outputs = expected.map((received, rank) => outputRows(of, received.x.length, random(of.seed + 77 + rank)));
  const outWeights = expected.map((received, rank) => {
    const next = random(of.seed + 99 + rank);
    return received.x.map(() => Array.from({ length: of.topk }, () => Math.fround(next())));
  });
  const y = of.inPlace ? buffer.combineInput(result.handle) : device.empty('bf16', [result.handle.rows, of.hidden]);
  const ownOutputs = outputs[group.rank] as number[][];
  // With numWorstTokens there are more rows than tokens; what the others hold must not matter.
  await y.slice(0, ownOutputs.length).fromHost(flat16(ownOutputs));
  const weightRows = new Float32Array(result.handle.rows * of.topk);
  weightRows.set(flat(outWeights[group.rank]));
  const recvWeights = await device.tensor('f32', [result.handle.rows, of.topk], weightRows);
  const bias = Array.from({ length: of.biases }, (_, b) => rows(mine.x.length, of.hidden, random(of.seed + 5 + b)));
  const biases = await Promise.all(bias.map((b) => device.tensor('bf16', [mine.x.length, of.hidden], flat16(b))));
  const { combinedX, combinedTopkWeights, event } = await buffer.combine({
    x: y,
    handle: result.handle,
    ...(of.weights && { topkWeights: recvWeights }),
    ...(biases.length > 0 && { bias: biases as [Tensor<'bf16'>] }),
    ...overlapOf(of, device),
  });
  assert.equal(event !== undefined, of.overlap);
  await event?.wait();
  const { hosts } = group.topology;
  const { combinePrecision } = of;
  const reference = { received: expected, outputs, weights: outWeights, hosts, combinePrecision };
  const got = await combinedX.toHost();
  const gotWeights = await combinedTopkWeights?.toHost();
  for (let token = 0; token < mine.x.length; token++) {
    const place = { rank: group.rank, token, hidden: of.hidden, topk: of.topk, bias: bias.map((b) => b[token] ?? []) };
    const want = referenceCombine(reference, place);
    assert.deepEqual([...got.subarray(token * of.hidden, (token + 1) * of.hidden)], want, `combined row ${token}`);
    if (of.exact && of.biases === 0)
      assert.deepEqual(want, referenceCombine({ ...reference, hosts: undefined }, place));
    if (gotWeights) {
      const row = [...gotWeights.subarray(token * of.topk, (token + 1) * of.topk)];
      assert.deepEqual(row, referenceCombineWeights(reference, place), `combined weights of row ${token}`);
    }
  }
  for (const tensor of [topkIdx, weights, recvWeights, combinedX, combinedTopkWeights, ...biases]) tensor?.close();
  if (!of.inPlace) y.close();
  layout?.close();
  disposeRows(x);
  return result.handle;
}

export function overlapOf({ overlap }: EpCase, device: Device): CallOptions {
  if (!overlap) return {};
  const previousEvent = device instanceof CudaDevice ? device.createEvent().record(device.stream) : undefined;
  return { asyncFinish: true, ...(previousEvent && { previousEvent }) };
}

function makeInput(of: EpCase, rank: number, ranks: number): ReferenceInput {
  const next = random(of.seed + rank * 31 + 1);
  const topkIdx = choices(of, rank, ranks);
  const x = rows(topkIdx.length, of.hidden, next).map((row) => (of.fp8 ? row.map((bits) => bits & 0xff) : row));
  const groups = Math.ceil(of.hidden / 128);
  const fraction = (length: number): number[] => Array.from({ length }, () => Math.fround(next()));
  return {
    x,
    topkIdx,
    ...(of.fp8 && { scales: topkIdx.map(() => fraction(groups)) }),
    ...(of.weights && { topkWeights: topkIdx.map(() => fraction(of.topk)) }),
  };
}

async function upload(device: Device, input: ReferenceInput, of: EpCase): Promise<RowsLike> {
  const shape = [input.x.length, of.hidden];
  if (!of.fp8) return device.tensor('bf16', shape, flat16(input.x));
  const scales = input.scales ?? [];
  return {
    data: await device.tensor('fp8e4m3', shape, Uint8Array.from(input.x.flat())),
    scales: await device.tensor('f32', [scales.length, Math.ceil(of.hidden / 128)], flat(scales)),
  };
}

export function uploadChoices(
  device: Device,
  topk: ReferenceInput['topkIdx'],
  of: EpCase,
): Promise<Tensor<'i32' | 'i64'>> {
  const shape = [topk.length, of.topk];
  if (of.wideIndex) return device.tensor('i64', shape, BigInt64Array.from(topk.flat(), BigInt));
  return device.tensor('i32', shape, Int32Array.from(topk.flat()));
}

async function compareReceived(
  result: DispatchResult,
  want: ReferenceReceived,
  { of, numWorstTokens }: { of: EpCase; numWorstTokens: number },
): Promise<void> {
  const count = want.x.length;
  const total = numWorstTokens || count;
  assert.equal(result.handle.numRecvTokens ?? count, count);
  assert.deepEqual(result.numRecvTokensPerExpert, numWorstTokens ? [] : want.numRecvTokensPerExpert);
  await compareRows(result.recvX, want);
  const tail = <T>(value: T, width: number): T[] => Array.from({ length: (total - count) * width }, () => value);
  assert.deepEqual([...(await result.handle.recvSrcIdx.toHost())], [...want.sourceToken, ...tail(-1, 1)]);
  assert.equal(result.recvTopkIdx?.dtype, of.wideIndex ? 'i64' : 'i32');
  assert.deepEqual([...((await result.recvTopkIdx?.toHost()) ?? [])].map(Number), [
    ...want.topkIdx.flat(),
    ...tail(-1, of.topk),
  ]);
  const weights = result.recvTopkWeights && [...(await result.recvTopkWeights.toHost())];
  assert.deepEqual(weights, of.weights ? [...want.topkWeights.flat(), ...tail(0, of.topk)] : undefined);
}

async function compareRows(got: RowsLike, want: ReferenceReceived): Promise<void> {
  const data = 'data' in got ? got.data : got;
  const values = [...(await data.toHost())].slice(0, want.x.flat().length);
  assert.deepEqual(values, want.x.flat(), 'received rows');
  if ('scales' in got) {
    assert.deepEqual(
      [...(await got.scales.toHost())].slice(0, want.scales.flat().length),
      want.scales.flat(),
      'received scales',
    );
  }
}

function disposeRows(x: RowsLike): void {
  if ('data' in x) {
    x.data.close();
    x.scales.close();
  } else x.close();
}

export function flat(values: readonly (readonly number[])[] | undefined): Float32Array {
  return Float32Array.from((values ?? []).flat());
}

export function flat16(values: readonly (readonly number[])[]): Uint16Array {
  return Uint16Array.from(values.flat());
}
