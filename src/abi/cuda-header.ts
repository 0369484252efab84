// The text of kernels/cuda/include/weftline/abi.cuh: every layout and constant that CUDA kernels share with the host.
import { benchCopyArguments, benchMeetArguments } from './bench-arguments.ts';
import {
  EP_ARRIVAL_STRIDE,
  EP_MAX_EXPERTS,
  EP_MAX_GROUP_RANKS,
  EP_MAX_RANKS,
  EP_MAX_WAYS,
  epCombineArguments,
  epDispatchArguments,
  epHostPlan,
  epLastEpoch,
  epLayoutArguments,
  epPlan,
  epScratch,
  epStatus,
} from './ep-arguments.ts';
import { EP_MAX_SERVED, epNetwork, networkPhases, networkSeen } from './ep-network.ts';
import { EXCHANGE_CALL_WORD, EXCHANGE_HEADER_WORDS, epRecordWords } from './exchange-record.ts';
import {
  LAYER_SECTIONS,
  layerBarrierArguments,
  layerCombineArguments,
  layerDispatchArguments,
  layerHostPlan,
  layerPlaceArguments,
  layerPlan,
  layerPrepareArguments,
  layerRecordWords,
  layerRoute,
  layerSumArguments,
  layerWidenArguments,
} from './layer-arguments.ts';
import { channelPutArguments } from './channel-arguments.ts';
import { commandBits, queueCommandKinds, commandQueueHead, deviceQueue } from './command-queue.ts';
import {
  benchDevicePingArguments,
  benchDevicePushArguments,
  benchDevicePutArguments,
  benchPingKinds,
  twoProcessWaitArguments,
  twoProcessWriteArguments,
} from './device-api-arguments.ts';
import { elementFormats, FP8_GROUP, reductionFormats, reductions } from './element-formats.ts';
import {
  COLLECTIVE_BYTES_BITS,
  COLLECTIVE_MAX_BLOCKS,
  COLLECTIVE_MAX_RANKS,
  COLLECTIVE_MAX_RANKS_ACROSS_HOSTS,
  COLLECTIVE_POSTS,
  collectiveArguments,
  collectiveBlock,
  collectiveFailure,
  collectiveFailures,
  collectiveRecord,
  collectiveShapes,
  messageArguments,
  messageBlock,
  messageDirections,
  messageFlags,
  messagePost,
  runArguments,
} from './cuda-collectives.ts';
import { deviceHostState, deviceRemote, deviceRequest } from './device-request.ts';
import { fp8RowsArguments } from './fp8-rows-arguments.ts';
import type { FieldType, Layout, Scalar } from './layout.ts';
import {
  LOW_LATENCY_CALLS,
  LOW_LATENCY_EMPTY,
  LOW_LATENCY_MAX_SLOTS,
  LOW_LATENCY_RESULTS,
  LOW_LATENCY_STATE_BITS,
  LOW_LATENCY_THREADS,
  LOW_LATENCY_UNIT,
  LOW_LATENCY_WAIT_SHIFT,
  lowLatencyBlock,
  lowLatencyChoice,
  lowLatencyDecision,
  lowLatencyElastic,
  lowLatencyFailures,
  lowLatencyFlags,
  lowLatencyMember,
  lowLatencyPeer,
  lowLatencyPhases,
  lowLatencyRows,
  lowLatencyScales,
  lowLatencyStates,
  lowLatencyTravels,
  lowLatencyWaits,
} from './low-latency.ts';
import {
  KERNEL_RECORDS,
  KERNEL_RECORDS_AT_ONCE,
  kernelRecord,
  kernelTraceTarget,
  NO_PEER,
  OWN_BLOCKS,
  traceClockArguments,
  traceClockCells,
} from './kernel-trace.ts';
import { lowLatencyCombineArguments, lowLatencyDispatchArguments } from './low-latency-arguments.ts';
import { MAX_NETWORK_CHANNELS, NETWORK_LINE_BYTES, networkCells } from './network-cells.ts';
import {
  GROUPED_TILE_COLUMNS,
  GROUPED_TILE_ROWS,
  groupedProductArguments,
  moeGatherRowsArguments,
  moeListChoicesArguments,
  moeStoreWordsArguments,
  moeSumRowsArguments,
  moeSwigluArguments,
} from './moe-arguments.ts';
import {
  benchReadArguments,
  SPARSE_GROUP_BLOCKS,
  SPARSE_NO_BLOCK,
  SPARSE_SEGMENT_PLACES,
  sparseIndexArguments,
  sparseMarkArguments,
  sparseMoveArguments,
  sparseShareArguments,
  sparseSumArguments,
  sparseTellArguments,
} from './sparse-arguments.ts';
import { selfTestCopyRowsArguments, selfTestFillArguments, selfTestWaitArguments } from './self-test-arguments.ts';
import { TRAP_ANY_PEER, trapKernels, trapReasons, trapRecord, trapStates } from './trap-record.ts';
import {
  benchFragmentsArguments,
  descriptorBlockHeader,
  fragmentDescriptor,
  fragmentPair,
  moveFragmentsArguments,
  persistentArguments,
  persistentControl,
  persistentShared,
  persistentStates,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from './unpack-block.ts';

/** A layout that a kernel uses stands here; arguments of a kernel are one structure, passed by value. */
const layouts: readonly Layout[] = [
  trapRecord,
  kernelRecord,
  kernelTraceTarget,
  traceClockCells,
  traceClockArguments,
  commandQueueHead,
  deviceQueue,
  deviceHostState,
  deviceRemote,
  deviceRequest,
  selfTestFillArguments,
  selfTestWaitArguments,
  selfTestCopyRowsArguments,
  epPlan,
  epHostPlan,
  epLastEpoch,
  epScratch,
  epLayoutArguments,
  epDispatchArguments,
  epCombineArguments,
  epNetwork,
  layerPlan,
  layerHostPlan,
  layerRoute,
  layerPrepareArguments,
  layerPlaceArguments,
  layerDispatchArguments,
  layerSumArguments,
  layerCombineArguments,
  layerBarrierArguments,
  layerWidenArguments,
  lowLatencyFlags,
  lowLatencyChoice,
  lowLatencyMember,
  lowLatencyPeer,
  lowLatencyDecision,
  lowLatencyElastic,
  lowLatencyBlock,
  lowLatencyDispatchArguments,
  lowLatencyCombineArguments,
  collectiveFailure,
  collectiveRecord,
  collectiveBlock,
  collectiveArguments,
  messageFlags,
  messagePost,
  messageBlock,
  messageArguments,
  runArguments,
  fp8RowsArguments,
  moeStoreWordsArguments,
  moeListChoicesArguments,
  moeGatherRowsArguments,
  moeSwigluArguments,
  moeSumRowsArguments,
  groupedProductArguments,
  benchMeetArguments,
  benchCopyArguments,
  channelPutArguments,
  twoProcessWriteArguments,
  twoProcessWaitArguments,
  benchDevicePutArguments,
  benchDevicePingArguments,
  benchDevicePushArguments,
  fragmentDescriptor,
  descriptorBlockHeader,
  moveFragmentsArguments,
  fragmentPair,
  benchFragmentsArguments,
  persistentControl,
  persistentShared,
  persistentArguments,
  sparseMarkArguments,
  sparseIndexArguments,
  sparseMoveArguments,
  sparseTellArguments,
  sparseShareArguments,
  sparseSumArguments,
  benchReadArguments,
];

/** Prefix and numbers: { trapState: { empty: 0 } } becomes `trapStateEmpty`. */
const constants: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  trapState: trapStates,
  trapKernel: trapKernels,
  trapReason: trapReasons,
  trap: { anyPeer: TRAP_ANY_PEER },
  trace: { records: KERNEL_RECORDS, atOnce: KERNEL_RECORDS_AT_ONCE, ownBlocks: OWN_BLOCKS, noPeer: NO_PEER },
  commandKind: queueCommandKinds,
  commandBits,
  benchPingKind: benchPingKinds,
  epStatus,
  epRecord: { ...epRecordWords, call: EXCHANGE_CALL_WORD, headerWords: EXCHANGE_HEADER_WORDS },
  layerRecord: { ...layerRecordWords, call: EXCHANGE_CALL_WORD },
  layer: { sections: LAYER_SECTIONS },
  elementFormat: elementFormats,
  fp8: { group: FP8_GROUP },
  ep: {
    maxRanks: EP_MAX_RANKS,
    maxGroupRanks: EP_MAX_GROUP_RANKS,
    maxExperts: EP_MAX_EXPERTS,
    maxWays: EP_MAX_WAYS,
    maxServed: EP_MAX_SERVED,
    arrivalStride: EP_ARRIVAL_STRIDE,
  },
  network: { maxChannels: MAX_NETWORK_CHANNELS, lineBytes: NETWORK_LINE_BYTES },
  networkCell: networkCells,
  networkPhase: networkPhases,
  networkSeen,
  lowLatency: {
    calls: LOW_LATENCY_CALLS,
    empty: LOW_LATENCY_EMPTY,
    unit: LOW_LATENCY_UNIT,
    waitShift: LOW_LATENCY_WAIT_SHIFT,
    results: LOW_LATENCY_RESULTS,
    mostSlots: LOW_LATENCY_MAX_SLOTS,
    threads: LOW_LATENCY_THREADS,
    stateBits: LOW_LATENCY_STATE_BITS,
  },
  lowLatencyFailure: lowLatencyFailures,
  lowLatencyScale: lowLatencyScales,
  lowLatencyRows,
  lowLatencyPhase: lowLatencyPhases,
  lowLatencyState: lowLatencyStates,
  lowLatencyTravels,
  lowLatencyWait: lowLatencyWaits,
  collective: {
    maxRanks: COLLECTIVE_MAX_RANKS,
    maxRanksAcrossHosts: COLLECTIVE_MAX_RANKS_ACROSS_HOSTS,
    maxBlocks: COLLECTIVE_MAX_BLOCKS,
    posts: COLLECTIVE_POSTS,
    bytesBits: COLLECTIVE_BYTES_BITS,
  },
  collectiveFailure: collectiveFailures,
  collectiveShape: collectiveShapes,
  messageDirection: messageDirections,
  reduction: reductions,
  reductionFormat: reductionFormats,
  persistentState: persistentStates,
  ring: { slotBytes: RING_SLOT_BYTES, descriptors: RING_DESCRIPTORS },
  sparse: {
    groupBlocks: SPARSE_GROUP_BLOCKS,
    noBlock: SPARSE_NO_BLOCK,
    segmentPlaces: SPARSE_SEGMENT_PLACES,
  },
  grouped: { tileRows: GROUPED_TILE_ROWS, tileColumns: GROUPED_TILE_COLUMNS },
};

