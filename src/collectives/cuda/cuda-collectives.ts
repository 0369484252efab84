// Collectives of CUDA ranks of one host. Nothing waits for the host, and the host for nothing: what a call gives is there for
// what follows on the device's stream.
import { setTimeout as sleep } from 'node:timers/promises';
import {
  COLLECTIVE_MAX_BLOCKS,
  COLLECTIVE_MAX_RANKS,
  COLLECTIVE_POSTS,
  type collectiveArguments,
  collectiveBlock,
  collectiveFailure,
  collectiveRecord,
  collectiveShapes,
  type messageArguments,
  messageBlock,
  messageDirections,
  messageFlags,
  messagePost,
} from '../../abi/collectives.ts';
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import { type DeviceEvent, TensorSet } from '../../device/device.ts';
import { Tensor } from '../../device/tensor.ts';
import { agreeOn } from '../../group/agree.ts';
import { CudaCallOrder, CudaCalls, type RecordingOf } from '../../group/cuda-calls.ts';
import type { OverlapOptions } from '../../group/overlap.ts';
import { CudaWindow } from '../../windows/cuda-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import {
  type CollectiveCall,
  type CollectiveEngine,
  dtypeNumber,
  type PairMessage,
  type ReducedDType,
  type Route,
} from '../collective-call.ts';
import type { CheckedCommunicatorOptions } from '../communicator-options.ts';
import { callWord, explainCollectiveFailure, messageWord, signatureOf, signatureOfPlace } from './kernel-failures.ts';
import { type RegisteredPlace, Registrations } from './registrations.ts';

type CollectivePlan = LaunchPlan<keyof typeof collectiveArguments.offset>;
type MessagePlan = LaunchPlan<keyof typeof messageArguments.offset>;

interface CollectiveLaunches {
  readonly copies: CollectivePlan;
  readonly reductions: Readonly<Record<ReducedDType, CollectivePlan>>;
  readonly messages: MessagePlan;
}

const THREADS = 512;
/** More lanes than this help a message no more. */
const LANE_BYTES = 32_768;

/** Compiles. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
async function loadCollectiveLaunches(device: CudaDevice): Promise<CollectiveLaunches> {
  const shape = { grid: 1, block: THREADS };
  const reducing = async (FORMAT: number): Promise<CollectivePlan> => {
    const { collectiveReductions } = await device.loadKernels(kernelFiles.collectiveReduction, { FORMAT });
    return collectiveReductions.plan(shape);
  };
  const [{ collectiveCopies }, { collectiveMessages }, bf16, f32, i32] = await Promise.all([
    device.loadKernels(kernelFiles.collectiveCopy),
    device.loadKernels(kernelFiles.collectiveMessage),
    reducing(reductionFormats.bf16),
    reducing(reductionFormats.f32),
    reducing(reductionFormats.i32),
  ]);
  return {
    copies: collectiveCopies.plan(shape),
    messages: collectiveMessages.plan(shape),
    reductions: { bf16, f32, i32 },
  };
}

interface BoundCollectives {
  readonly window: CudaWindow;
  readonly regions: CudaCollectiveRegions;
  readonly trap: number;
  /** Addresses of CollectiveBlock and of MessageBlock of each block, and of the table of registrations. */
  readonly blocks: Tensor;
  readonly messageBlocks: Tensor;
  readonly registrations: number;
}

function bindCollectives({ copies, reductions: reducing, messages }: CollectiveLaunches, of: BoundCollectives): void {
  const { window, regions, trap, registrations } = of;
  const calls = [copies, ...Object.values(reducing)];
  for (const { arguments: set } of [...calls, messages]) {
    for (const [index, address] of window.addresses.entries()) set.set('peers', address, index);
    set.set('registrations', registrations);
    set.set('trap', trap);
    set.set('ranks', window.addresses.length);
    set.set('rank', window.index);
  }
  for (const { arguments: set } of calls) {
    set.set('blocks', of.blocks.address);
    set.set('windowArrivals', regions.arrivals);
    set.set('windowRecords', regions.records);
    set.set('windowSlots', regions.slots);
    set.set('slotBytes', regions.slotBytes);
  }
  const set = messages.arguments;
  set.set('blocks', of.messageBlocks.address);
  set.set('windowFlags', regions.flags);
  set.set('windowPosts', regions.posts);
  set.set('windowChunks', regions.chunks);
  set.set('chunkBytes', regions.chunkBytes);
  set.set('laneBytes', LANE_BYTES);
  set.set('maxLanes', regions.lanes);
}

