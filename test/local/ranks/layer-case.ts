// One random EPAll2AllLayer case on one rank, compared bit for bit with the reference.
import assert from 'node:assert/strict';
import { CudaDevice, type Tensor, toBf16 } from 'weftline';
import {
  EPAll2AllLayer,
  type EPAllToAllLayoutDesc,
  type LayerDispatchArguments,
  type LayerDispatchResult,
  referenceLayerCombine,
  referenceLayerDispatch,
  referenceSkippedRows,
  type TokenDType,
  type ReferenceLayerInput,
  type ReferenceLayerReceived,
} from 'weftline/ep';
import type { RankGroup } from 'weftline/world';
import type { EpDevice } from '../support/test-device.ts';
import { flat, overlapOf, uploadChoices } from './ep-buffer-case.ts';
import { choices, type EpCase, outputRows, patternsOf, random, rows, toPatterns } from './ep-case.ts';

export async function runLayerCase(group: RankGroup, device: EpDevice, of: EpCase): Promise<void> {
  const n = group.size;
  const numExperts = of.expertsPerRank * n;
  const inputs = Array.from({ length: n }, (_, rank) => makeInput(of, rank, n));
  const received = referenceLayerDispatch(inputs, numExperts);
  const mine = inputs[group.rank] as ReferenceLayerInput;
  const want = received[group.rank] as ReferenceLayerReceived;
  await using layer = await EPAll2AllLayer.create<TokenDType>(group, device, {
    maxTokens: Math.max(1, ...of.tokens),
    hidden: of.hidden,
    topk: of.topk,
    numTotExperts: numExperts,
    // Half of the cases carry weights as bf16.
    weightDtype: of.wideIndex ? 'f32' : 'bf16',
    dtype: of.dtype,
    offsetDtype: of.wideOffsets ? 'i64' : 'i32',
    keepDispatchOutput: of.keepOutput,
    enableLocalCombine: of.localCombine,
    combinePrecision: of.combinePrecision,
    capacity: of.capacity,
  });
  const inputValues = patternsOf(of.dtype, mine.input.flat());
  const input = await device.tensor<TokenDType>(of.dtype, [mine.input.length, of.hidden], inputValues);
  const expIndices = await uploadChoices(device, mine.expIndices, of);
  const shape = [mine.input.length, of.topk];
  const weightBits = Uint16Array.from((mine.weight ?? []).flat(), toBf16);
  const weight = of.wideIndex
    ? await device.tensor('f32', shape, flat(mine.weight))
    : await device.tensor('bf16', shape, weightBits);
  const fullScatterIndices = of.scatter
    ? await device.tensor('i32', shape, scatterIndices(received, group.rank, mine))
    : undefined;
  const { output, weights, layoutDesc, event } = await dispatchAs(of, layer, {
    input,
    expIndices,
    ...(of.weights && { weight }),
    ...(fullScatterIndices && { fullScatterIndices }),
    ...overlapOf(of, device),
  });
  await event?.wait();
  const order = of.scatter ? want.rows.map((_, row) => reversed(want, row)) : want.rows.map((_, row) => row);
  const placed = order.map((row) => want.rows[row] as (typeof want.rows)[number]);
  assert.deepEqual(layoutDesc.numRecvTokensPerExpert, want.numRecvTokensPerExpert);
  assert.deepEqual(
    toPatterns(await output.toHost()),
    placed.flatMap((row) => row.x),
    'output rows',
  );
  const wantWeights = placed.map((row) => (of.wideIndex ? Math.fround(row.weight) : toBf16(row.weight)));
  assert.deepEqual(weights && [...(await weights.toHost())], of.weights ? wantWeights : undefined);
  assert.deepEqual(
    Array.from(await layoutDesc.numInputTokensPerRank.toHost(), Number),
    inputs.map((one) => one.input.length),
  );
  await checkSkippedRows(want, { of, layoutDesc });
  assert.equal(layoutDesc.numDispatchTokenCurRank, mine.input.length);

  const outputs = received.map((one, rank) => outputRows(of, one.rows.length, random(of.seed + 7 + rank), of.dtype));
  const result = of.inPlace ? layer.combineInput(layoutDesc) : device.empty<TokenDType>(of.dtype, output.shape);
  const ownOutputs = outputs[group.rank] as number[][];
  const inOrder = order.map((row) => ownOutputs[row] as number[]);
  await result.fromHost(patternsOf(of.dtype, inOrder.flat()));
  const before = of.keepOutput ? toPatterns(await output.toHost()) : undefined;
  const combined = await combineAs(of, layer, { input: result, layoutDesc });
  const got = toPatterns(await combined.toHost());
  for (let token = 0; token < mine.input.length; token++) {
    const { hosts } = group.topology;
    const { hidden, localCombine, dtype, combinePrecision } = of;
    const place = { rank: group.rank, token, hidden, localCombine, dtype, hosts, combinePrecision };
    const row = got.slice(token * hidden, (token + 1) * hidden);
    const wanted = referenceLayerCombine(received, outputs, place);
    assert.deepEqual(row, wanted, `combined row ${token}`);
    if (of.exact) assert.deepEqual(wanted, referenceLayerCombine(received, outputs, { ...place, hosts: undefined }));
  }
  if (before) assert.deepEqual(toPatterns(await output.toHost()), before, 'output after combine');
  if (device instanceof CudaDevice && of.overlap) {
    using stream = device.createStream();
    await layer.epBarrierAll(stream, of.staged);
    await stream.idle();
  }
  await layer.epBarrierAll();
  for (const tensor of [input, expIndices, weight, fullScatterIndices, combined, layoutDesc]) tensor?.dispose();
  if (!of.inPlace) result.dispose();
}

