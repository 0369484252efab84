// The text of kernels/cuda/include/weftline/abi.cuh: every layout and constant that CUDA kernels share with the host.
import * as bench from './bench.ts';
import * as collectives from './collectives.ts';
import * as copyRanges from './copy-ranges.ts';
import * as deviceApi from './device-api.ts';
import * as elements from './element-formats.ts';
import * as ep from './ep.ts';
import * as layer from './ep-layer.ts';
import * as exchange from './exchange-record.ts';
import * as trace from './kernel-trace.ts';
import * as kv from './kv.ts';
import * as lowLatency from './low-latency.ts';
import * as moe from './moe.ts';
import * as network from './network.ts';
import * as trap from './trap-record.ts';
import * as unpack from './unpack.ts';
import type { FieldType, Layout, Scalar } from './layout.ts';

/** Arguments of a kernel are one structure, passed by value. */
const layouts: readonly Layout[] = [
  bench,
  collectives,
  copyRanges,
  deviceApi,
  elements,
  ep,
  layer,
  exchange,
  trace,
  kv,
  lowLatency,
  moe,
  network,
  trap,
  unpack,
].flatMap((module) => Object.values<unknown>(module).filter(isLayout));

function isLayout(value: unknown): value is Layout {
  return typeof value === 'object' && value !== null && 'fields' in value && 'alignment' in value;
}

/** Prefix and numbers: { trapState: { empty: 0 } } becomes `trapStateEmpty`. */
const constants: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  trapState: trap.trapStates,
  trapKernel: trap.trapKernels,
  trapReason: trap.trapReasons,
  trap: { anyPeer: trap.TRAP_ANY_PEER },
  trace: {
    records: trace.KERNEL_RECORDS,
    atOnce: trace.KERNEL_RECORDS_AT_ONCE,
    ownBlocks: trace.OWN_BLOCKS,
    noPeer: trace.NO_PEER,
  },
  commandKind: deviceApi.queueCommandKinds,
  commandBits: deviceApi.commandBits,
  benchPingKind: deviceApi.benchPingKinds,
  epStatus: ep.epStatus,
  epRecord: {
    ...exchange.epRecordWords,
    call: exchange.EXCHANGE_CALL_WORD,
    headerWords: exchange.EXCHANGE_HEADER_WORDS,
  },
  layerRecord: { ...layer.layerRecordWords, call: exchange.EXCHANGE_CALL_WORD },
  layer: { sections: layer.LAYER_SECTIONS },
  elementFormat: elements.elementFormats,
  fp8: { group: elements.FP8_GROUP, sumAlignment: elements.FP8_SUM_ALIGNMENT },
  ep: {
    maxRanks: ep.EP_MAX_RANKS,
    maxGroupRanks: ep.EP_MAX_GROUP_RANKS,
    maxExperts: ep.EP_MAX_EXPERTS,
    maxWays: ep.EP_MAX_WAYS,
    maxServed: network.EP_MAX_SERVED,
    arrivalStride: ep.EP_ARRIVAL_STRIDE,
  },
  copy: { pieceBytes: copyRanges.COPY_PIECE_BYTES, rangesThreads: copyRanges.COPY_RANGES_THREADS },
  kv: { sumThreads: kv.KV_SUM_THREADS },
  network: { maxChannels: network.MAX_NETWORK_CHANNELS, lineBytes: network.NETWORK_LINE_BYTES },
  networkCell: network.networkCells,
  networkPhase: network.networkPhases,
  networkSeen: network.networkSeen,
  lowLatency: {
    calls: lowLatency.LOW_LATENCY_CALLS,
    empty: lowLatency.LOW_LATENCY_EMPTY,
    unit: lowLatency.LOW_LATENCY_UNIT,
    waitShift: lowLatency.LOW_LATENCY_WAIT_SHIFT,
    results: lowLatency.LOW_LATENCY_RESULTS,
    mostSlots: lowLatency.LOW_LATENCY_MAX_SLOTS,
    threads: lowLatency.LOW_LATENCY_THREADS,
    stateBits: lowLatency.LOW_LATENCY_STATE_BITS,
  },
  lowLatencyFailure: lowLatency.lowLatencyFailures,
  lowLatencyScale: lowLatency.lowLatencyScales,
  lowLatencyRows: lowLatency.lowLatencyRows,
  lowLatencyPhase: lowLatency.lowLatencyPhases,
  lowLatencyState: lowLatency.lowLatencyStates,
  lowLatencyTravels: lowLatency.lowLatencyTravels,
  lowLatencyWait: lowLatency.lowLatencyWaits,
  lowLatencyGroup: lowLatency.lowLatencyGroups,
  collective: {
    maxRanks: collectives.COLLECTIVE_MAX_RANKS,
    maxRanksAcrossHosts: collectives.COLLECTIVE_MAX_RANKS_ACROSS_HOSTS,
    maxBlocks: collectives.COLLECTIVE_MAX_BLOCKS,
    posts: collectives.COLLECTIVE_POSTS,
    bytesBits: collectives.COLLECTIVE_BYTES_BITS,
  },
  collectiveFailure: collectives.collectiveFailures,
  collectiveShape: collectives.collectiveShapes,
  messageDirection: collectives.messageDirections,
  reduction: elements.reductions,
  reductionFormat: elements.reductionFormats,
  persistentState: unpack.persistentStates,
  ring: { slotBytes: unpack.RING_SLOT_BYTES, descriptors: unpack.RING_DESCRIPTORS },
  sparse: {
    groupBlocks: collectives.SPARSE_GROUP_BLOCKS,
    noBlock: collectives.SPARSE_NO_BLOCK,
    segmentPlaces: collectives.SPARSE_SEGMENT_PLACES,
  },
  grouped: { tileRows: moe.GROUPED_TILE_ROWS, tileColumns: moe.GROUPED_TILE_COLUMNS },
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
