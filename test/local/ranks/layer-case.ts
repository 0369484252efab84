// One random EPAll2AllLayer case on one rank, compared bit for bit with the reference.
import assert from 'node:assert/strict';
import { type Tensor, toBf16 } from 'weftline';
import {
  EPAll2AllLayer,
  type EPAllToAllLayoutDesc,
  referenceLayerCombine,
  referenceLayerDispatch,
  type ReferenceLayerInput,
  type ReferenceLayerReceived,
} from 'weftline/ep';
import type { RankGroup } from 'weftline/world';
import type { EpDevice } from '../support/test-device.ts';
import { flat, flat16, overlapOf, uploadChoices } from './ep-buffer-case.ts';
import { choices, type EpCase, random, rows } from './ep-case.ts';

export async function runLayerCase(group: RankGroup, device: EpDevice, of: EpCase): Promise<void> {
  const n = group.size;
  const numExperts = of.expertsPerRank * n;
  const inputs = Array.from({ length: n }, (_, rank) => makeInput(of, rank, n));
  const received = referenceLayerDispatch(inputs, numExperts);
  const mine = inputs[group.rank] as ReferenceLayerInput;
  const want = received[group.rank] as ReferenceLayerReceived;
  await using layer = await EPAll2AllLayer.create(group, device, {
    maxTokens: Math.max(1, ...of.tokens),
    hidden: of.hidden,
    topk: of.topk,
    numTotExperts: numExperts,
    // Half of the cases carry weights as bf16.
    weightDtype: of.wideIndex ? 'f32' : 'bf16',
    enableLocalCombine: of.localCombine,
    capacity: of.capacity,
  });
  const input = await device.tensor('bf16', [mine.input.length, of.hidden], flat16(mine.input));
  const expIndices = await uploadChoices(device, mine.expIndices, of);
  const shape = [mine.input.length, of.topk];
  const weightBits = Uint16Array.from((mine.weight ?? []).flat(), toBf16);
  const weight = of.wideIndex
    ? await device.tensor('f32', shape, flat(mine.weight))
    : await device.tensor('bf16', shape, weightBits);
  const fullScatterIndices = of.scatter
    ? await device.tensor('i32', shape, scatterIndices(received, group.rank, mine))
    : undefined;
  const { output, weights, layoutDesc, event } = await layer.dispatch({
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
    [...(await output.toHost())],
    placed.flatMap((row) => row.x),
    'output rows',
  );
  const wantWeights = placed.map((row) => (of.wideIndex ? Math.fround(row.weight) : toBf16(row.weight)));
  assert.deepEqual(weights && [...(await weights.toHost())], of.weights ? wantWeights : undefined);
  assert.deepEqual(
    [...(await layoutDesc.numInputTokensPerRank.toHost())],
    inputs.map((one) => one.input.length),
  );
  assert.equal(layoutDesc.numDispatchTokenCurRank, mine.input.length);

  const outputs = received.map((one, rank) => rows(one.rows.length, of.hidden, random(of.seed + 7 + rank)));
  const result = of.inPlace ? layer.combineInput(layoutDesc) : device.empty('bf16', output.shape);
  const ownOutputs = outputs[group.rank] as number[][];
  const inOrder = order.map((row) => ownOutputs[row] as number[]);
  await result.fromHost(flat16(inOrder));
  const combined = await combineAs(of, layer, { input: result, layoutDesc });
  const got = await combined.toHost();
  for (let token = 0; token < mine.input.length; token++) {
    const place = { rank: group.rank, token, hidden: of.hidden, localCombine: of.localCombine };
    const row = [...got.subarray(token * of.hidden, (token + 1) * of.hidden)];
    assert.deepEqual(row, referenceLayerCombine(received, outputs, place), `combined row ${token}`);
  }
  await layer.epBarrierAll();
  for (const tensor of [input, expIndices, weight, fullScatterIndices, combined, layoutDesc]) tensor?.dispose();
  if (!of.inPlace) result.dispose();
}

async function combineAs(
  of: EpCase,
  layer: EPAll2AllLayer,
  call: { readonly input: Tensor<'bf16'>; readonly layoutDesc: EPAllToAllLayoutDesc },
): Promise<Tensor<'bf16'>> {
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
    input: rows(expIndices.length, of.hidden, next),
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
