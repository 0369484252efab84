// The kernels of an EpBuffer on a GPU, prepared once: how many blocks and warps, and what shared memory they stage in.
import { EP_MAX_BLOCKS, EP_SYNC_BYTES, type epDispatchArguments, epHostPlan, epStatus } from '../../../abi/ep.ts';
import { epRecordWords, exchangeRecordBytes } from '../../../abi/exchange-record.ts';
import { alignUp, Block, type Layout } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import type { CudaKernel } from '../../../device/cuda/kernel.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import type { Tensor } from '../../../device/tensor.ts';
import {
  BARRIER_BYTES,
  countedTokens,
  countingBlocks,
  gatherShape,
  sendingShape,
  type TriedSending,
  triedShapes,
} from '../../../group/cuda-shapes.ts';
import { countedHosts } from '../../across-hosts/network-size.ts';
import type { EpRegion } from '../buffer-size.ts';
import { type EpScope, MAX_BIASES } from '../call-arguments.ts';
import { badChoice, capacityError, choiceAt, recordMismatch } from '../dispatch-layout.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

export type CudaLaunches = Awaited<ReturnType<typeof loadLaunches>>;

/** What the launches of a buffer use all its life. */
export interface LaunchMemory {
  /** Addresses of the ranks' windows, by scale-up index. */
  readonly addresses: readonly number[];
  readonly hostPlan: CudaHostPlan;
  readonly traps: TrapBox;
  /** Address of EpLastEpoch. */
  readonly lastEpochAddress: number;
  /** i32 [1], zero: blocks of a kernel that are done; each kernel leaves it at zero. */
  readonly counter: Tensor<'i32'>;
  /** EpScratch, zero. */
  readonly scratch: Tensor<'u8'>;
  /** EpNetwork; 0 in a group on one host. */
  readonly network: number;
}

/** With at most this many tokens per warp latency counts, and as many warps as have a token move rows. */
const FEW_TOKENS = 2;
/** Choices of a token that a thread keeps in registers. */
const COLUMN_VARIANTS = [8, 32] as const;
const LAYOUT_THREADS = 256;
/** What the kernels declare themselves; those of a group on several hosts more. */
const STATIC_BYTES = 4096;
const STATIC_BYTES_ACROSS_HOSTS = 16_384;
/** Threads of a block of a combine across hosts. */
const THREADS_ACROSS_HOSTS = 512;

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLaunches({ device, config, group }: EpScope<CudaDevice>) {
  const COLUMNS = COLUMN_VARIANTS.find((columns) => config.maxTopk <= columns) ?? COLUMN_VARIANTS[1];
  const isOneHost = countedHosts(group) === 0;
  const HOSTS = isOneHost ? 0 : 1;
  const [{ epLayout }, { epDispatch }, { epCombine }] = await Promise.all([
    device.loadKernels(kernelFiles.epLayout, { COLUMNS }),
    device.loadKernels(kernelFiles.epDispatch, { COLUMNS, HOSTS }),
    device.loadKernels(kernelFiles.epCombine, { HOSTS }),
  ]);
  const { multiprocessors, sharedBytesPerBlock } = device.properties;
  const grid = Math.min(config.numSms, multiprocessors, EP_MAX_BLOCKS);
  const room = sharedBytesPerBlock - BARRIER_BYTES - (isOneHost ? STATIC_BYTES : STATIC_BYTES_ACROSS_HOSTS);
  const rowBytes = config.hidden * 2;
  const ranks = group.topology.scaleUpRanks.length;
  const tried = triedShapes(device);
  const { blocks: combineGrid = grid, ...triedShape } = tried.gather ?? {};
  // Tokens may have a row of each bias, too.
  const rows = { usual: ranks, most: ranks + MAX_BIASES, ...triedShape };
  const { partBytes, stageBytes, ...shape } = gatherShape(room, rowBytes, rows);
  const combine = isOneHost
    ? epCombine.plan({ grid: combineGrid, ...shape })
    : epCombine.plan({ grid, block: THREADS_ACROSS_HOSTS, sharedBytes: BARRIER_BYTES });
  combine.arguments.set('rowBytes', rowBytes);
  combine.arguments.set('stageBytes', stageBytes);
  combine.arguments.set('partBytes', partBytes);
  // What a block notes of a token while it counts: the ranks of the host, or all destinations.
  const sending = { sms: grid, ranks, room, config, maskBytes: isOneHost ? 1 : 4, tried: tried.sending };
  return {
    layout: epLayout.plan({ grid, block: LAYOUT_THREADS }),
    /** The launches for each dtype of the rows. */
    dispatch: {
      bf16: dispatchPlan(epDispatch, { ...sending, rowBytes }),
      fp8e4m3: dispatchPlan(epDispatch, { ...sending, rowBytes: config.hidden }),
    },
    combine,
  };
}

