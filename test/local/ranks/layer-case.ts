// One random EPAll2AllLayer case on one rank, compared bit for bit with the reference.
import assert from 'node:assert/strict';
import { CudaDevice, type Tensor, toBf16 } from 'weftline';
import {
  EPAll2AllLayer,
  EPConfig,
  outputSize,
  type EPAllToAllLayoutDesc,
  type LayerDispatchArguments,
  type LayerDispatchResult,
  type StagedDispatch,
  type TokenDType,
} from 'weftline/ep';
import {
  referenceLayerCombine,
  referenceLayerDispatch,
  referenceNodeLayout,
  referenceSkippedRows,
  type ReferenceInput,
} from 'weftline/reference';
import { layerPinnedSize } from '#lib/ep/layer/output-size.js';
import type { RankGroup } from 'weftline/world';
import type { EpDevice } from '../support/test-device.ts';
import { flat, overlapOf, uploadChoices } from './ep-buffer-case.ts';
import {
  caseFor,
  choices,
  type EpCase,
  outputRows,
  patternsOf,
  random,
  rdmaBytes,
  rows,
  toPatterns,
} from './ep-case.ts';
import type { NetworkSize } from '#lib/ep/across-hosts/network-size.js';
import type { ReferenceLayerReceived } from '#lib/reference/ep-layer.js';

export async function runLayerCase(group: RankGroup, device: EpDevice, drawn: EpCase): Promise<void> {
  const of = caseFor(device, group, drawn);
  const n = group.size;
  const numExperts = of.expertsPerRank * n;
  const inputs = Array.from({ length: n }, (_, rank) => makeInput(of, rank, n));
  const received = referenceLayerDispatch(inputs, numExperts);
  const mine = inputs[group.rank] as ReferenceInput;
  const want = received[group.rank] as ReferenceLayerReceived;
  const maxTokensPerRank = Math.max(1, ...of.tokens);
  const options = {
    maxTokensPerRank,
    hidden: of.hidden,
    maxTopk: of.topk,
    numExperts,
    // Half of the cases carry weights as bf16.
    weightDtype: of.wideIndex ? 'f32' : 'bf16',
    dtype: of.dtype,
    offsetDtype: of.wideOffsets ? 'i64' : 'i32',
    keepDispatchOutput: of.keepOutput,
    enableLocalCombine: of.localCombine,
    combinePrecision: of.combinePrecision,
    capacity: of.capacity,
  } as const;
  const { dtype: tokenDtype, enableLocalCombine: _local, capacity: _capacity, ...sizes } = options;
  const { network, pinned } = networksOf(group, { ...sizes, tokenDtype });
  const numRdmaBytes = rdmaBytes(of, network, maxTokensPerRank);
  using rdmaBuffer =
    of.rdma === 'own' ? device.empty('u8', [(device.kind === 'cpu' ? network : pinned)?.bytes ?? 128]) : undefined;
  const rdma = { numRdmaBytes, ...(rdmaBuffer && { rdmaBuffer }) };
  await using layer = await EPAll2AllLayer.create<TokenDType>(group, device, { ...options, ...rdma });
  const inputValues = patternsOf(of.dtype, mine.x.flat());
  const input = await device.tensor<TokenDType>(of.dtype, [mine.x.length, of.hidden], inputValues);
  const topkIdx = await uploadChoices(device, mine.topkIdx, of);
  const shape = [mine.x.length, of.topk];
  const weightBits = Uint16Array.from((mine.topkWeights ?? []).flat(), toBf16);
  const weight = of.wideIndex
    ? await device.tensor('f32', shape, flat(mine.topkWeights))
    : await device.tensor('bf16', shape, weightBits);
  const fullScatterIndices = of.scatter
    ? await device.tensor('i32', shape, scatterIndices(received, group.rank, mine))
    : undefined;
  // The tightest bound that holds at every rank, where one can be: none is larger than the output.
  const most = Math.max(0, ...received.map((one) => one.rows.length));
  const isBounded = of.worst && !of.scatter && !of.staged && most <= layer.context.outputSize.capacityRows;
  const numWorstTokens = isBounded ? most : 0;
  const {
    recvX: output,
    recvTopkWeights: weights,
    handle,
    event,
  } = await dispatchAs(
    of,
    layer,
    {
      x: input,
      topkIdx,
      ...(of.weights && { topkWeights: weight }),
      ...(fullScatterIndices && { fullScatterIndices }),
      numWorstTokens,
      ...overlapOf(of, device),
    },
    { inputs, received },
  );
  await event?.wait();
  const order = of.scatter ? want.rows.map((_, row) => reversed(want, row)) : want.rows.map((_, row) => row);
  const placed = order.map((row) => want.rows[row] as (typeof want.rows)[number]);
  const recvCounts = handle.recvCounts && [...(await handle.recvCounts.toHost())];
  assert.deepEqual(recvCounts ?? handle.numRecvTokensPerExpert, want.numRecvTokensPerExpert);
  assert.equal(recvCounts !== undefined, numWorstTokens !== 0);
  const rowCount = numWorstTokens || want.rows.length;
  const tail = (value: number, width: number): number[] =>
    Array.from({ length: (rowCount - want.rows.length) * width }, () => value);
  assert.equal(output.shape[0], rowCount);
  assert.deepEqual(
    toPatterns(await output.toHost()).slice(0, want.rows.length * of.hidden),
    placed.flatMap((row) => row.x),
    'output rows',
  );
  const wantWeights = placed.map((row) => (of.wideIndex ? Math.fround(row.weight) : toBf16(row.weight)));
  assert.deepEqual(weights && [...(await weights.toHost())], of.weights ? [...wantWeights, ...tail(0, 1)] : undefined);
  assert.deepEqual(
    Array.from(await handle.numInputTokensPerRank.toHost(), Number),
    inputs.map((one) => one.x.length),
  );
  await checkSkippedRows(want, { of, handle, tail });
  await checkNodes(group, inputs, received, { of, handle, topkIdx, maxTokensPerRank });
  assert.equal(handle.numDispatchTokenCurRank, mine.x.length);

  const outputs = received.map((one, rank) => outputRows(of, one.rows.length, random(of.seed + 7 + rank), of.dtype));
  const result = of.inPlace ? layer.combineInput(handle) : device.empty<TokenDType>(of.dtype, output.shape);
  const ownOutputs = outputs[group.rank] as number[][];
  const inOrder = order.map((row) => ownOutputs[row] as number[]);
  // What the rows behind the received ones hold must not matter.
  await result.slice(0, inOrder.length).fromHost(patternsOf(of.dtype, inOrder.flat()));
  const before = of.keepOutput ? toPatterns(await output.toHost()) : undefined;
  const combined = await combineAs(of, layer, { x: result, handle });
  const got = toPatterns(await combined.toHost());
  for (let token = 0; token < mine.x.length; token++) {
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
    await layer.barrier({ intraNodeOnly: of.staged, ...(stream && { stream }) });
    await stream.idle();
  }
  await layer.barrier();
  for (const tensor of [input, topkIdx, weight, fullScatterIndices, combined, handle]) tensor?.close();
  if (!of.inPlace) result.close();
}