async function dispatchAs(
  of: EpCase,
  layer: EPAll2AllLayer<TokenDType>,
  args: LayerDispatchArguments<TokenDType>,
): Promise<LayerDispatchResult<TokenDType>> {
  if (!of.staged) return layer.dispatch(args);
  const staged = await layer.preprocess(args);
  await layer.initOutputBuffer(staged);
  await layer.dispatchToken(staged);
  const result = await layer.dispatchPostprocess(staged);
  assert.deepEqual(staged.numRecvTokensPerExpert, result.layoutDesc.numRecvTokensPerExpert);
  assert.equal(staged.recvRows[layer.config.rank], result.layoutDesc.numRecvTokens);
  return result;
}

async function checkSkippedRows(
  want: ReferenceLayerReceived,
  { of, layoutDesc }: { readonly of: EpCase; readonly layoutDesc: EPAllToAllLayoutDesc },
): Promise<void> {
  const { firstRows, duplicates } = referenceSkippedRows(want, of.topk);
  const place = (row: number): number => (row === -1 || !of.scatter ? row : reversed(want, row));
  const order = want.rows.map((_, row) => place(row));
  const { skippedTokenMappingIndices, skippedTokenTopkMappingIndices } = layoutDesc;
  const wantFirst = order.map((row) => place(firstRows[row]!));
  assert.deepEqual(Array.from(await skippedTokenMappingIndices.toHost(), Number), wantFirst);
  const wantDuplicates = order.flatMap((row) => duplicates[row]!.map(place));
  assert.deepEqual(Array.from(await skippedTokenTopkMappingIndices.toHost(), Number), wantDuplicates);
}

async function combineAs(
  of: EpCase,
  layer: EPAll2AllLayer<TokenDType>,
  call: { readonly input: Tensor<TokenDType>; readonly layoutDesc: EPAllToAllLayoutDesc },
): Promise<Tensor<TokenDType>> {
  if (!of.overlap) return layer.combine(call);
  const overlap = { ...overlapOf(of, layer.context.device), asyncFinish: true } as const;
  const { combined, event } = await layer.combine({ ...call, ...overlap });
  assert.ok(event);
  await event.wait();
  return combined;
}

function makeInput(of: EpCase, rank: number, ranks: number): ReferenceLayerInput {
  const next = random(of.seed + rank * 131 + 3);
  // The layer takes the number of experts for "dropped" as well as -1.
  const expIndices = choices(of, rank, ranks).map((row) =>
    row.map((expert) => (expert === -1 && next() < 0.5 ? of.expertsPerRank * ranks : expert)),
  );
  return {
    input: rows(expIndices.length, of.hidden, next, of.dtype),
    expIndices,
    weight: expIndices.map((row) => row.map(() => next())),
  };
}

/** The caller's order in these tests: the rows of each expert back to front. */
function reversed({ numRecvTokensPerExpert }: ReferenceLayerReceived, row: number): number {
  let start = 0;
  for (const count of numRecvTokensPerExpert) {
    if (row < start + count) return start + count - 1 - (row - start);
    start += count;
  }
  return row;
}

function scatterIndices(
  received: readonly ReferenceLayerReceived[],
  rank: number,
  input: ReferenceLayerInput,
): Int32Array {
  const k = input.expIndices[0]?.length ?? 0;
  const places = new Int32Array(input.expIndices.length * k).fill(-5);
  let start = 0;
  for (const one of received) {
    for (const [index, row] of one.rows.entries()) {
      if (row.sourceRank === rank) places[row.token * k + row.choice] = start + reversed(one, index);
    }
    start += one.rows.length;
  }
  return places;
}
