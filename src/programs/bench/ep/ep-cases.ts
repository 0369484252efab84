// The cases of the expert-parallel bench over one EpBuffer and, unless left out, one EPAll2AllLayer.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { type DispatchHandle, EpBuffer, type RowsLike } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { checkCopyBack, copyBack } from './copy-back.ts';
import { checkCeiling, copyCeiling } from './copy-ceiling.ts';
import type { EpCase } from './ep-case.ts';
import { benchBufferConfig } from './ep-memory.ts';
import type { CaseTraffic } from './ep-results.ts';
import { type TrafficCopyPlan, countRows, countTokens, planCopies, tokensInRanks } from './ep-traffic.ts';
import {
  combineRowBytes,
  dispatchRowBytes,
  type EpWorkload,
  generateBf16Rows,
  generateFp8Rows,
  generateRouting,
} from './ep-workload.ts';
import type { BenchGroup } from '../interleaved.ts';
import { makeLayerCases } from './layer-cases.ts';

export interface EpCases extends AsyncDisposable {
  /** Its barrier is the buffer's own, which lets ranks go at nearly the same time. */
  readonly group: BenchGroup;
  /** The ceiling first. */
  readonly cases: readonly EpCase[];
  readonly bufferWindowsBytes: number;
  readonly layerWindowsBytes: number | undefined;
}

/** Collective. Makes buffer, layer and inputs, and dispatches once, so that every case finds what it needs. */
export async function makeEpCases(
  world: World,
  device: CpuDevice,
  workload: EpWorkload,
  withLayer: boolean,
): Promise<EpCases> {
  const { tokens, hidden, topk, experts } = workload;
  const routing = generateRouting(workload, world.rank);
  const topkIdx = await device.tensor('i32', [tokens, topk], routing.topkIdx);
  const topkWeights = await device.tensor('f32', [tokens, topk], routing.topkWeights);
  const bf16 = await device.tensor('bf16', [tokens, hidden], generateBf16Rows(workload, tokens, world.rank));
  const x: RowsLike = workload.dtype === 'bf16' ? bf16 : await fp8Input(device, workload, world.rank);
  const buffer = await EpBuffer.create(world, device, benchBufferConfig(workload));
  const group: BenchGroup = {
    rank: world.rank,
    size: world.size,
    barrier: () => buffer.barrier(),
    allGather: (name, value) => world.allGather(name, value),
  };

  const inRanks = tokensInRanks(routing.topkIdx, topk, experts / world.size, world.size);
  const counts = await world.allGather('bench-counts', countTokens(inRanks, world.size));
  const plan = planCopies(inRanks, counts, world.rank);
  const ceiling = copyCeiling({ device, buffer, x, plan });
  const first = await buffer.dispatch({ x, topkIdx, topkWeights });
  await checkCeiling(group, receivedWords(device, first.recvX), ceiling);
  const out = device.empty('bf16', [tokens, hidden]);
  const back = copyBack({ device, sources: rowsInWindows(buffer, plan), tokens: plan.tokens, out });
  await checkCopyBack(group, { sent: bf16, out }, copyCeiling({ device, buffer, x: bf16, plan }), back);

  const dispatched: EpCase = {
    name: 'copy ceiling',
    description: 'each row copied once to where dispatch puts it',
    rows: countRows(counts),
    rowBytes: dispatchRowBytes(workload),
    run: ceiling,
  };
  const inputs = { device, buffer, x, topkIdx, topkWeights, workload, first: first.handle, back, out };
  const cases = bufferCases(inputs, dispatched);
  const layer = withLayer
    ? await makeLayerCases({ group, world, device, workload, input: bf16, topkIdx, topkWeights, out })
    : undefined;
  return {
    group,
    cases: [dispatched, ...cases, ...(layer?.cases ?? [])],
    bufferWindowsBytes: buffer.size.addressSpaceBytes,
    layerWindowsBytes: layer?.windowsBytes,
    async [Symbol.asyncDispose]() {
      await layer?.[Symbol.asyncDispose]();
      await buffer[Symbol.asyncDispose]();
    },
  };
}

interface BufferInputs {
  readonly device: CpuDevice;
  readonly buffer: EpBuffer;
  readonly x: RowsLike;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  readonly workload: EpWorkload;
  readonly first: DispatchHandle;
  readonly back: () => void;
  readonly out: Tensor<'bf16'>;
}

/** Where combine finds the rows of this rank's tokens. */
function rowsInWindows(buffer: EpBuffer, { destinations, rows }: TrafficCopyPlan): Uint32Array {
  return Uint32Array.from(destinations, (rank, copy) =>
    buffer.peerRowAddress(rank, rows[copy] as number, 'combineRows'),
  );
}

function bufferCases(inputs: BufferInputs, { rows, rowBytes }: CaseTraffic): EpCase[] {
  const { device, buffer, x, topkIdx, topkWeights, workload, back, out } = inputs;
  const handles = [inputs.first];
  const handle = (): DispatchHandle => handles[0] as DispatchHandle;
  // The experts' output: the routing never changes, so one tensor serves all iterations.
  const expertOutput = device.empty('bf16', [handle().rows, workload.hidden]);
  expertOutput.view().set(generateBf16Rows(workload, handle().rows, buffer.group.rank));
  const moved = { rows, rowBytes: combineRowBytes(workload) };
  const combined = { ...moved, copyBack: 'copy back' };
  const writeExpertOutput = (): void => {
    const target = buffer.combineInput(handle());
    device.kernels.copyBytes(target.address, expertOutput.address, expertOutput.bytes);
  };
  return [
    {
      name: 'dispatch',
      description: 'EpBuffer.dispatch with choices and weights: counts, exchange, rows',
      rows,
      rowBytes,
      prepare: () => {
        for (const old of handles.splice(1)) old.dispose();
      },
      run: async () => void handles.unshift((await buffer.dispatch({ x, topkIdx, topkWeights })).handle),
    },
    {
      name: 'dispatch cached',
      description: 'EpBuffer.dispatch with the handle of an earlier one: rows only',
      rows,
      rowBytes,
      run: async () => void (await buffer.dispatch({ x, handle: handle() })),
    },
    {
      name: 'copy back',
      description: 'each row copied once from where combine reads it, over the other rows of its token',
      ...moved,
      prepare: writeExpertOutput,
      run: back,
    },
    {
      name: 'combine',
      description: 'EpBuffer.combine of rows that were written into the window (combineInput)',
      ...combined,
      prepare: writeExpertOutput,
      run: async () => void (await buffer.combine({ x: buffer.combineInput(handle()), handle: handle(), out })),
    },
    {
      name: 'combine staged',
      description: 'EpBuffer.combine of rows elsewhere, which it copies into the window first',
      ...combined,
      run: async () => void (await buffer.combine({ x: expertOutput, handle: handle(), out })),
    },
  ];
}

async function fp8Input(device: CpuDevice, workload: EpWorkload, rank: number): Promise<RowsLike> {
  const { tokens, hidden } = workload;
  const { data, scales } = generateFp8Rows(workload, tokens, rank);
  return {
    data: await device.tensor('fp8e4m3', [tokens, hidden], data),
    scales: await device.tensor('f32', [tokens, scales.length / tokens], scales),
  };
}

/** The received rows as words, to compare them quickly. */
function receivedWords(device: CpuDevice, recvX: RowsLike): Uint32Array {
  const data = 'scales' in recvX ? recvX.data : recvX;
  const words = device.hostView('i32', data.address, data.bytes / 4);
  return new Uint32Array(words.buffer, words.byteOffset, words.length);
}
