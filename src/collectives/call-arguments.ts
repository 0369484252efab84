// What the calls of a Communicator take.
import { reductionFormats, reductions } from '../abi/element-formats.ts';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { checkSignal, checkTimeout } from '../core/deadline.ts';
import { dtypes } from '../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { Device, DeviceEvent } from '../device/device.ts';
import { type HostAccess, Tensor } from '../device/tensor.ts';
import { callOptionNames, type CallOptions, checkOverlap } from '../group/overlap.ts';
import { overlaps } from '../group/tensor-check.ts';
import type { RankGroup } from '../world/rank-group.ts';
import type { CollectiveCall, CollectiveKind, PairMessage, Reduction } from './collective-call.ts';

/** What every call returns. */
export interface CollectiveResult {
  /** The point at which the output is there and the input may be changed, with `asyncFinish`. */
  readonly event: DeviceEvent | undefined;
}

/** Arguments of the calls that move elements of every rank; each call says what it takes from `input`, and what it puts into `output`. */
export interface CollectiveArguments extends CallOptions {
  /** The elements, which are in `output` if it is left out: in place. */
  readonly input?: Tensor | undefined;
  /** The result, of the same dtype as `input`. */
  readonly output: Tensor;
}

interface WithReduction {
  /** 'sum' by default. */
  readonly op?: Reduction | undefined;
}

interface WithRoot {
  /** Rank of the group. */
  readonly root: number;
}

interface WithPeer {
  /** Rank of the group. */
  readonly peer: number;
}

export type BroadcastArguments = CollectiveArguments & WithRoot;

export type ReduceArguments = Partial<CollectiveArguments> & WithReduction & WithRoot;

export type AllReduceArguments = CollectiveArguments & WithReduction;

export type ReduceScatterArguments = CallOptions &
  WithReduction & { readonly input: Tensor; readonly output?: Tensor | undefined };

export type SendArguments = CallOptions & WithPeer & { readonly input: Tensor };

export type RecvArguments = CallOptions & WithPeer & { readonly output: Tensor };

type PerRank = readonly number[] | Int32Array | Uint32Array;

/** Arguments of allToAllv(). Counts and offsets are in elements, one for each rank. */
export interface AllToAllvArguments extends CallOptions {
  readonly input: Tensor;
  /** Must not overlap `input`. */
  readonly output: Tensor;
  readonly sendCounts: PerRank;
  readonly recvCounts: PerRank;
  /** The begin of what goes to each rank in `input`; one behind the other by default. */
  readonly sendOffsets?: PerRank | undefined;
  /** The same in `output`. */
  readonly recvOffsets?: PerRank | undefined;
}

/** Names of the arguments of each call. */
export const argumentNames: {
  readonly barrier: OptionNames<CallOptions>;
  readonly groupEnd: OptionNames<CallOptions>;
  readonly broadcast: OptionNames<BroadcastArguments>;
  readonly reduce: OptionNames<ReduceArguments>;
  readonly allGather: OptionNames<CollectiveArguments>;
  readonly reduceScatter: OptionNames<ReduceScatterArguments>;
  readonly allReduce: OptionNames<AllReduceArguments>;
  readonly allToAll: OptionNames<CollectiveArguments>;
  readonly allToAllv: OptionNames<AllToAllvArguments>;
  readonly send: OptionNames<SendArguments>;
  readonly recv: OptionNames<RecvArguments>;
} = {
  barrier: callOptionNames,
  groupEnd: callOptionNames,
  broadcast: { ...callOptionNames, input: true, output: true, root: true },
  reduce: { ...callOptionNames, input: true, output: true, root: true, op: true },
  allGather: { ...callOptionNames, input: true, output: true },
  reduceScatter: { ...callOptionNames, input: true, output: true, op: true },
  allReduce: { ...callOptionNames, input: true, output: true, op: true },
  allToAll: { ...callOptionNames, input: true, output: true },
  allToAllv: {
    ...callOptionNames,
    input: true,
    output: true,
    sendCounts: true,
    recvCounts: true,
    sendOffsets: true,
    recvOffsets: true,
  },
  send: { ...callOptionNames, input: true, peer: true },
  recv: { ...callOptionNames, output: true, peer: true },
};

/**
 * What the caller may change, such as lists of counts, as it is now: of a call that waits for its turn. By name, because
 * arguments may come from a prototype too.
 */
export function copyOfArguments<Arguments extends object>(
  names: Readonly<Record<string, true>>,
  args: Arguments,
): Arguments {
  const given = args as Readonly<Record<string, unknown>>;
  const copy: Record<string, unknown> = {};
  for (const name in names) {
    const value = given[name];
    if (value !== undefined) copy[name] = isList(value) ? [...value] : value;
  }
  return copy as Arguments;
}