/** The network sides of a CPU rank and of a GPU. */
function networksOf(
  group: RankGroup,
  of: Omit<ConstructorParameters<typeof EPConfig>[0], 'rank' | 'worldSize' | 'localWorldSize'>,
): { readonly network: NetworkSize | undefined; readonly pinned: ReturnType<typeof layerPinnedSize> } {
  const ranksOfHosts = group.topology.hosts.map(({ length }) => length);
  const place = { rank: group.rank, worldSize: group.size, localWorldSize: group.topology.scaleUpRanks.length };
  const config = new EPConfig({ ...of, ...place });
  return { network: outputSize(config, 1, ranksOfHosts).network, pinned: layerPinnedSize(config, group) };
}

async function dispatchAs(
  of: EpCase,
  layer: EPAll2AllLayer<TokenDType>,
  args: LayerDispatchArguments<TokenDType>,
  all: Parameters<typeof checkSplits>[2],
): Promise<LayerDispatchResult<TokenDType>> {
  if (!of.staged) return layer.dispatch(args);
  const staged = await layer.preprocess(args);
  await checkSplits(layer, staged, all);
  await layer.initOutputBuffer(staged);
  await layer.dispatchToken(staged);
  const result = await layer.dispatchPostprocess(staged);
  assert.deepEqual(staged.numRecvTokensPerExpert, result.handle.numRecvTokensPerExpert);
  assert.equal(staged.recvRows[layer.config.rank], result.handle.numRecvTokens);
  return result;
}

