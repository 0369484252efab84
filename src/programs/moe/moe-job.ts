// What every rank of the main job does: its part of a MoE block from a file, measured, checked and written.
import { WeftlineError } from '../../core/errors.ts';
import { fromBf16 } from '../../core/dtype.ts';
import type { DeviceChoice } from '../../device/device-choice.ts';
import { FP8_GROUP } from '../../abi/element-formats.ts';
import type { World } from '../../world/world.ts';
import type { CombinePrecision } from '../../ep/combine-precision.ts';
import { createAll2AllForward } from './all2all-forward.ts';
import { type BlockShare, readBlockShare } from './block-share.ts';
import { createBufferForward } from './buffer-forward.ts';
import { describeMoeBlock, type MoeBlock, type MoeBlockOptions } from './moe-block.ts';
import type { MoeDevice } from './moe-engine.ts';
import { openMoeEngine } from './open-moe-engine.ts';
import type { MoeForward, MoePhaseName, MoeRowDtype } from './moe-forward.ts';
import { countRouting, gatherLoad, type MoeLoad } from './moe-load.ts';
import { type PhaseTimes, timePhases } from './phase-times.ts';
import { SafetensorsFile } from './safetensors-file.ts';
import { type SafetensorsPlan, SafetensorsWriter } from './safetensors-writer.ts';

export const moeLayers = ['buffer', 'all2all'] as const;

export interface MoeJobOptions extends MoeBlockOptions {
  /** How the device was chosen, for the report. */
  readonly device: Pick<DeviceChoice, 'kind' | 'reason'>;
  /** The block: a safetensors file that all ranks can read. */
  readonly path: string;
  readonly layer: (typeof moeLayers)[number];
  readonly dtype: MoeRowDtype;
  readonly combinePrecision: CombinePrecision;
  /** Timed passes. */
  readonly repeat: number;
  /** Where to write the tensor `output`, bf16 [T, H]; a place that all ranks can write to. */
  readonly out?: string;
}

export interface PhaseReport {
  readonly name: MoePhaseName;
  /** Median over the passes of the slowest rank's time. */
  readonly ms: number;
  /** Of all ranks together, here and below. */
  readonly rows: number;
  /** What dispatch and combine bring to their destinations, a rank's own rows included; choices and weights not. */
  readonly bytes?: number;
  readonly gigabytesPerSecond?: number;
  /** The part that comes from other ranks. */
  readonly wireBytes?: number;
  readonly wireGigabytesPerSecond?: number;
}

export interface MoeCheck {
  /** ||output - reference|| / ||reference|| */
  readonly error: number;
  readonly tolerance: number;
  readonly passed: boolean;
}

export interface MoeReport {
  readonly block: MoeBlock;
  readonly layer: MoeJobOptions['layer'];
  readonly dtype: MoeRowDtype;
  readonly ranks: number;
  readonly device: MoeJobOptions['device'];
  /** What multiplied rows by the experts' weights on rank 0. */
  readonly product: string;
  readonly repeat: number;
  readonly phases: readonly PhaseReport[];
  /** Median of whole passes, without waiting for all ranks between phases. */
  readonly forwardMs: number;
  readonly load: MoeLoad;
  /** Memory per rank that all ranks of the host share. */
  readonly windowBytes: number;
  /** Absent if the file has no reference. */
  readonly check?: MoeCheck;
  readonly out?: string;
}

/** Largest error that passes, by the form in which rows travel. */
const tolerances: Readonly<Record<MoeRowDtype, number>> = { bf16: 1e-2, fp8: 5e-2 };

/**
 * Collective. Returns the report on rank 0, undefined elsewhere; a failed check is in the report, not thrown. Fails with
 * WL_FILE, WL_FILE_FORMAT, WL_INVALID_ARGUMENT (ranks that do not divide the experts, fp8 with layer all2all), and with
 * what the layer's calls fail with.
 */
