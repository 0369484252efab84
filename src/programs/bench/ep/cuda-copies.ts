// The ceilings on GPUs: kernels that copy the same rows between the same memory and do nothing else, in their best shape, checked.
import type { benchCopyArguments, benchMeetArguments } from '../../../abi/bench.ts';
import { alignUp, type Block, type Layout } from '../../../abi/layout.ts';
import { type DType, dtypes as elementTypes } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { median } from '../../../core/quantile.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { Tensor } from '../../../device/tensor.ts';
import type { EpBuffer, RowsLike } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { measureInTurn, monotonicMicroseconds } from '../harness.ts';
import { gpuMachineDocument } from '../machine.ts';
import { makeEpInputs, makeFp8Rows } from './ep-calls.ts';
import {
  countRows,
  planCopies,
  shareTokens,
  checkEpWorkload,
  combineRowBytes,
  type EpWorkload,
} from './ep-workload.ts';
import { EP_SYNC_BYTES } from '../../../abi/ep.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import { callWord, describeCall } from '../../../group/calls.ts';
import { numberAfter } from '../../../group/cuda-calls.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

export type RowDtype = EpWorkload['dtype'];

/** What all SM counts share: inputs on the device, which rows travel where, and where the ranks meet. */
export type CudaTools = Awaited<ReturnType<typeof makeCudaTools>>;

/**
 * Collective. The tensors live as long as the device. `isOneShape`: of the bare copies only a usual shape is tried. Fails
 * with WL_INVALID_ARGUMENT for a workload that does not work.
 */
export async function makeCudaTools(
  world: World,
  device: CudaDevice,
  shape: Omit<EpWorkload, 'dtype'>,
  isOneShape: boolean,
) {
  // What is generated for both kinds of rows does not depend on them.
  const workload: EpWorkload = { ...shape, dtype: 'bf16' };
  checkEpWorkload(workload);
  const { tokens } = workload;
  const gpuMachine = await gpuMachineDocument(world, device);
  const inputs = await makeEpInputs(world, device, workload);
  const { inRanks, counts } = await shareTokens(world, inputs.routing.topkIdx, workload);
  const plan = planCopies(inRanks, counts, world.rank);
  const table = new Int32Array(tokens * world.size).fill(-1);
  for (const [copy, token] of plan.tokens.entries()) {
    table[token * world.size + plan.destinations[copy]!] = plan.rows[copy]!;
  }
  const meeting = await CudaMeeting.create(world, device);
  const stopwatch = new CudaStopwatch(meeting);
  return {
    ...inputs,
    world,
    device,
    workload,
    gpuMachine,
    isOneShape,
    fp8: await makeFp8Rows(device, workload, world.rank),
    /** i32 [T, ranks]: row of each token at each rank, -1 for none. */
    table: await device.tensor('i32', [tokens, world.size], table),
    /** i32 [1], zero between kernels. */
    counter: await device.tensor('i32', [1], new Int32Array(1)),
    rows: countRows(counts),
    meeting,
    stopwatch,
    [Symbol.dispose](): void {
      stopwatch[Symbol.dispose]();
      meeting[Symbol.dispose]();
    },
  };
}

export function inputRows({ bf16, fp8 }: CudaTools, dtype: RowDtype): RowsLike {
  return dtype === 'bf16' ? bf16 : fp8;
}

/** The bare copies of what a buffer moves, each the fastest of its kind and checked, by the names of their cases. */
type BareCopies = ReadonlyMap<string, RowCopy>;

/** The names of the bare copies: of combine's rows, and of dispatched ones. */
export const pullName = 'pull copy bf16';
export function pushName(dtype: RowDtype): string {
  return `push copy ${dtype}`;
}

/** Collective. Pulls find what a dispatch of bf16 rows has left. */
export async function makeBareCopies(
  tools: CudaTools,
  buffer: EpBuffer,
  dtypes: Iterable<RowDtype>,
): Promise<BareCopies> {
  const { bf16, topkIdx, topkWeights } = tools;
  (await buffer.dispatch({ x: bf16, topkIdx, topkWeights })).handle.close();
  const copies = new Map([[pullName, await makePull(tools, buffer)]]);
  for (const dtype of new Set(dtypes)) copies.set(pushName(dtype), await makePush(tools, buffer, dtype));
  return copies;
}