async function checkSkippedRows(
  want: ReferenceLayerReceived,
  {
    of,
    handle,
    tail,
  }: {
    readonly of: EpCase;
    readonly handle: EPAllToAllLayoutDesc;
    readonly tail: (value: number, width: number) => readonly number[];
  },
): Promise<void> {
  const { firstRows, duplicates } = referenceSkippedRows(want, of.topk);
  const place = (row: number): number => (row === -1 || !of.scatter ? row : reversed(want, row));
  const order = want.rows.map((_, row) => place(row));
  const { skippedTokenMappingIndices, skippedTokenTopkMappingIndices } = handle;
  const wantFirst = [...order.map((row) => place(firstRows[row]!)), ...tail(-1, 1)];
  assert.deepEqual(Array.from(await skippedTokenMappingIndices.toHost(), Number), wantFirst);
  const wantDuplicates = [...order.flatMap((row) => duplicates[row]!.map(place)), ...tail(-1, of.topk)];
  assert.deepEqual(Array.from(await skippedTokenTopkMappingIndices.toHost(), Number), wantDuplicates);
}

/** What the descriptor tells by node on several hosts; on one, the caller's choices and their rows. */
async function checkNodes(
  group: RankGroup,
  inputs: readonly ReferenceInput[],
  received: readonly ReferenceLayerReceived[],
  { of, handle, topkIdx, maxTokensPerRank }: NodeCheck,
): Promise<void> {
  const { hosts } = group.topology;
  const { sendReqsRecvTensor, topkIndicesTensor, tokenDstScatterIdx } = handle;
  if (hosts.length > 1 && handle.tables.crossing !== undefined) {
    // On GPUs: this rank's own tokens, and the rows of their choices at all ranks.
    const mine = inputs[group.rank] as ReferenceInput;
    const rowOf = (expert: number, token: number, choice: number): number =>
      received[Math.floor(expert / of.expertsPerRank)]?.rows.findIndex(
        (row) => row.sourceRank === group.rank && row.token === token && row.choice === choice,
      ) ?? -1;
    const rowsHere = mine.topkIdx.flatMap((experts, token) =>
      experts.map((expert, choice) => rowOf(expert, token, choice)),
    );
    const got = Array.from(await tokenDstScatterIdx.toHost(), Number);
    assert.deepEqual(got.slice(0, rowsHere.length), rowsHere, 'tokenDstScatterIdx');
    assert.deepEqual(tokenDstScatterIdx.shape, [1, maxTokensPerRank, of.topk]);
    assert.equal(topkIndicesTensor, topkIdx);
    assert.equal(sendReqsRecvTensor, undefined);
    return;
  }
  const reference = referenceNodeLayout(inputs, received, {
    rank: group.rank,
    hosts,
    maxTokensPerRank,
    maxTopk: of.topk,
  });
  // Where the caller chose the rows, those of the experts' ranks are back to front.
  const ownerOf = (node: number, token: number, choice: number): ReferenceLayerReceived => {
    const expert = reference.topkIndices[node]![token]![choice]!;
    return received[Math.floor(expert / of.expertsPerRank)]!;
  };
  const rowsByNode = reference.dstScatterIdx.map((tokens, node) =>
    tokens.map((rowsOf, token) =>
      rowsOf.map((row, choice) => (row === -1 || !of.scatter ? row : reversed(ownerOf(node, token, choice), row))),
    ),
  );
  assert.deepEqual(Array.from(await tokenDstScatterIdx.toHost(), Number), rowsByNode.flat(2), 'tokenDstScatterIdx');
  assert.deepEqual(tokenDstScatterIdx.shape, [hosts.length, maxTokensPerRank, of.topk]);
  assert.equal(tokenDstScatterIdx.dtype, of.wideOffsets ? 'i64' : 'i32');
  if (hosts.length === 1) {
    assert.equal(topkIndicesTensor, topkIdx);
    assert.equal(sendReqsRecvTensor, undefined);
    return;
  }
  assert.deepEqual(Array.from(await topkIndicesTensor.toHost(), Number), reference.topkIndices.flat(2), 'topkIndices');
  assert.equal(topkIndicesTensor.dtype, topkIdx.dtype);
  assert.deepEqual(Array.from(await sendReqsRecvTensor!.toHost(), Number), reference.sendReqs.flat(2), 'sendReqs');
  assert.deepEqual(sendReqsRecvTensor!.shape, [hosts.length, 2, maxTokensPerRank]);
  assert.equal(handle.sendReqsRecvTensor, sendReqsRecvTensor, 'made once');
}

