// Every file of kernels/cuda: its kernels, and the constants that it is compiled for. `weftline compile` fills a bundle with them.
import {
  benchCopyArguments,
  benchMeetArguments,
  selfTestCopyRowsArguments,
  selfTestFillArguments,
  selfTestWaitArguments,
} from '../../abi/bench.ts';
import {
  benchReadArguments,
  collectiveArguments,
  messageArguments,
  runArguments,
  sparseIndexArguments,
  sparseMarkArguments,
  sparseMoveArguments,
  sparseShareArguments,
  sparseSumArguments,
  sparseTellArguments,
} from '../../abi/collectives.ts';
import { copyRangesArguments } from '../../abi/copy-ranges.ts';
import {
  benchDevicePingArguments,
  benchDevicePushArguments,
  benchDevicePutArguments,
  channelPutArguments,
  twoProcessWaitArguments,
  twoProcessWriteArguments,
} from '../../abi/device-api.ts';
import { elementFormats, fp8RowsArguments, reductionFormats } from '../../abi/element-formats.ts';
import {
  layerBarrierArguments,
  layerCombineArguments,
  layerDispatchArguments,
  layerPlaceArguments,
  layerPrepareArguments,
  layerSumArguments,
  layerWidenArguments,
} from '../../abi/ep-layer.ts';
import { epCombineArguments, epDispatchArguments, epLayoutArguments } from '../../abi/ep.ts';
import { traceClockArguments } from '../../abi/kernel-trace.ts';
import { kvSumArguments } from '../../abi/kv.ts';
import {
  lowLatencyCombineArguments,
  lowLatencyDispatchArguments,
  lowLatencyGroups,
  lowLatencyRows,
  lowLatencyTravels,
} from '../../abi/low-latency.ts';
import {
  groupedProductArguments,
  moeGatherRowsArguments,
  moeListChoicesArguments,
  moeStoreWordsArguments,
  moeSumRowsArguments,
  moeSwigluArguments,
} from '../../abi/moe.ts';
import { benchFragmentsArguments, moveFragmentsArguments, persistentArguments } from '../../abi/unpack.ts';
import type { Layout } from '../../abi/layout.ts';
import { invalidArgument } from '../../core/errors.ts';

/** Constants that `weftline compile` takes from its options; each becomes -DWEFTLINE_<NAME>. */
export const shapeConstants = {
  HIDDEN: { option: 'hidden', sentence: 'elements of a token' },
  TOPK: { option: 'topk', sentence: 'experts of a token' },
  RANKS: { option: 'ranks', sentence: 'ranks that take part' },
} as const;

export type ShapeConstant = keyof typeof shapeConstants;

/** A constant of one file: values of a shape, of which the tests compile the examples, or one of a few choices. */
type ConstantRange =
  | { readonly shape: ShapeConstant; readonly examples: readonly number[] }
  | { readonly choices: readonly number[] };

export interface KernelFile<Kernels extends Readonly<Record<string, Layout>> = Readonly<Record<string, Layout>>> {
  /** Name of the file in kernels/cuda. */
  readonly file: string;
  /** Entry points (extern "C") and the layout of the one structure that each takes by value. */
  readonly kernels: Kernels;
  readonly constants: Readonly<Record<string, ConstantRange>>;
  /** The tests let none of its kernels spill registers. */
  readonly hot: boolean;
}

export function kernelFile<const Kernels extends Readonly<Record<string, Layout>>>(
  file: string,
  kernels: Kernels,
  { constants = {}, hot = true }: Partial<Pick<KernelFile, 'constants' | 'hot'>> = {},
): KernelFile<Kernels> {
  return { file, kernels, constants, hot };
}

/** Most choices per token, which a thread keeps in registers. */
const columns = { COLUMNS: { choices: [8, 32] } } as const;
/** 1 for a group on several hosts. */
const hosts = { HOSTS: { choices: [0, 1] } } as const;
/**
 * What the ranks of a low-latency object are. What it is made for is compiled into its kernels: instructions that they would jump
 * over have to be fetched, and calls are short enough to feel it.
 */