async function makePull(tools: CudaTools, buffer: EpBuffer): Promise<RowCopy> {
  const { out, bf16, workload } = tools;
  const copy = await fastestRowCopy(tools, buffer, {
    direction: 'pull',
    rows: rowAddresses(buffer, 'combineRows'),
    rowBytes: combineRowBytes(workload),
    local: out,
  });
  await checkPull(tools.meeting, copy, { sent: bf16, out });
  return copy;
}

async function makePush(tools: CudaTools, buffer: EpBuffer, dtype: RowDtype): Promise<RowCopy> {
  const { meeting, workload, topkIdx, topkWeights } = tools;
  const rows = rowAddresses(buffer, 'rows');
  const input = inputRows(tools, dtype);
  const [local, scales] = 'scales' in input ? [input.data, input.scales] : [input, undefined];
  const rowBytes = local.bytes / workload.tokens;
  // Scales go behind the fp8 rows, into the part of the region that only bf16 rows use.
  const sidesStart = alignUp(buffer.size.maxRecvTokens * rowBytes, 128);
  const sides = scales && {
    rows: rows.map((address) => address + sidesStart),
    bytes: scales.bytes / workload.tokens,
    local: scales,
  };
  const options = { direction: 'push', rows, rowBytes, local } as const;
  const copy = await fastestRowCopy(tools, buffer, sides ? { ...options, sides } : options);
  const { recvX, handle } = await buffer.dispatch({ x: input, topkIdx, topkWeights });
  const received = 'scales' in recvX ? recvX : { data: recvX, scales: undefined };
  const places = [{ left: received.data as Tensor, place: received.data as Tensor }];
  if (received.scales) {
    const { storage, shape } = received.scales;
    const place = new Tensor(storage, 'f32', shape, received.data.address - storage.address + sidesStart);
    places.push({ left: received.scales, place });
  }
  await checkPush(meeting, copy, places);
  handle.close();
  return copy;
}

function rowAddresses(buffer: EpBuffer, region: 'rows' | 'combineRows'): number[] {
  return Array.from({ length: buffer.group.size }, (_, rank) => buffer.peerRowAddress(rank, 0, region));
}

/** Barriers, before what is staged, and what the kernels declare themselves. */
const BARRIER_BYTES = 1024;
const STATIC_BYTES = 1024;
/** Rounds of all shapes, then of the few that were the fastest; one more round, the first, warms up. */
const FIRST_ROUNDS = 2;
const FINALISTS = 6;
const FINAL_ROUNDS = 9;

interface RowCopyOptions {
  readonly direction: 'push' | 'pull';
  /** The address of row 0 at each rank, as this process maps it. */
  readonly rows: readonly number[];
  readonly rowBytes: number;
  /** This rank's rows: what is pushed, or where what is pulled goes, one row per token. */
  readonly local: Tensor;
  /** Rows that travel beside them (the scales of fp8 rows). */
  readonly sides?: { readonly rows: readonly number[]; readonly bytes: number; readonly local: Tensor };
}

type CopyLaunchPlan = LaunchPlan<FieldOf<typeof benchCopyArguments>>;

interface Trial {
  readonly shape: CopyShape;
  readonly launch: () => void;
}

interface RowCopy extends Trial {
  readonly shapesTried: number;
}