/** Addresses and counts that stay the same for all calls of a buffer. */
export function bindLaunches(
  { layout, dispatch, combine }: CudaLaunches,
  { group, config, size }: EpScope<CudaDevice>,
  bound: LaunchMemory,
): void {
  const region = (name: EpRegion): number => EP_SYNC_BYTES + size.regions[name].offset;
  layout.arguments.set('ranks', group.size);
  layout.arguments.set('experts', config.numExperts);
  for (const plan of [dispatch.bf16.plan, dispatch.fp8e4m3.plan, combine]) {
    for (const [index, address] of bound.addresses.entries()) plan.arguments.set('peers', address, index);
    plan.arguments.set('ranks', bound.addresses.length);
    plan.arguments.set('rank', group.topology.scaleUpIndex);
    plan.arguments.set('network', bound.network);
    plan.arguments.set('trap', bound.traps.address);
    plan.arguments.set('counter', bound.counter.address);
    plan.arguments.set('lastEpoch', bound.lastEpochAddress);
  }
  for (const { plan } of [dispatch.bf16, dispatch.fp8e4m3]) {
    plan.arguments.set('groupRanks', group.size);
    plan.arguments.set('groupRank', group.rank);
    plan.arguments.set('hosts', countedHosts(group));
    plan.arguments.set('scratch', bound.scratch.address);
    plan.arguments.set('hostPlan', bound.hostPlan.address);
    plan.arguments.set('hostExperts', bound.hostPlan.expertsAddress);
    plan.arguments.set('exchangeOffset', region('exchange'));
    plan.arguments.set(
      'recordWords',
      exchangeRecordBytes({ ranks: group.size, experts: config.numExperts, hosts: countedHosts(group) }) / 4,
    );
    plan.arguments.set('experts', config.numExperts);
    plan.arguments.set('expertsPerRank', config.numExperts / group.size);
    plan.arguments.set('rowsOffset', region('rows'));
    plan.arguments.set('scalesOffset', region('scales'));
    plan.arguments.set('topkOffset', region('topkIdx'));
    plan.arguments.set('weightsOffset', region('topkWeights'));
    plan.arguments.set('sourceOffset', region('sourceToken'));
  }
  combine.arguments.set('rowsOffset', region('combineRows'));
  combine.arguments.set('weightsOffset', region('combineWeights'));
}

interface DispatchPlanOptions {
  readonly sms: number;
  readonly ranks: number;
  readonly room: number;
  readonly rowBytes: number;
  readonly config: EpScope['config'];
  readonly maskBytes: number;
  readonly tried: TriedSending | undefined;
}

function dispatchPlan(
  kernel: CudaKernel<keyof typeof epDispatchArguments.offset>,
  { sms, ranks, room, rowBytes, config, maskBytes, tried }: DispatchPlanOptions,
) {
  const { numExperts: experts, maxTokensPerRank: tokens } = config;
  const counted = { experts, tokens, maskBytes };
  const counting = countingBlocks(room, counted);
  if (counting > sms) throw tooManyTokens(tokens, sms, sms * countedTokens(room, counted));
  const shape = sendingShape(room, rowBytes, { sms, ranks }, tried);
  const { block, partBytes, sharedBytes, rowWarps, maxRowWarps } = shape;
  const grid = Math.max(shape.grid, counting);
  // Before rows are staged there, blocks count in the same memory.
  const countBytes = experts * 4 + maskBytes * Math.ceil(tokens / grid);
  const plan = kernel.plan({
    grid,
    block,
    sharedBytes: Math.max(sharedBytes, BARRIER_BYTES + alignUp(countBytes, 16)),
  });
  plan.arguments.set('rowBytes', rowBytes);
  plan.arguments.set('stageBytes', partBytes);
  const few = FEW_TOKENS * maxRowWarps * grid;
  const forFew = (sent: number): number => Math.max(1, Math.min(maxRowWarps, Math.ceil(sent / grid)));
  /** Warps of a block that move rows of that many tokens. */
  const warpsFor = (sent: number): number => (sent <= few ? forFew(sent) : rowWarps);
  return { plan, rowWarps: warpsFor };
}