function isList(value: unknown): value is ArrayLike<unknown> & Iterable<unknown> {
  return Array.isArray(value) || ArrayBuffer.isView(value);
}

// Checks of what a caller passes to a Communicator, and the call that an engine makes of it. Hot path where nothing is wrong.

/** What arguments are checked against, and where they go. */
export interface CallScope {
  readonly group: RankGroup;
  readonly device: Device;
  readonly call: CollectiveCall;
}

/** Fails with WL_INVALID_ARGUMENT for options that the call does not take, and the reason of an aborted signal. */
export function checkOptionsOf(name: keyof typeof argumentNames, args: CallOptions): void {
  const known: OptionNames<CallOptions> = argumentNames[name];
  if (typeof args !== 'object' || args === null) checkOptions<CallOptions>(args, known, `arguments of ${name}`);
  // No list of keys is made unless one is wrong.
  for (const key in args) if (!(key in known)) checkOptions(args, known, `arguments of ${name}`);
  if (args.timeoutMs !== undefined) checkTimeout(args.timeoutMs);
  checkOverlap(args);
  checkSignal(args.signal);
  if (args.signal?.aborted) throw args.signal.reason;
}

export function readBarrier({ call }: CallScope): void {
  fill(call, 'barrier', 0);
  // It has none, and all ranks say the same.
  call.dtype = 'u8';
  call.elementBytes = 1;
}

export function readBroadcast(scope: CallScope, { input, output, root }: BroadcastArguments): void {
  const { call, group } = scope;
  requireRank('root', root, group);
  requireTensor('output', output, scope.device);
  const from = input !== undefined && group.rank === root ? input : output;
  requireLike('input', from, output, output.elements);
  requireSameOrApart('input', from, output);
  fill(call, 'broadcast', output.elements);
  place(call, from, from.address, output.address);
  call.root = root;
}

export function readReduce(scope: CallScope, { input, output, root, op = 'sum' }: ReduceArguments): void {
  const { call, device, group } = scope;
  requireRank('root', root, group);
  const from = input ?? output;
  requireTensor('input', from, device);
  requireReduction(from, op);
  const isRoot = group.rank === root;
  if (isRoot || output !== undefined) {
    requireLike('output', output, from, from.elements);
    requireSameOrApart('output', output as Tensor, from);
  }
  fill(call, 'reduce', from.elements);
  place(call, from, from.address, isRoot ? (output as Tensor).address : 0);
  call.root = root;
  call.reduction = op;
}

export function readAllReduce(scope: CallScope, { input, output, op = 'sum' }: AllReduceArguments): void {
  const { call, device } = scope;
  requireTensor('output', output, device);
  requireReduction(output, op);
  const from = input ?? output;
  requireLike('input', from, output, output.elements);
  requireSameOrApart('input', from, output);
  fill(call, 'allReduce', output.elements);
  place(call, output, from.address, output.address);
  call.reduction = op;
}

export function readAllGather(scope: CallScope, { input, output }: CollectiveArguments): void {
  const { call, device, group } = scope;
  requireTensor('output', output, device);
  const count = share('output', output, group.size);
  const own = output.address + group.rank * count * dtypes[output.dtype].bytes;
  if (input !== undefined) {
    requireLike('input', input, output, count);
    if (input.address !== own) requireApart('input', input, output);
  }
  fill(call, 'allGather', count);
  place(call, output, input?.address ?? own, output.address);
}

export function readReduceScatter(scope: CallScope, { input, output, op = 'sum' }: ReduceScatterArguments): void {
  const { call, device, group } = scope;
  requireTensor('input', input, device);
  requireReduction(input, op);
  const count = share('input', input, group.size);
  const own = input.address + group.rank * count * dtypes[input.dtype].bytes;
  if (output !== undefined) {
    requireLike('output', output, input, count);
    if (output.address !== own) requireApart('output', output, input);
  }
  fill(call, 'reduceScatter', count);
  place(call, input, input.address, output?.address ?? own);
  call.reduction = op;
}

export function readAllToAll(scope: CallScope, { input, output }: CollectiveArguments): void {
  const { call, device, group } = scope;
  requireTensor('output', output, device);
  const count = share('output', output, group.size);
  const from = input ?? output;
  requireLike('input', from, output, output.elements);
  requireSameOrApart('input', from, output);
  fill(call, 'allToAll', count);
  place(call, output, from.address, output.address);
}