/** Collective. Tries every shape that fits and keeps the fastest, unless one is to do. */
async function fastestRowCopy(tools: CudaTools, buffer: EpBuffer, options: RowCopyOptions): Promise<RowCopy> {
  const { world, device, meeting, isOneShape } = tools;
  const { sharedBytesPerBlock, multiprocessors } = device.properties;
  const of: CopyOf = {
    direction: options.direction,
    numSms: Math.min(buffer.config.numSms, multiprocessors),
    ranks: world.size,
    rowBytes: options.rowBytes,
    room: sharedBytesPerBlock - BARRIER_BYTES - STATIC_BYTES,
  };
  const { benchPush, benchPull } = await device.loadKernels(kernelFiles.bench);
  const kernel = options.direction === 'push' ? benchPush : benchPull;
  const trials = (isOneShape ? [usualCopyShape(of)] : copyShapes(of)).map((shape): Trial => {
    const sharedBytes = BARRIER_BYTES + stagedBytes(of, shape);
    const plan = kernel.plan({ grid: shape.blocks, block: shape.warps * 32, sharedBytes });
    bindCopy(plan, tools, options);
    plan.arguments.set('partBytes', shape.partBytes);
    plan.arguments.set('slots', shape.slots);
    const launch = (): void => {
      plan.arguments.set('openingEpoch', meeting.nextEpoch());
      plan.arguments.set('closingEpoch', meeting.nextEpoch());
      plan.launch();
    };
    return { shape, launch };
  });
  if (isOneShape) return { ...trials[0]!, shapesTried: 1 };
  const finalists = await fastestFirst(tools, trials, FIRST_ROUNDS);
  const [best] = await fastestFirst(tools, finalists.slice(0, FINALISTS), FINAL_ROUNDS);
  return { ...best!, shapesTried: trials.length };
}

/** Collective. By the median of rounds that take the trials in turn, of the slowest rank. */
async function fastestFirst(
  { world, stopwatch }: CudaTools,
  trials: readonly Trial[],
  iterations: number,
): Promise<Trial[]> {
  const samples = await measureInTurn(undefined, trials, { warmup: 1, iterations }, async ({ launch }) => ({
    time: await stopwatch.onDevice(launch),
  }));
  const medians = samples.map((of) => median(of.slowest('time')));
  const ofRanks = await world.allGather('bench-shapes', medians);
  return trials
    .map((trial, index) => ({ trial, slowest: Math.max(...ofRanks.map((rank) => rank[index]!)) }))
    .toSorted((a, b) => a.slowest - b.slowest)
    .map(({ trial }) => trial);
}

function bindCopy({ arguments: set }: CopyLaunchPlan, tools: CudaTools, options: RowCopyOptions): void {
  tools.meeting.bind(set);
  for (const [rank, address] of options.rows.entries()) set.set('rows', address, rank);
  for (const [rank, address] of (options.sides?.rows ?? []).entries()) set.set('sides', address, rank);
  set.set('local', options.local.address);
  set.set('localSides', options.sides?.local.address ?? 0);
  set.set('table', tools.table.address);
  set.set('counter', tools.counter.address);
  set.set('tokens', tools.workload.tokens);
  set.set('rowBytes', options.rowBytes);
  set.set('sideBytes', options.sides?.bytes ?? 0);
}

export interface CopyShape {
  /** Each on an SM of its own; at most the SMs that the case has. */
  readonly blocks: number;
  /** Warps of a block. */
  readonly warps: number;
  /** Parts that one warp has in shared memory at once. */
  readonly slots: number;
  /** A row moves in equal parts of so many bytes. */
  readonly partBytes: number;
}

export interface CopyOf {
  readonly direction: 'push' | 'pull';
  readonly numSms: number;
  readonly ranks: number;
  readonly rowBytes: number;
  /** Shared memory of a block for staging. */
  readonly room: number;
}

/** The kernels take at most 32 warps and 4 slots. */
const warpCounts = [2, 3, 4, 6, 8, 12, 16, 24, 32] as const;
const slotCounts = [1, 2, 4] as const;
/** Most bytes of a part, before it is made an equal part of the row. */
const partLimits = [16_384, 8192, 4096, 2048, 1024] as const;

/**
 * At least one. Fewer bytes under way than fit are often faster: ranks that all send at once get into each other's way,
 * which is also why some of the SMs are better left idle.
 */
export function copyShapes(of: CopyOf): CopyShape[] {
  const parts = new Set(partLimits.map((limit) => equalPart(of.rowBytes, limit)));
  const blockCounts = countsTo(of.numSms);
  const shapes: CopyShape[] = [];
  for (const partBytes of parts) {
    for (const slots of slotCounts) {
      for (const warps of warpCounts) {
        for (const blocks of blockCounts) shapes.push({ blocks, warps, slots, partBytes });
      }
    }
  }
  return shapes.filter((shape) => stagedBytes(of, shape) <= of.room);
}