function tooManyTokens(maxTokensPerRank: number, numSms: number, most: number): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `${numSms} blocks cannot count ${maxTokensPerRank} tokens per rank, at most ${most}; use more of the GPU (numSms), or dispatch in several calls`,
    { details: { maxTokensPerRank, numSms, most } },
  );
}

// What the prepare kernel tells the host of a dispatch: how many rows arrive, or why none will.

/** What a kernel says of a dispatch that failed. */
interface EpFailure {
  /** Number of the dispatch. */
  readonly sequence: number;
  /** One of epStatus. */
  readonly status: number;
  /** The rank that differs, passed a bad choice, or would receive too much. */
  readonly rank: number;
  /** See epHostPlan. */
  readonly detail: number;
  readonly extent: number;
}

/** Pinned memory with the plan of one kind of dispatch, and behind it the choices of each local expert. */
export class PlanMemory<Name extends string> implements Disposable {
  readonly plan: Block<Name>;
  readonly experts: Int32Array;
  /** Addresses for the kernels. */
  readonly address: number;
  readonly expertsAddress: number;
  readonly #memory: HostMemory;
  readonly #layout: Layout<Name>;

  constructor(device: CudaDevice, layout: Layout<Name>, experts: number) {
    const memory = device.allocateHost(layout.size + experts * 4);
    this.#memory = memory;
    this.#layout = layout;
    this.plan = new Block(layout, memory.buffer, 0);
    this.experts = memory.view('i32', layout.size, experts);
    this.address = memory.deviceAddress;
    this.expertsAddress = memory.deviceAddress + layout.size;
  }

  /** A word that the kernels store last. */
  word(name: Name): Int32Array {
    return this.#memory.view('i32', this.#layout.offset[name], 1);
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }
}

export class CudaHostPlan extends PlanMemory<keyof typeof epHostPlan.offset> {
  readonly #scope: EpScope<CudaDevice>;
  readonly #sequence: Int32Array;
  readonly #failed: Int32Array;

  constructor(scope: EpScope<CudaDevice>) {
    super(scope.device, epHostPlan, scope.config.numExperts / scope.group.size);
    this.#scope = scope;
    this.#sequence = this.word('sequence');
    this.#failed = this.word('failedSequence');
  }

  /** True when the rest is of that dispatch; the kernel stores the sequence number last. */
  isThere(sequence: number): boolean {
    return Atomics.load(this.#sequence, 0) === (sequence | 0);
  }

  get numRecvTokens(): number {
    return this.plan.get('numRecvTokens');
  }

  /** Choices of each local expert, rounded up to the alignment. */
  perExpert(alignment: number): number[] {
    return Array.from(this.experts, (count) => alignUp(count, alignment));
  }

  /** Rows that this rank sends to other hosts, one per token and host. */
  get networkRows(): number {
    const ways = this.#scope.group.topology.hosts.length - 1;
    return Array.from({ length: ways }, (_, way) => this.plan.get('wayTokens', way)).reduce(
      (sum, rows) => sum + rows,
      0,
    );
  }

  rankPrefixMatrix(): Int32Array {
    const cells = this.#scope.group.size ** 2;
    return Int32Array.from({ length: cells }, (_, cell) => this.plan.get('rankPrefixMatrix', cell));
  }

  /** Why a dispatch other than `except` failed, as every rank finds it; the failure is then forgotten. Undefined if none failed. */
  takeFailure(except = 0): EpFailure | undefined {
    const sequence = Atomics.load(this.#failed, 0) >>> 0;
    if (sequence === 0 || sequence === except) return undefined;
    const failure = {
      sequence,
      status: this.plan.get('status'),
      rank: this.plan.get('culprit'),
      detail: this.plan.get('detail'),
      extent: this.plan.get('extent'),
    };
    Atomics.store(this.#failed, 0, 0);
    return failure;
  }

  /** `choice`: the bad value if this rank passed it, undefined if another one did, `unknown` if no rank knows it any more. */
  errorOf(failure: EpFailure, choice?: number | bigint | 'unknown'): WeftlineError {
    const { status, detail } = failure;
    const { ranks } = this.#scope.group;
    const rank = ranks[failure.rank]!;
    if (status === epStatus.capacity) return capacityError(rank, { rows: detail, bound: failure.extent });
    if (status !== epStatus.badChoice) return recordMismatch(epRecordWords, { rank, first: ranks[0]!, word: detail });
    const { numExperts: experts } = this.#scope.config;
    return badChoice(choiceAt({ name: 'topkIdx', experts, dropped: -1 }, failure.extent, detail), rank, choice);
  }
}