const group = { GROUP: { choices: Object.values(lowLatencyGroups) } };
const rankMajor = { RANK_MAJOR: { choices: [0, 1] } };
const rows = { ROWS: { choices: Object.values(lowLatencyRows) } };
const travels = { TRAVELS: { choices: Object.values(lowLatencyTravels) } };
const formats = { FORMAT: { choices: Object.values(reductionFormats) } };

/** One declaration for each file. */
export const kernelFiles = {
  selfTest: kernelFile('self-test.cu', {
    selfTestFill: selfTestFillArguments,
    selfTestWait: selfTestWaitArguments,
    selfTestCopyRows: selfTestCopyRowsArguments,
  }),
  traceClock: kernelFile('trace-clock.cu', { traceClock: traceClockArguments }, { hot: false }),
  epLayout: kernelFile('ep-layout.cu', { epLayout: epLayoutArguments }, { constants: columns }),
  epDispatch: kernelFile(
    'ep-dispatch.cu',
    { epDispatch: epDispatchArguments },
    { constants: { ...columns, ...hosts } },
  ),
  epCombine: kernelFile('ep-combine.cu', { epCombine: epCombineArguments }, { constants: hosts }),
  layerPrepare: kernelFile('layer-prepare.cu', { layerPrepare: layerPrepareArguments }, { constants: hosts }),
  layerPlace: kernelFile('layer-place.cu', { layerPlace: layerPlaceArguments }, { hot: false }),
  layerDispatch: kernelFile('layer-dispatch.cu', { layerDispatch: layerDispatchArguments }, { constants: hosts }),
  layerCombine: kernelFile(
    'layer-combine.cu',
    { layerCombine: layerCombineArguments, layerSumRepeated: layerSumArguments },
    { constants: { ELEMENT: { choices: Object.values(elementFormats) }, ...hosts } },
  ),
  layerCall: kernelFile(
    'layer-calls.cu',
    { layerBarrier: layerBarrierArguments, layerWiden: layerWidenArguments },
    { hot: false },
  ),
  lowLatencyDispatch: kernelFile(
    'low-latency-dispatch.cu',
    { lowLatencyDispatch: lowLatencyDispatchArguments },
    { constants: { ...group, ...rankMajor, ...rows } },
  ),
  lowLatencyCombine: kernelFile(
    'low-latency-combine.cu',
    { lowLatencyCombine: lowLatencyCombineArguments },
    { constants: { ...group, ...travels } },
  ),
  lowLatencyForward: kernelFile(
    'low-latency-forward.cu',
    { lowLatencySendHosts: lowLatencyDispatchArguments, lowLatencyForward: lowLatencyDispatchArguments },
    { constants: { ...rankMajor, ...rows } },
  ),
  lowLatencyHostSums: kernelFile(
    'low-latency-host-sums.cu',
    { lowLatencyHostSums: lowLatencyCombineArguments },
    { constants: travels },
  ),
  collectiveCopy: kernelFile('collective-copies.cu', { collectiveCopies: collectiveArguments }),
  collectiveReduction: kernelFile(
    'collective-reductions.cu',
    { collectiveReductions: collectiveArguments },
    { constants: formats },
  ),
  collectiveMessage: kernelFile('collective-messages.cu', { collectiveMessages: messageArguments }),
  collectiveRun: kernelFile('collective-runs.cu', { collectiveRuns: runArguments }, { constants: formats }),
  fp8Rows: kernelFile('fp8-rows.cu', { quantizeRows: fp8RowsArguments, dequantizeRows: fp8RowsArguments }),
  groupedProduct: kernelFile('grouped-product.cu', { groupedProduct: groupedProductArguments }),
  moeExperts: kernelFile('moe-experts.cu', {
    moeStoreWords: moeStoreWordsArguments,
    moeListChoices: moeListChoicesArguments,
    moeGatherRows: moeGatherRowsArguments,
    moeSwiglu: moeSwigluArguments,
    moeSumRows: moeSumRowsArguments,
  }),
  bench: kernelFile('bench-copy.cu', {
    benchMeet: benchMeetArguments,
    benchPush: benchCopyArguments,
    benchPull: benchCopyArguments,
  }),
  kvSums: kernelFile('kv-sums.cu', { kvBlockSums: kvSumArguments }),
  copyRanges: kernelFile('copy-ranges.cu', {
    copyRangesSmall: copyRangesArguments,
    copyRangesLarge: copyRangesArguments,
  }),
  channel: kernelFile('channel-put.cu', { channelPut: channelPutArguments }),
  twoProcess: kernelFile('two-process.cu', {
    postWriteAndSignalThread: twoProcessWriteArguments,
    postWriteAndSignalWarp: twoProcessWriteArguments,
    postWriteAndSignalBlock: twoProcessWriteArguments,
    waitForSignal: twoProcessWaitArguments,
  }),
  benchDeviceApi: kernelFile('bench-device-api.cu', {
    benchDevicePut: benchDevicePutArguments,
    benchDevicePing: benchDevicePingArguments,
    benchDevicePush: benchDevicePushArguments,
  }),
  unpack: kernelFile(
    'unpack.cu',
    {
      unpackSmall: moveFragmentsArguments,
      unpackLarge: moveFragmentsArguments,
      packSmall: moveFragmentsArguments,
      packLarge: moveFragmentsArguments,
    },
    { constants: { WARPS: { choices: [16, 32] } } },
  ),
  persistentUnpack: kernelFile('unpack-persistent.cu', {
    unpackPersistent: persistentArguments,
    packPersistent: persistentArguments,
  }),
  benchUnpack: kernelFile('bench-unpack.cu', {
    benchFragments: benchFragmentsArguments,
    benchFragmentsBatched: benchFragmentsArguments,
  }),
  sparseBlock: kernelFile('sparse-blocks.cu', {
    sparseMark: sparseMarkArguments,
    sparseSurvey: sparseIndexArguments,
    sparseIndex: sparseIndexArguments,
    sparseGather: sparseMoveArguments,
    sparseScatter: sparseMoveArguments,
    sparseTell: sparseTellArguments,
    benchRead: benchReadArguments,
  }),
  sparseDirect: kernelFile(
    'sparse-direct.cu',
    { sparseShare: sparseShareArguments, sparseSum: sparseSumArguments },
    { constants: formats },
  ),
} as const;