/** Lanes that a message of so many bytes has, as the kernel counts them. */
function lanesOf(bytes: number, { lanes }: CudaCollectiveRegions): number {
  return Math.max(1, Math.min(lanes, Math.ceil(bytes / LANE_BYTES)));
}

// What lies where in the window of a CUDA rank of a Communicator.

/** Steps whose slots and words are in use at once, and chunks of a message. */
const IN_TURN = 2;
const SLOT_ALIGNMENT = 128;

interface CudaCollectiveShape {
  readonly ranks: number;
  readonly pieceBytes: number;
  /** Blocks of kernels at most. */
  readonly numSms: number;
}

interface CudaCollectiveRegions {
  readonly bytes: number;
  readonly arrivals: number;
  readonly records: number;
  readonly flags: number;
  readonly posts: number;
  readonly chunks: number;
  readonly slots: number;
  /** Bytes that a block takes from one rank in a step. */
  readonly slotBytes: number;
  readonly chunkBytes: number;
  /** Pairs of a block that sends and one that receives. */
  readonly lanes: number;
}

/** Failures come first. Offsets are multiples of 128. */
export function cudaCollectiveRegions({ ranks, pieceBytes, numSms }: CudaCollectiveShape): CudaCollectiveRegions {
  const lanes = Math.max(1, Math.floor(numSms / 2));
  const slotBytes = alignUp(Math.ceil(pieceBytes / numSms), SLOT_ALIGNMENT);
  const chunkBytes = alignUp(Math.ceil(pieceBytes / lanes / IN_TURN), SLOT_ALIGNMENT);
  const cells = IN_TURN * COLLECTIVE_MAX_BLOCKS * COLLECTIVE_MAX_RANKS;
  let end = 0;
  const take = (bytes: number): number => {
    const begin = end;
    end += alignUp(bytes, SLOT_ALIGNMENT);
    return begin;
  };
  take(COLLECTIVE_MAX_RANKS * collectiveFailure.size);
  const regions = {
    arrivals: take(cells * 8),
    records: take(cells * collectiveRecord.size),
    flags: take(lanes * ranks * messageFlags.size),
    posts: take(lanes * ranks * COLLECTIVE_POSTS * messagePost.size),
    chunks: take(lanes * ranks * IN_TURN * chunkBytes),
    slots: take(numSms * IN_TURN * ranks * slotBytes),
  };
  return { ...regions, bytes: end, slotBytes, chunkBytes, lanes };
}

// Whether the receivers have taken all chunks of messages that this rank put into their windows: they say so in this rank's.

const POLL_MS = 1;

interface SentChunks {
  readonly window: CudaWindow;
  readonly regions: Pick<CudaCollectiveRegions, 'flags' | 'lanes'>;
  readonly messageBlocks: Tensor;
  /** Fails when nobody will take them any more. */
  readonly throwIfUnusable: () => void;
}

/** Waits for the end of the last message's kernel. Returns at the latest after `timeoutMs`. */
async function awaitTaken(sent: SentChunks, timeoutMs: number): Promise<void> {
  const { window, regions, messageBlocks } = sent;
  const ranks = window.ranks.length;
  const shape = { ranks, lanes: regions.lanes };
  const flags = new Tensor(window.storage, 'u8', [regions.lanes * ranks * messageFlags.size], regions.flags);
  const blocks = wordsOf(await messageBlocks.toHost());
  const end = performance.now() + timeoutMs;
  while (!areTaken(blocks, wordsOf(await flags.toHost()), shape) && performance.now() < end) {
    sent.throwIfUnusable();
    await sleep(POLL_MS);
  }
}