export async function runMoeJob(
  world: World,
  device: MoeDevice,
  options: MoeJobOptions,
): Promise<MoeReport | undefined> {
  const { layer, dtype, combinePrecision, repeat, out } = options;
  await using file = await SafetensorsFile.open(options.path);
  const block = describeMoeBlock(file, options);
  using engine = await openMoeEngine(device, world.settings);
  using share = await readBlockShare(device, { engine, file, block, rank: world.rank, ranks: world.size });
  const create = layer === 'buffer' ? createBufferForward : createAll2AllForward;
  await using forward = await create({ world, device, engine, block, share, dtype, combinePrecision });
  const times = await timePhases(world, forward, { repeat, finish: () => engine.finish() });
  if (out !== undefined) await writeOutput(world, { path: out, block, share, forward });
  const check =
    share.reference && (await checkOutput(world, share.reference, { forward, tolerance: tolerances[dtype] }));
  const counts = countRouting(await share.topkIdx.toHost(), { ...block, ranks: world.size });
  const load = gatherLoad(await world.allGather('moe/load', counts), layer === 'buffer' ? 'rank' : 'expert');
  if (world.rank !== 0) return undefined;
  return {
    block,
    layer,
    dtype,
    ranks: world.size,
    device: { kind: options.device.kind, reason: options.device.reason },
    product: engine.product,
    repeat,
    phases: describePhases(forward, { times, load, block, dtype }),
    forwardMs: times.forward,
    load,
    windowBytes: forward.windowBytes,
    ...(check === undefined ? {} : { check }),
    ...(out === undefined ? {} : { out }),
  };
}

/** Throws WL_CHECK if the output was compared and is too far from the reference. */
export function requirePassed({ check, block, dtype }: MoeReport): void {
  if (check === undefined || check.passed) return;
  throw new WeftlineError(
    'WL_CHECK',
    `The output differs from output_f32 of ${block.path} by ${check.error.toExponential(2)} of its norm, expected at most ${check.tolerance} with ${dtype} rows`,
    { details: { ...check } },
  );
}

interface PhaseFacts {
  readonly times: PhaseTimes;
  readonly load: MoeLoad;
  readonly block: MoeBlock;
  readonly dtype: MoeRowDtype;
}

function describePhases(forward: MoeForward, { times, load, block, dtype }: PhaseFacts): PhaseReport[] {
  const total = (count: (rank: MoeLoad['ranks'][number]) => number): number =>
    load.ranks.reduce((sum, rank) => sum + count(rank), 0);
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

async function checkOutput(
  world: World,
  reference: Float32Array,
  { forward, tolerance }: { readonly forward: MoeForward; readonly tolerance: number },
): Promise<MoeCheck> {
  let difference = 0;
  let size = 0;
  for (const [index, pattern] of (await forward.output.toHost()).entries()) {
    const wanted = reference[index]!;
    difference += (fromBf16(pattern) - wanted) ** 2;
    size += wanted ** 2;
  }
  // As text, because JSON has no NaN and no infinity.
  const sums = await world.allGather('moe/check', [String(difference), String(size)]);
  const total = (at: 0 | 1): number => sums.reduce((sum, rank) => sum + Number(rank[at]), 0);
  const error = total(0) === 0 ? 0 : Math.sqrt(total(0) / total(1));
  return { error, tolerance, passed: error <= tolerance };
}

interface OutputFacts {
  readonly path: string;
  readonly block: MoeBlock;
  readonly share: BlockShare;
  readonly forward: MoeForward;
}

/** Every rank writes its tokens into one file, which gets its name when all have. */
async function writeOutput(world: World, { path, block, share, forward }: OutputFacts): Promise<void> {
  const plan: SafetensorsPlan = {
    path,
    tensors: { output: { dtype: 'BF16', shape: [block.tokens, block.hidden] } },
    unique: world.jobId,
  };
  const creator = world.rank === 0 ? await SafetensorsWriter.create(plan) : undefined;
  await using writer = creator;
  await world.barrier('moe/output made');
  await using attached = writer === undefined ? await SafetensorsWriter.attach(plan) : undefined;
  await (writer ?? attached)?.write('output', await forward.output.toHost(), share.tokens.first);
  await world.barrier('moe/output written');
  await writer?.commit();
}