const cudaTypes: Readonly<Record<Scalar, string>> = {
  u8: 'u8',
  u16: 'u16',
  u32: 'u32',
  i32: 'i32',
  u64: 'u64',
  ptr: 'void*',
  f32: 'f32',
};

export function cudaHeader(): string {
  return [
    '// Generated from src/abi. Do not edit.',
    '#pragma once',
    '#include "weftline/types.cuh"',
    '',
    'namespace weftline {',
    '',
    ...Object.entries(constants).flatMap(([prefix, values]) =>
      Object.entries(values).map(([name, value]) => `constexpr u32 ${prefix}${capital(name)} = ${value};`),
    ),
    ...layouts.flatMap((layout) => ['', ...structure(layout)]),
    '',
    '}  // namespace weftline',
    '',
  ].join('\n');
}

/** The assertions prove that the CUDA compiler places each field where TypeScript writes it. */
export function structure(layout: Layout): string[] {
  const { name, size, alignment, offset } = layout;
  return [
    `struct alignas(${alignment}) ${name} {`,
    ...Object.entries(layout.fields).map(([field, type]) => `  ${member(field, type)};`),
    '};',
    // The run-time compiler need not prove again what the tests prove with nvcc.
    '#ifndef __CUDACC_RTC__',
    `static_assert(sizeof(${name}) == ${size}, "${name}");`,
    ...Object.keys(layout.fields).map(
      (field) => `static_assert(__builtin_offsetof(${name}, ${field}) == ${offset[field]}, "${name}.${field}");`,
    ),
    '#endif',
  ];
}

function member(field: string, type: FieldType): string {
  return typeof type === 'string' ? `${cudaTypes[type]} ${field}` : `${cudaTypes[type.of]} ${field}[${type.count}]`;
}

function capital(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}