/** `blocks`: MessageBlock of each block; `flags`: MessageFlags by lane and rank. Counters wrap. */
export function areTaken(
  blocks: Uint32Array,
  flags: Uint32Array,
  { ranks, lanes }: { readonly ranks: number; readonly lanes: number },
): boolean {
  for (let lane = 0; lane < lanes; lane++) {
    // Blocks of even numbers send.
    const chunks = (2 * lane * messageBlock.size + messageBlock.offset.chunks) / 4;
    for (let peer = 0; peer < ranks; peer++) {
      const taken = flags[((lane * ranks + peer) * messageFlags.size + messageFlags.offset.taken) / 4]!;
      if (((taken - blocks[chunks + peer]!) | 0) < 0) return false;
    }
  }
  return true;
}

function wordsOf(bytes: ArrayBufferView): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}

/** What an engine is made of, and owns. */
interface CudaCollectivesParts {
  readonly device: CudaDevice;
  readonly group: RankGroup;
  readonly numSms: number;
  /** Calls of more bytes look whether the tensors are registered. */
  readonly directBytes: number;
  /** Whether copy engines move such calls, where they can. */
  readonly copyEngines: boolean;
  readonly regions: CudaCollectiveRegions;
  readonly launches: CollectiveLaunches;
  /** Owns `messageBlocks` and what else kernels work with. */
  readonly memory: Disposable;
  readonly messageBlocks: Tensor;
  readonly window: CudaWindow;
  readonly calls: CudaCalls;
  readonly order: CudaCallOrder;
  readonly registrations: Registrations;
}

/** What one block moves in a step before others share the work. */
const BLOCK_BYTES = 8192;
/** Each rank of three or more reduces a part for all from so many bytes on, which all peers together would get. */
const TWO_PHASES_BYTES = 1 << 19;

/** Kinds whose count is that of a rank's part. */
const parted: ReadonlySet<CollectiveCall['kind']> = new Set(['allGather', 'reduceScatter', 'allToAll']);

class CudaCollectives implements CollectiveEngine {
  readonly ordersCalls = true;
  readonly routes: readonly Route[];
  lastEvent: DeviceEvent | undefined;
  readonly #parts: CudaCollectivesParts;
  readonly #input: RegisteredPlace = { id: 0, offset: 0, within: 0, leastBytes: 0 };
  readonly #output: RegisteredPlace = { id: 0, offset: 0, within: 0, leastBytes: 0 };
  readonly #recording: RecordingOf;
  #requireIdle: (what: string) => void = () => {};
  /** Whether there was a message to a peer. */
  #sends = false;

  constructor(parts: CudaCollectivesParts) {
    this.#parts = parts;
    this.routes = parts.group.ranks.map((_, rank) => (rank === parts.group.rank ? 'self' : 'window'));
    this.#recording = { order: parts.order, begin: () => () => this.#requireIdle('the launch of a graph') };
  }

  guardLaunches(requireIdle: (what: string) => void): void {
    this.#requireIdle = requireIdle;
  }

  throwIfUnusable(): void {
    this.#parts.calls.throwIfUnusable();
  }