interface NodeCheck {
  readonly of: EpCase;
  readonly handle: EPAllToAllLayoutDesc;
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  readonly maxTokensPerRank: number;
}

/** What lies between the stages: the counts of all ranks, and what this one asks the others for. */
async function checkSplits(
  layer: EPAll2AllLayer<TokenDType>,
  staged: StagedDispatch,
  {
    inputs,
    received,
  }: { readonly inputs: readonly ReferenceInput[]; readonly received: readonly ReferenceLayerReceived[] },
): Promise<void> {
  const { group, config } = layer.context;
  const { numExperts, maxTopk: topk, maxTokensPerRank } = config;
  const splits = await layer.getAgSplitsAndRecvOffsetForDispatch(staged);
  const isDropped = (expert: number): boolean => expert < 0 || expert >= numExperts;
  const wantSplits = inputs.map(({ topkIdx }) => {
    const all = topkIdx.flat();
    const ofExperts = Array.from({ length: numExperts }, (_, expert) => all.filter((one) => one === expert).length);
    return [...ofExperts, all.filter(isDropped).length];
  });
  assert.deepEqual([...splits.fullSplits], wantSplits.flat(), 'splits');
  assert.deepEqual(
    [...splits.numInputTokensPerRank],
    inputs.map((one) => one.topkIdx.length),
  );
  assert.deepEqual(
    [...splits.numRecvTokensPerRank],
    received.map((one) => one.rows.length),
  );
  const offsets = received.flatMap(({ rows: all }, owner) =>
    Array.from({ length: config.numExpertsPerRank }, (_, local) => owner * config.numExpertsPerRank + local).flatMap(
      (expert) =>
        inputs.map(
          (_, source) =>
            all.filter((row) => row.expert < expert || (row.expert === expert && row.sourceRank < source)).length,
        ),
    ),
  );
  assert.deepEqual([...splits.recvBufOffsetPerExpert], offsets, 'offsets');
  const { hosts } = group.topology;
  const requests = layer.getDispatchSendReqs(staged);
  if (hosts.length === 1 || layer.context.device.kind === 'cuda') return assert.equal(requests, undefined);
  // What a node is asked for is what the rank at the same place there has got of this one.
  const own = hosts.findIndex((ranks) => ranks.includes(group.rank));
  const place = hosts[own]!.indexOf(group.rank);
  for (const [node, ranks] of hosts.entries()) {
    const there = ranks[place];
    if (there === undefined) continue;
    const of = { rank: there, hosts, maxTokensPerRank, maxTopk: topk };
    const want = referenceNodeLayout(inputs, received, of).sendReqs[own]!.flat();
    const got = requests!.subarray(node * 2 * maxTokensPerRank, (node + 1) * 2 * maxTokensPerRank);
    assert.deepEqual([...got], want, `requests of node ${node}`);
  }
}

async function combineAs(
  of: EpCase,
  layer: EPAll2AllLayer<TokenDType>,
  call: { readonly x: Tensor<TokenDType>; readonly handle: EPAllToAllLayoutDesc },
): Promise<Tensor<TokenDType>> {
  if (!of.overlap) return layer.combine(call);
  const overlap = { ...overlapOf(of, layer.context.device), asyncFinish: true } as const;
  const { combinedX, event } = await layer.combine({ ...call, ...overlap });
  assert.ok(event);
  await event.wait();
  return combinedX;
}

function makeInput(of: EpCase, rank: number, ranks: number): ReferenceInput {
  const next = random(of.seed + rank * 131 + 3);
  // The layer takes the number of experts for "dropped" as well as -1.
  const topkIdx = choices(of, rank, ranks).map((row) =>
    row.map((expert) => (expert === -1 && next() < 0.5 ? of.expertsPerRank * ranks : expert)),
  );
  return {
    x: rows(topkIdx.length, of.hidden, next, of.dtype),
    topkIdx,
    topkWeights: topkIdx.map((row) => row.map(() => next())),
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

function scatterIndices(received: readonly ReferenceLayerReceived[], rank: number, input: ReferenceInput): Int32Array {
  const k = input.topkIdx[0]?.length ?? 0;
  const places = new Int32Array(input.topkIdx.length * k).fill(-5);
  let start = 0;
  for (const one of received) {
    for (const [index, row] of one.rows.entries()) {
      if (row.sourceRank === rank) places[row.token * k + row.choice] = start + reversed(one, index);
    }
    start += one.rows.length;
  }
  return places;
}