/** One that is never far from the fastest, for runs that do not seek it. */
export function usualCopyShape(of: CopyOf): CopyShape {
  const shapes = copyShapes(of);
  return shapes.find(({ blocks, warps, slots }) => blocks === of.numSms && warps === 8 && slots === 2) ?? shapes[0]!;
}

/** Counts from half of the SMs to all of them, at most 9. */
function countsTo(sms: number): number[] {
  const least = Math.ceil(sms / 2);
  const step = Math.max(1, Math.ceil((sms - least) / 8));
  return Array.from({ length: Math.floor((sms - least) / step) + 1 }, (_, index) => sms - index * step);
}

/** Bytes of shared memory that the warps of a block stage in. */
export function stagedBytes(of: CopyOf, { warps, slots, partBytes }: Omit<CopyShape, 'blocks'>): number {
  return warps * slots * partBytes * (of.direction === 'pull' ? of.ranks : 1);
}

/** Whole lines of 128 bytes, where a row has several parts. */
function equalPart(rowBytes: number, limit: number): number {
  const parts = Math.ceil(rowBytes / limit);
  return alignUp(Math.ceil(rowBytes / parts), parts === 1 ? 16 : 128);
}

/**
 * Collective. `places` pairs what a dispatch has just left in this rank's window with where the copy puts the same. All
 * of it is wiped out, and the copies of all ranks must bring the same bytes back. Fails with WL_CHECK.
 */
async function checkPush(
  meeting: CudaMeeting,
  copy: RowCopy,
  places: readonly { readonly left: Tensor; readonly place: Tensor }[],
): Promise<void> {
  const expected: Uint8Array[] = [];
  for (const { left } of places) expected.push(bytesOf(await left.toHost()));
  for (const { place } of places) await wipe(place);
  await meeting.together();
  copy.launch();
  await meeting.together();
  for (const [index, { place }] of places.entries()) {
    const wrong = firstDifference(expected[index]!, bytesOf(await place.toHost()));
    if (wrong !== undefined) throw wrongRow(meeting, place, wrong);
  }
}

/** Collective. With every token's rows in the windows, pulling must bring the tokens back to `out`. */
async function checkPull(
  meeting: CudaMeeting,
  copy: RowCopy,
  { sent, out }: { readonly sent: Tensor; readonly out: Tensor },
): Promise<void> {
  await wipe(out);
  await meeting.together();
  copy.launch();
  await meeting.together();
  const wrong = firstDifference(bytesOf(await sent.toHost()), bytesOf(await out.toHost()));
  if (wrong !== undefined) throw wrongRow(meeting, out, wrong);
}

function wipe<D extends DType>(tensor: Tensor<D>): Promise<void> {
  return tensor.fromHost(
    new elementTypes[tensor.dtype].array(tensor.elements) as Parameters<typeof tensor.fromHost>[0],
  );
}

function bytesOf(values: ArrayBufferView): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function firstDifference(expected: Uint8Array, got: Uint8Array): number | undefined {
  if (Buffer.compare(expected, got) === 0) return undefined;
  return expected.findIndex((value, index) => value !== got[index]);
}

function wrongRow({ world }: CudaMeeting, tensor: Tensor, byte: number): WeftlineError {
  const row = Math.floor(byte / (tensor.bytes / tensor.shape[0]!));
  return new WeftlineError('WL_CHECK', `A bare copy of the bench left another row ${row} at rank ${world.rank}`, {
    details: { rank: world.rank, row },
  });
}

// The clock of benches on GPUs: where the ranks meet on their devices, and how long enqueued work takes from there on.

/** The names of a layout's fields. */
type FieldOf<L> = L extends Layout<infer Name> ? Name : never;

/** What every kernel that meets has among its arguments. */
type MeetingFields = Block<'peers' | 'ranks' | 'rank' | 'trap' | 'timeoutNs' | 'call'>;

type MeetingPlan = LaunchPlan<FieldOf<typeof benchMeetArguments>>;

class CudaMeeting implements Disposable {
  readonly world: World;
  readonly device: CudaDevice;
  readonly #window: CudaWindow;
  readonly #plan: MeetingPlan;
  #epoch = 0;