  /** Hot path. */
  run(call: CollectiveCall, options: CallWait & OverlapOptions): undefined {
    const plan = this.#planOf(call);
    const { calls, order, group, numSms, directBytes, registrations } = this.#parts;
    const set = plan.arguments;
    const ranks = group.size;
    const bytes = call.count * call.elementBytes;
    const isVariable = call.kind === 'allToAllv';
    const all = parted.has(call.kind) ? bytes * ranks : bytes;
    const opens = isVariable || (ranks > 1 && registrations.count > 0 && all > directBytes);
    if (opens && this.#parts.copyEngines && this.#runByEngines(call, options)) return;
    const inTwoPhases = call.kind === 'allReduce' && ranks > 2 && bytes * (ranks - 1) > TWO_PHASES_BYTES;
    const word = callWord(call);
    set.set('input', call.input);
    set.set('output', call.output);
    set.set('word', word);
    set.set('signature', signatureOf(word));
    set.set('bytes', bytes);
    set.set('shape', collectiveShapes[call.kind]);
    set.set('root', call.root);
    set.set('reduction', reductions[call.reduction]);
    set.set('elementBytes', call.elementBytes);
    set.set('dtype', dtypeNumber(call.dtype));
    set.set('opens', Number(opens));
    set.set('twoPhases', Number(inTwoPhases));
    if (opens) this.#setPlaces(plan, call);
    if (isVariable) setCounts(plan, call, ranks);
    set.set('timeoutNs', calls.timeoutNs(options));
    const share = inTwoPhases ? Math.ceil(bytes / ranks) : bytes;
    calls.record(this.#recording);
    plan.setGrid(opens ? numSms : Math.max(1, Math.min(numSms, Math.ceil(share / BLOCK_BYTES))));
    plan.launch(order.begin(options));
    this.lastEvent = order.end(options);
  }

  exchange(messages: readonly PairMessage[], options: CallWait & OverlapOptions): undefined {
    const { calls, order, group } = this.#parts;
    this.#sends ||= messages.some(({ direction, peer }) => direction === 'send' && peer !== group.rank);
    const batches = messageBatches(messages, group.rank, group.size);
    const timeoutNs = calls.timeoutNs(options);
    calls.record(this.#recording);
    const stream = order.begin(options);
    const { messages: plan } = this.#parts.launches;
    plan.arguments.set('timeoutNs', timeoutNs);
    for (const batch of batches) {
      plan.setGrid(this.#setMessages(batch));
      plan.launch(stream);
    }
    this.lastEvent = order.end(options);
  }

  /** Collective. */
  register(tensor: Tensor, wait: CallWait): Promise<void> {
    return this.#parts.registrations.add(tensor, wait);
  }

  async close(): Promise<void> {
    const { group, order, registrations, calls, regions, window, messageBlocks, memory } = this.#parts;
    const throwIfUnusable = (): void => calls.throwIfUnusable();
    // Kernels that still run use the window, here and those of receivers at the peers.
    await order.drained();
    const sent = { window, regions, messageBlocks, throwIfUnusable };
    if (this.#sends) await awaitTaken(sent, group.settings.timeoutMs).catch(() => {});
    for (const part of [order, registrations, calls, window, memory]) part[Symbol.dispose]();
  }

  #planOf({ kind, dtype }: CollectiveCall): CollectiveLaunches['copies'] {
    const { copies, reductions: reducing } = this.#parts.launches;
    if (kind !== 'allReduce' && kind !== 'reduceScatter' && kind !== 'reduce') return copies;
    return reducing[dtype as ReducedDType];
  }

  /** Between two meetings of one block each. False if the call must go the other way. */
  #runByEngines(call: CollectiveCall, options: CallWait & OverlapOptions): boolean {
    const { device, calls, order, group, registrations, launches } = this.#parts;
    const place = this.#output;
    registrations.locate(call.output, place);
    const copies = copiesByEngines(call, group, place);
    if (copies === undefined) return false;
    const plan = launches.copies;
    const set = plan.arguments;
    const word = callWord(call, true);
    set.set('word', word);
    set.set('signature', signatureOfPlace(word, place));
    set.set('shape', collectiveShapes.barrier);
    for (const field of ['bytes', 'root', 'opens', 'twoPhases'] as const) set.set(field, 0);
    set.set('timeoutNs', calls.timeoutNs(options));
    plan.setGrid(1);
    calls.record(this.#recording);
    const stream = order.begin(options);
    plan.launch(stream);
    for (const { rank, from, to, bytes } of copies) {
      device.copyAsync(
        to + (rank === group.rank ? call.output : registrations.addressAt(rank, place)),
        from,
        bytes,
        stream,
      );
    }
    plan.launch(stream);
    this.lastEvent = order.end(options);
    return true;
  }

  #setPlaces({ arguments: set }: CollectiveLaunches['copies'], { input, output }: CollectiveCall): void {
    const { registrations } = this.#parts;
    registrations.locate(input, this.#input);
    registrations.locate(output, this.#output);
    set.set('inputId', this.#input.id);
    set.set('inputOffset', this.#input.offset);
    set.set('outputId', this.#output.id);
    set.set('outputOffset', this.#output.offset);
  }

  /** Returns how many blocks they need. */
  #setMessages(batch: readonly LaunchedMessage[]): number {
    const { launches, registrations, regions } = this.#parts;
    const set = launches.messages.arguments;
    let lanes = 1;
    set.set('count', batch.length);
    for (const [index, { message, direction, to }] of batch.entries()) {
      const isReceived = message.direction === 'recv';
      if (isReceived) registrations.locate(message.address, this.#output);
      set.set('addresses', message.address, index);
      set.set('offsets', isReceived ? this.#output.offset : to, index);
      set.set('ids', isReceived ? this.#output.id : 0, index);
      set.set('words', messageWord(message), index);
      set.set('kinds', direction | (message.peer << 8), index);
      lanes = Math.max(lanes, lanesOf(message.bytes, regions));
    }
    return 2 * lanes;
  }
}

function setCounts({ arguments: set }: LaunchPlan, call: CollectiveCall, ranks: number): void {
  const { elementBytes, sendCounts, sendOffsets, recvCounts, recvOffsets } = call;
  for (let rank = 0; rank < ranks; rank++) {
    set.set('sendBytes', sendCounts[rank]! * elementBytes, rank);
    set.set('sendOffsets', sendOffsets[rank]! * elementBytes, rank);
    set.set('recvBytes', recvCounts[rank]! * elementBytes, rank);
    set.set('recvOffsets', recvOffsets[rank]! * elementBytes, rank);
  }
}

// Messages of a group in the order in which kernels take them, in launches that hold them.

/** What a kernel does with a message: `to` is where a copy goes. */
interface LaunchedMessage {
  readonly message: PairMessage;
  readonly direction: number;
  readonly to: number;
}

/**
 * In rounds: in the n-th one a rank sends to the rank n behind it, and receives from the one n before it, so that ranks never
 * wait in a circle. At most COLLECTIVE_POSTS from one rank to another in a launch: both sides divide them alike.
 */
export function messageBatches(messages: readonly PairMessage[], rank: number, ranks: number): LaunchedMessage[][] {
  const batches: LaunchedMessage[][] = [];
  const put = (batch: number, launched: LaunchedMessage): void => {
    while (batches.length <= batch) batches.push([]);
    batches[batch]!.push(launched);
  };
  const own = messages.filter(({ peer }) => peer === rank);
  const copied = own.filter(({ direction }) => direction === 'recv');
  for (const [index, message] of own.filter(({ direction }) => direction === 'send').entries()) {
    const to = copied[index]!.address;
    put(Math.floor(index / COLLECTIVE_POSTS), { message, direction: messageDirections.copy, to });
  }
  for (let round = 1; round < ranks; round++) {
    for (const direction of ['send', 'recv'] as const) {
      const peer = direction === 'send' ? (rank + round) % ranks : (rank + ranks - round) % ranks;
      const number = direction === 'send' ? messageDirections.send : messageDirections.receive;
      const ofPair = messages.filter((message) => message.peer === peer && message.direction === direction);
      for (const [index, message] of ofPair.entries()) {
        put(Math.floor(index / COLLECTIVE_POSTS), { message, direction: number, to: 0 });
      }
    }
  }
  return batches;
}

// Makes the engine of a Communicator on GPUs of one host: the ranks agree, compile, then make windows together.

/** What a rank has before the ranks agree that all have it. */
interface Prepared extends Disposable {
  readonly launches: CollectiveLaunches;
  readonly blocks: Tensor;
  readonly messageBlocks: Tensor;
  readonly table: Tensor<'i64'>;
}

/** Collective; fails alike on all ranks. */
export async function createCudaCollectives(
  group: RankGroup,
  device: CudaDevice,
  { pieceBytes, numSms, directBytes, copyEngines, ...wait }: CallWait & CheckedCommunicatorOptions,
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const config = { pieceBytes, numSms, directBytes, copyEngines, device: device.kind };
  await agreeOn(group, { what, config, prepare: () => requireCudaRanks(group) }, wait);
  // Compiling may fail or take long on one rank alone, so the ranks meet again after it.
  const launches = await loadCollectiveLaunches(device).catch((error: unknown) => error as Error);
  const prepare = (): Prepared => {
    if (launches instanceof Error) throw launches;
    const { set, made } = TensorSet.make(device, (tensors) => ({
      // The counts that each block goes on from.
      blocks: tensors.empty('u8', [COLLECTIVE_MAX_BLOCKS, collectiveBlock.size]),
      messageBlocks: tensors.empty('u8', [2 * COLLECTIVE_MAX_BLOCKS, messageBlock.size]),
      table: Registrations.makeTable(tensors),
    }));
    for (const tensor of [made.blocks, made.messageBlocks]) device.setBytes(tensor, 0);
    return { ...made, launches, [Symbol.dispose]: () => set[Symbol.dispose]() };
  };
  const parts = await agreeOn(group, { what: `${what} kernels`, config: {}, prepare, release }, wait);
  const made: { window?: CudaWindow } = {};
  try {
    const regions = cudaCollectiveRegions({ ranks: group.size, pieceBytes, numSms });
    const window = await CudaWindow.create({ ...wait, group, device, name: 'collectives', bytes: regions.bytes });
    made.window = window;
    await device.stream.idle(remaining(wait));
    const calls = new CudaCalls(group, device, { explain: (trap) => explainCollectiveFailure(trap, group.ranks) });
    const registrations = new Registrations(group, device, parts.table);
    const { blocks, messageBlocks } = parts;
    const bound = { window, regions, trap: calls.traps.address, blocks, messageBlocks };
    bindCollectives(parts.launches, { ...bound, registrations: registrations.address });
    const order = new CudaCallOrder(device);
    return new CudaCollectives({
      device,
      group,
      numSms,
      directBytes,
      copyEngines,
      regions,
      window,
      calls,
      order,
      registrations,
      messageBlocks,
      memory: parts,
      launches: parts.launches,
    });
  } catch (error) {
    made.window?.[Symbol.dispose]();
    release(parts);
    throw error;
  }
}

function requireCudaRanks({ size }: RankGroup): void {
  if (size <= COLLECTIVE_MAX_RANKS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `A Communicator on GPUs of one host has at most ${COLLECTIVE_MAX_RANKS} ranks, got ${size}: use a CpuDevice, or smaller groups (world.split)`,
    { details: { ranks: size } },
  );
}

function release(prepared: Prepared): void {
  prepared[Symbol.dispose]();
}

// What each rank copies, by copy engines, in a call whose output lies at the same registered place on all ranks.

interface EngineCopy {
  /** The rank whose output it goes to, from its begin on. */
  readonly rank: number;
  readonly to: number;
  readonly from: number;
  readonly bytes: number;
}

/**
 * In turns: in the n-th one a rank copies to the one n behind it, so that no link is busy for two. Undefined for calls that are
 * no copies of whole parts, or whose output is not registered, or would reach further than a registration of some rank.
 */
export function copiesByEngines(
  { kind, count, elementBytes, input, output }: CollectiveCall,
  { rank: me, size }: Pick<RankGroup, 'rank' | 'size'>,
  { id, leastBytes }: Readonly<RegisteredPlace>,
): EngineCopy[] | undefined {
  const isGather = kind === 'allGather';
  if (!isGather && (kind !== 'allToAll' || input === output)) return undefined;
  const bytes = count * elementBytes;
  if (id === 0 || bytes * size > leastBytes) return undefined;
  const copies: EngineCopy[] = [];
  for (let turn = 0; turn < size; turn++) {
    const rank = (me + turn) % size;
    const from = isGather ? input : input + rank * bytes;
    const isThere = rank === me && from === output + me * bytes;
    if (!isThere) copies.push({ rank, to: me * bytes, from, bytes });
  }
  return copies;
}
