// The cases of the expert-parallel bench over one EpBuffer and, unless left out, one EPAll2AllLayer.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { EpBuffer, RowsLike } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import type { BenchGroup } from '../interleaved.ts';
import { type BufferCalls, makeBufferCalls } from './buffer-calls.ts';
import { checkCopyBack, copyBack } from './copy-back.ts';
import { checkCeiling, copyCeiling } from './copy-ceiling.ts';
import type { EpCase } from './ep-case.ts';
import type { CaseTraffic } from './ep-results.ts';
import { type TrafficCopyPlan, countRows, countTokens, planCopies, tokensInRanks } from './ep-traffic.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from './ep-workload.ts';
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
  const { topk, experts } = workload;
  const calls = await makeBufferCalls(world, device, workload);
  const { group, buffer, routing, topkIdx, topkWeights, bf16, x, out } = calls;

  const inRanks = tokensInRanks(routing.topkIdx, topk, experts / world.size, world.size);
  const counts = await world.allGather('bench-counts', countTokens(inRanks, world.size));
  const plan = planCopies(inRanks, counts, world.rank);
  const ceiling = copyCeiling({ device, buffer, x, plan });
  await checkCeiling(group, receivedWords(device, calls.recvX), ceiling);
  const back = copyBack({ device, sources: rowsInWindows(buffer, plan), tokens: plan.tokens, out });
  await checkCopyBack(group, { sent: bf16, out }, copyCeiling({ device, buffer, x: bf16, plan }), back);

  const dispatched: EpCase = {
    name: 'copy ceiling',
    description: 'each row copied once to where dispatch puts it',
    rows: countRows(counts),
    rowBytes: dispatchRowBytes(workload),
    run: ceiling,
  };
  const cases = bufferCases(calls, { workload, back }, dispatched);
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
      await calls[Symbol.asyncDispose]();
    },
  };
}

/** Where combine finds the rows of this rank's tokens. */
function rowsInWindows(buffer: EpBuffer, { destinations, rows }: TrafficCopyPlan): Uint32Array {
  return Uint32Array.from(destinations, (rank, copy) =>
    buffer.peerRowAddress(rank, rows[copy] as number, 'combineRows'),
  );
}

function bufferCases(
  calls: BufferCalls,
  { workload, back }: { readonly workload: EpWorkload; readonly back: () => void },
  { rows, rowBytes }: CaseTraffic,
): EpCase[] {
  const moved = { rows, rowBytes: combineRowBytes(workload) };
  const combined = { ...moved, copyBack: 'copy back' };
  const { writeExpertOutput } = calls;
  return [
    {
      name: 'dispatch',
      description: 'EpBuffer.dispatch with choices and weights: counts, exchange, rows',
      rows,
      rowBytes,
      prepare: calls.tidy,
      run: calls.dispatch,
    },
    {
      name: 'dispatch cached',
      description: 'EpBuffer.dispatch with the handle of an earlier one: rows only',
      rows,
      rowBytes,
      run: calls.dispatchCached,
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
      run: calls.combine,
    },
    {
      name: 'combine staged',
      description: 'EpBuffer.combine of rows elsewhere, which it copies into the window first',
      ...combined,
      run: calls.combineStaged,
    },
  ];
}

/** The received rows as words, to compare them quickly. */
function receivedWords(device: CpuDevice, recvX: RowsLike): Uint32Array {
  const data = 'scales' in recvX ? recvX.data : recvX;
  const words = device.hostView('i32', data.address, data.bytes / 4);
  return new Uint32Array(words.buffer, words.byteOffset, words.length);
}
