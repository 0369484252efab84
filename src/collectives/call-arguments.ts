// What the calls of a Communicator take.
import type { OptionNames } from '../core/check-options.ts';
import { type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import type { OverlapOptions } from '../group/overlap.ts';
import type { DeviceEvent } from '../device/device.ts';
import type { Tensor } from '../device/tensor.ts';
import type { Reduction } from './collective-call.ts';

/** What every call takes: how long to wait, and how it is ordered with other work of the device. */
export interface CollectiveOptions extends WaitOptions, OverlapOptions {}

/** What every call returns. */
export interface CollectiveResult {
  /** With `asyncFinish`: the point at which the output is there and the input may be changed. */
  readonly event: DeviceEvent | undefined;
}

/** Arguments of allReduce(). */
export interface AllReduceArguments extends CollectiveOptions {
  /** This rank's elements; without it `output` holds them: in place. */
  readonly input?: Tensor | undefined;
  /** As many elements, of the same dtype. */
  readonly output: Tensor;
  /** 'sum' by default. */
  readonly op?: Reduction | undefined;
}

/** Arguments of reduce(). */
export interface ReduceArguments extends CollectiveOptions {
  /** This rank's elements; without it `output` holds them: in place. */
  readonly input?: Tensor | undefined;
  /** Of the root; other ranks need none. */
  readonly output?: Tensor | undefined;
  /** Rank of the group that gets the result. */
  readonly root: number;
  /** 'sum' by default. */
  readonly op?: Reduction | undefined;
}

/** Arguments of broadcast(). */
export interface BroadcastArguments extends CollectiveOptions {
  /** Of the root; without it the root's `output` holds what is sent: in place. */
  readonly input?: Tensor | undefined;
  readonly output: Tensor;
  /** Rank of the group whose elements all get. */
  readonly root: number;
}

/** Arguments of allGather(). */
export interface AllGatherArguments extends CollectiveOptions {
  /** This rank's elements, as many on each rank; without it they are at this rank's place in `output`: in place. */
  readonly input?: Tensor | undefined;
  /** The elements of all ranks, by rank. */
  readonly output: Tensor;
}

/** Arguments of reduceScatter(). */
export interface ReduceScatterArguments extends CollectiveOptions {
  /** Elements for all ranks, by rank, as many for each. */
  readonly input: Tensor;
  /** The reduction of what all ranks have for this one; without it, at this rank's place in `input`: in place. */
  readonly output?: Tensor | undefined;
  /** 'sum' by default. */
  readonly op?: Reduction | undefined;
}

/** Arguments of allToAll(). */
export interface AllToAllArguments extends CollectiveOptions {
  /** Elements for all ranks, by rank, as many for each; without it `output` holds them: in place. */
  readonly input?: Tensor | undefined;
  /** Elements from all ranks, by rank. */
  readonly output: Tensor;
}

/** Arguments of allToAllv(). Counts and offsets are in elements, one for each rank. */
export interface AllToAllvArguments extends CollectiveOptions {
  readonly input: Tensor;
  /** Must not overlap `input`. */
  readonly output: Tensor;
  readonly sendCounts: readonly number[] | Int32Array | Uint32Array;
  readonly recvCounts: readonly number[] | Int32Array | Uint32Array;
  /** Where what goes to each rank begins in `input`; one behind the other by default. */
  readonly sendOffsets?: readonly number[] | Int32Array | Uint32Array | undefined;
  /** The same in `output`. */
  readonly recvOffsets?: readonly number[] | Int32Array | Uint32Array | undefined;
}

/** Arguments of send(). */
export interface SendArguments extends CollectiveOptions {
  readonly input: Tensor;
  /** Rank of the group. */
  readonly peer: number;
}

/** Arguments of recv(). */
export interface RecvArguments extends CollectiveOptions {
  readonly output: Tensor;
  /** Rank of the group. */
  readonly peer: number;
}

const optionNames: OptionNames<CollectiveOptions> = { ...waitOptionNames, previousEvent: true, asyncFinish: true };

/** Names of the arguments of each call. */
export const argumentNames: {
  readonly barrier: OptionNames<CollectiveOptions>;
  readonly groupEnd: OptionNames<CollectiveOptions>;
  readonly broadcast: OptionNames<BroadcastArguments>;
  readonly reduce: OptionNames<ReduceArguments>;
  readonly allGather: OptionNames<AllGatherArguments>;
  readonly reduceScatter: OptionNames<ReduceScatterArguments>;
  readonly allReduce: OptionNames<AllReduceArguments>;
  readonly allToAll: OptionNames<AllToAllArguments>;
  readonly allToAllv: OptionNames<AllToAllvArguments>;
  readonly send: OptionNames<SendArguments>;
  readonly recv: OptionNames<RecvArguments>;
} = {
  barrier: optionNames,
  groupEnd: optionNames,
  broadcast: { ...optionNames, input: true, output: true, root: true },
  reduce: { ...optionNames, input: true, output: true, root: true, op: true },
  allGather: { ...optionNames, input: true, output: true },
  reduceScatter: { ...optionNames, input: true, output: true, op: true },
  allReduce: { ...optionNames, input: true, output: true, op: true },
  allToAll: { ...optionNames, input: true, output: true },
  allToAllv: {
    ...optionNames,
    input: true,
    output: true,
    sendCounts: true,
    recvCounts: true,
    sendOffsets: true,
    recvOffsets: true,
  },
  send: { ...optionNames, input: true, peer: true },
  recv: { ...optionNames, output: true, peer: true },
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