export function readAllToAllv(scope: CallScope, args: AllToAllvArguments): void {
  const { call, device, group } = scope;
  const { input, output } = args;
  requireTensor('input', input, device);
  requireTensor('output', output, device);
  if (output.dtype !== input.dtype) throw invalidArgument('output', describe(output), `a ${input.dtype} tensor`);
  requireApart('output', output, input);
  readCounts('send', args.sendCounts, args.sendOffsets, { tensor: input, ranks: group.size, ...sendOf(call) });
  readCounts('recv', args.recvCounts, args.recvOffsets, { tensor: output, ranks: group.size, ...recvOf(call) });
  if (args.recvOffsets !== undefined) requireApartParts(call, group.size);
  const self = group.rank;
  if (call.sendCounts[self] !== call.recvCounts[self]) {
    throw invalidArgument(
      `recvCounts[${self}]`,
      call.recvCounts[self],
      `${call.sendCounts[self]}, as sendCounts[${self}]`,
    );
  }
  fill(call, 'allToAllv', 0);
  place(call, input, input.address, output.address);
}

export function readSend(scope: Omit<CallScope, 'call'>, { input, peer }: SendArguments): PairMessage {
  requireRank('peer', peer, scope.group);
  requireTensor('input', input, scope.device);
  return { direction: 'send', peer, address: input.address, bytes: input.bytes, dtype: input.dtype, tensor: input };
}

export function readRecv(scope: Omit<CallScope, 'call'>, { output, peer }: RecvArguments): PairMessage {
  requireRank('peer', peer, scope.group);
  requireTensor('output', output, scope.device);
  return { direction: 'recv', peer, address: output.address, bytes: output.bytes, dtype: output.dtype, tensor: output };
}

/** Messages of a rank to itself must have a counterpart in the group, or it would wait for itself. */
export function checkOwnMessages(messages: readonly PairMessage[], rank: number): void {
  const own = messages.filter(({ peer }) => peer === rank);
  if (own.length === 0) return;
  const sends = own.filter(({ direction }) => direction === 'send');
  const receives = own.filter(({ direction }) => direction === 'recv');
  const fits = sends.every(({ bytes, dtype }, at) => receives[at]?.bytes === bytes && receives[at].dtype === dtype);
  if (fits && sends.length === receives.length) return;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Rank ${rank} sends to itself: expected one recv from itself for each send in the same group, in order and of equal count and dtype, got sends of ${listed(sends)} and recvs of ${listed(receives)}`,
    { details: { rank, sends: sends.length, recvs: receives.length } },
  );
}

/** Checks messages that begin later than they were read. Fails with WL_INVALID_ARGUMENT where the memory may be of others by now. */
export function requireLive(messages: readonly PairMessage[]): void {
  for (const { direction, tensor } of messages) {
    if (!tensor.storage.disposed) continue;
    const expected = `a tensor that lives until the ${direction} is over`;
    throw invalidArgument(direction === 'send' ? 'input' : 'output', 'a closed tensor', expected);
  }
}

function listed(messages: readonly PairMessage[]): string {
  return messages.map(({ bytes, dtype }) => `${bytes / dtypes[dtype].bytes} ${dtype}`).join(', ') || 'none';
}

function fill(call: CollectiveCall, kind: CollectiveKind, count: number): void {
  call.kind = kind;
  call.count = count;
  call.reduction = 'sum';
  call.root = 0;
  call.input = 0;
  call.output = 0;
}

function place(call: CollectiveCall, { dtype }: Tensor, input: number, output: number): void {
  call.dtype = dtype;
  call.elementBytes = dtypes[dtype].bytes;
  call.input = input;
  call.output = output;
}

function requireRank(name: string, value: unknown, { size }: RankGroup): void {
  if (Number.isInteger(value) && (value as number) >= 0 && (value as number) < size) return;
  throw invalidArgument(name, value, `a rank of the group, 0 to ${size - 1}`);
}

/** Fails with WL_INVALID_ARGUMENT. */
export function requireTensor(name: string, value: unknown, device: HostAccess): asserts value is Tensor {
  if (value instanceof Tensor && value.device === device && !value.storage.disposed) return;
  const expected = `a tensor on the Communicator's ${device.kind} device`;
  if (!(value instanceof Tensor)) throw invalidArgument(name, value, expected);
  if (value.storage.disposed) throw invalidArgument(name, 'a closed tensor', expected);
  throw invalidArgument(name, `a tensor of another ${value.device.kind} device`, expected);
}

/** Requires a tensor on the device and of the dtype of `like`, with so many elements. */
function requireLike(name: string, value: unknown, like: Tensor, elements: number): void {
  requireTensor(name, value, like.device);
  if (value.dtype === like.dtype && value.elements === elements) return;
  throw invalidArgument(name, describe(value), `${elements} elements of ${like.dtype}`);
}