  /** Collective. Fails as CudaWindow.create() and device.loadKernels() do. */
  static async create(world: World, device: CudaDevice): Promise<CudaMeeting> {
    const { benchMeet } = await device.loadKernels(kernelFiles.bench);
    const window = await CudaWindow.create({ group: world, device, name: 'bench', bytes: EP_SYNC_BYTES });
    return new CudaMeeting(world, device, [window, benchMeet.plan({ grid: 1, block: 32 })]);
  }

  private constructor(world: World, device: CudaDevice, [window, plan]: readonly [CudaWindow, MeetingPlan]) {
    this.world = world;
    this.device = device;
    this.#window = window;
    this.#plan = plan;
    this.bind(plan.arguments);
  }

  /** Sets what a kernel that meets needs to know of the ranks. */
  bind(fields: MeetingFields): void {
    const { world, device } = this;
    for (const [index, address] of this.#window.addresses.entries()) fields.set('peers', address, index);
    fields.set('ranks', world.size);
    fields.set('rank', world.rank);
    fields.set('trap', device.traps.address);
    fields.set('timeoutNs', Math.round(world.settings.timeoutMs * 1e6));
    fields.set('call', callWord({ kind: 'barrier' }, 'opening'));
  }

  /** The epoch of the next barrier; all ranks enqueue the same kernels in the same order. 0 is no epoch. */
  nextEpoch(): number {
    this.#epoch = numberAfter(this.#epoch);
    return this.#epoch;
  }

  /**
   * Enqueues a barrier between the devices and a pause behind it. What is enqueued within the pause starts on all of them
   * at nearly the same time, and without waiting for the host.
   */
  launch(pauseMicroseconds = 0): void {
    this.#plan.arguments.set('holdNs', Math.round(pauseMicroseconds * 1000));
    this.#plan.arguments.set('epoch', this.nextEpoch());
    this.#plan.launch();
  }

  /** Returns on all ranks within microseconds of each other, all that was enqueued before being done everywhere. */
  async together(): Promise<void> {
    this.launch();
    await this.device.stream.idle();
    this.throwIfExpired();
  }

  /** Fails with WL_TIMEOUT or WL_CONFIG_MISMATCH when a barrier did. */
  throwIfExpired(): void {
    this.device.traps.throwIfExpired(describeCall, this.world.ranks);
  }

  /** Nothing that meets here may be running on any rank. */
  [Symbol.dispose](): void {
    this.#window[Symbol.dispose]();
  }
}

/** Longer than a call takes to enqueue its kernels, also on slow hosts; shorter than a host polls before it yields. */
const PAUSE_MICROSECONDS = 120;

class CudaStopwatch implements Disposable {
  readonly #meeting: CudaMeeting;
  readonly #begin: CudaEvent;
  readonly #end: CudaEvent;

  constructor(meeting: CudaMeeting) {
    const { device } = meeting;
    this.#meeting = meeting;
    this.#begin = device.createEvent({ timing: true });
    this.#end = device.createEvent({ timing: true });
  }

  /**
   * Collective. Microseconds on this device from the moment when all devices have come, with the call's kernels enqueued
   * by then; what the call itself waits for is in the time as far as the device idles meanwhile.
   */
  async onDevice(run: () => unknown): Promise<number> {
    const { stream } = this.#meeting.device;
    this.#meeting.launch(PAUSE_MICROSECONDS);
    this.#begin.record(stream);
    await run();
    this.#end.record(stream);
    await this.#end.wait();
    this.#meeting.throwIfExpired();
    return this.#end.millisecondsSince(this.#begin) * 1000;
  }

  /**
   * Collective. The same call from idle devices, as the host sees it: microseconds until it returned, and until its results
   * were ready and the host had noticed.
   */
  async onHost(run: () => unknown): Promise<{ readonly returned: number; readonly ready: number }> {
    await this.#meeting.together();
    const begin = monotonicMicroseconds();
    await run();
    const returned = monotonicMicroseconds() - begin;
    this.#end.record(this.#meeting.device.stream);
    await this.#end.wait();
    const ready = monotonicMicroseconds() - begin;
    this.#meeting.throwIfExpired();
    return { returned, ready };
  }

  [Symbol.dispose](): void {
    this.#begin[Symbol.dispose]();
    this.#end[Symbol.dispose]();
  }
}