export type ConstantValues = Readonly<Record<string, number>>;

/** "self-test.cu" or "dispatch.cu HIDDEN=7168 TOPK=8": a variant's name in errors and manifests. */
export function variantName(file: KernelFile, values: ConstantValues): string {
  return [file.file, ...Object.keys(file.constants).map((name) => `${name}=${values[name]}`)].join(' ');
}

/** The compiler's flags for one variant. Fails with WL_INVALID_ARGUMENT for a value that the file does not allow. */
export function definesOf(file: KernelFile, values: ConstantValues): string[] {
  return Object.entries(file.constants).map(([name, range]) => {
    const value = values[name];
    const choices = 'choices' in range ? range.choices : undefined;
    const allowed = choices === undefined ? 'a whole number of at least 1' : choices.join(', ');
    const known = Number.isInteger(value) && (choices?.includes(value as number) ?? (value as number) >= 1);
    if (!known) throw invalidArgument(`constant ${name} of ${file.file}`, value, allowed);
    return `-DWEFTLINE_${name}=${value}`;
  });
}

/** All combinations of the constants, a shape's values coming from `shapes` where it is named there. */
export function variantsOf(
  file: KernelFile,
  shapes: Readonly<Partial<Record<ShapeConstant, readonly number[]>>> = {},
): ConstantValues[] {
  let variants: Record<string, number>[] = [{}];
  for (const [name, range] of Object.entries(file.constants)) {
    const values = 'choices' in range ? range.choices : (shapes[range.shape] ?? range.examples);
    variants = variants.flatMap((variant) => values.map((value) => ({ ...variant, [name]: value })));
  }
  return variants;
}