function requireReduction({ dtype }: Tensor, op: unknown): void {
  if (typeof op !== 'string' || !Object.hasOwn(reductions, op)) {
    throw invalidArgument('op', op, `one of ${Object.keys(reductions).join(', ')}`);
  }
  if (dtype in reductionFormats) return;
  throw invalidArgument('dtype', dtype, `one that can be reduced: ${Object.keys(reductionFormats).join(', ')}`);
}

/** Elements of each rank in a tensor for all of them. */
function share(name: string, tensor: Tensor, ranks: number): number {
  const count = tensor.elements / ranks;
  if (Number.isInteger(count)) return count;
  throw invalidArgument(`${name}.elements`, tensor.elements, `a multiple of the ${ranks} ranks of the group`);
}

function requireApart(name: string, tensor: Tensor, other: Tensor): void {
  if (!overlaps(tensor, other.address, other.bytes)) return;
  throw invalidArgument(name, 'a tensor that overlaps the other one', 'the same place (in place) or memory of its own');
}

function requireSameOrApart(name: string, tensor: Tensor, other: Tensor): void {
  if (tensor.address !== other.address) requireApart(name, tensor, other);
}

interface CountTarget {
  readonly tensor: Tensor;
  readonly ranks: number;
  readonly counts: Uint32Array;
  readonly offsets: Uint32Array;
}

function sendOf({ sendCounts, sendOffsets }: CollectiveCall): Pick<CountTarget, 'counts' | 'offsets'> {
  return { counts: sendCounts, offsets: sendOffsets };
}

function recvOf({ recvCounts, recvOffsets }: CollectiveCall): Pick<CountTarget, 'counts' | 'offsets'> {
  return { counts: recvCounts, offsets: recvOffsets };
}

function readCounts(
  side: 'send' | 'recv',
  given: ArrayLike<number>,
  places: ArrayLike<number> | undefined,
  { tensor, ranks, counts, offsets }: CountTarget,
): void {
  requireNumbers(`${side}Counts`, given, ranks);
  if (places !== undefined) requireNumbers(`${side}Offsets`, places, ranks);
  let end = 0;
  for (let rank = 0; rank < ranks; rank++) {
    const offset = places === undefined ? end : places[rank]!;
    end = offset + given[rank]!;
    if (end > tensor.elements) {
      throw invalidArgument(
        `${side}Counts[${rank}]`,
        given[rank],
        `at most the ${tensor.elements} elements of its tensor, from ${offset} on`,
      );
    }
    counts[rank] = given[rank]!;
    offsets[rank] = offset;
  }
}

type Parts = Pick<CollectiveCall, 'recvCounts' | 'recvOffsets'>;

/** Parts of two ranks must not share elements. Those in the order of the ranks, the usual ones, take one pass. */
function requireApartParts(parts: Parts, ranks: number): void {
  const { recvCounts: counts, recvOffsets: offsets } = parts;
  let end = 0;
  for (let rank = 0; rank < ranks; rank++) {
    if (counts[rank] === 0) continue;
    if (offsets[rank]! < end) requireApartFromEarlier(rank, parts);
    end = Math.max(end, offsets[rank]! + counts[rank]!);
  }
}

function requireApartFromEarlier(rank: number, { recvCounts: counts, recvOffsets: offsets }: Parts): void {
  const begin = offsets[rank]!;
  const end = begin + counts[rank]!;
  for (let other = 0; other < rank; other++) {
    const [from, to] = [offsets[other]!, offsets[other]! + counts[other]!];
    if (counts[other] === 0 || to <= begin || from >= end) continue;
    const expected = `a part of output apart from that of rank ${other}, elements ${from} to ${to - 1}`;
    throw invalidArgument(`recvOffsets[${rank}]`, begin, `${expected} (rank ${rank} sends ${end - begin})`);
  }
}

function requireNumbers(name: string, values: ArrayLike<number>, ranks: number): void {
  const isCounts = Array.isArray(values) || values instanceof Int32Array || values instanceof Uint32Array;
  if (!isCounts || values.length !== ranks) throw invalidArgument(name, values, `${ranks} numbers, one for each rank`);
  for (let rank = 0; rank < ranks; rank++) {
    const value = values[rank]!;
    if (!Number.isInteger(value) || value < 0) throw invalidArgument(`${name}[${rank}]`, value, 'an integer from 0 on');
  }
}

function describe(tensor: Tensor): string {
  return `${tensor.dtype} [${tensor.shape.join(', ')}]`;
}
