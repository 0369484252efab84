// A collective call as an engine gets it, checked; what must agree between the ranks, and how errors tell it.
import { type reductionFormats, reductions } from '../abi/element-formats.ts';
import type { CallWait } from '../core/deadline.ts';
import { type DType, dtypes } from '../core/dtype.ts';
import type { DeviceEvent } from '../device/device.ts';
import type { Tensor } from '../device/tensor.ts';
import type { OverlapOptions } from '../group/overlap.ts';

/** What becomes of the elements that lie at one place of all ranks. */
export type Reduction = keyof typeof reductions;

/** Element types that reductions take; copies take every one. */
export type ReducedDType = keyof typeof reductionFormats;

const collectiveKinds = [
  'barrier',
  'broadcast',
  'reduce',
  'allGather',
  'reduceScatter',
  'allReduce',
  'allToAll',
  'allToAllv',
] as const;

export type CollectiveKind = (typeof collectiveKinds)[number];

/** Elements to and from each rank of allToAllv, and where they begin in the tensors. */
interface VariableCounts {
  readonly sendCounts: Uint32Array;
  readonly sendOffsets: Uint32Array;
  readonly recvCounts: Uint32Array;
  readonly recvOffsets: Uint32Array;
}

/** Reused from call to call. */
export interface CollectiveCall extends VariableCounts {
  kind: CollectiveKind;
  dtype: DType;
  elementBytes: number;
  /** The reduction of a kind that reduces. */
  reduction: Reduction;
  /** The root of a kind that has one. */
  root: number;
  /**
   * Elements that each rank contributes (broadcast, reduce, allGather, allReduce), gets (reduceScatter) or sends to each
   * (allToAll); 0 for allToAllv.
   */
  count: number;
  /** Addresses; 0 where this rank has none. Equal, or `output` at this rank's place in `input` or the reverse: in place. */
  input: number;
  output: number;
}

export function makeCollectiveCall(ranks: number): CollectiveCall {
  const words = (): Uint32Array => new Uint32Array(ranks);
  return {
    kind: 'barrier',
    dtype: 'u8',
    elementBytes: 1,
    reduction: 'sum',
    root: 0,
    count: 0,
    input: 0,
    output: 0,
    sendCounts: words(),
    sendOffsets: words(),
    recvCounts: words(),
    recvOffsets: words(),
  };
}

const dtypeNames = Object.keys(dtypes) as readonly DType[];
const reductionNames = Object.keys(reductions) as readonly Reduction[];
const kindNumbers = numbersOf(collectiveKinds);
const dtypeNumbers = numbersOf(dtypeNames);

const reducing: ReadonlySet<CollectiveKind> = new Set(['reduce', 'reduceScatter', 'allReduce']);
const rooted: ReadonlySet<CollectiveKind> = new Set(['broadcast', 'reduce']);

export function dtypeNumber(dtype: DType): number {
  return dtypeNumbers[dtype];
}

export function dtypeOf(number: number): DType | undefined {
  return dtypeNames[number];
}

/** Hot path. Word `operation` of a call record. */
export function operationWord({ kind, dtype, reduction }: CollectiveCall): number {
  return kindNumbers[kind] | (dtypeNumbers[dtype] << 8) | (reductions[reduction] << 16);
}

/** Hot path. Size of the message as nccl-tests count it: of allGather, reduceScatter and allToAll the parts of all ranks together. */
export function messageBytes({ kind, count, elementBytes, sendCounts }: CollectiveCall, ranks: number): number {
  if (kind === 'barrier') return 0;
  if (kind === 'allToAllv') {
    let sum = 0;
    for (let rank = 0; rank < ranks; rank++) sum += sendCounts[rank]!;
    return sum * elementBytes;
  }
  const hasParts = kind === 'allGather' || kind === 'reduceScatter' || kind === 'allToAll';
  return count * elementBytes * (hasParts ? ranks : 1);
}

/** "allReduce (sum) of 1024 f32", from the words of a call record. */
export function describeRecord(operation: number, root: number, count: number): string {
  const kind = collectiveKinds[operation & 0xff];
  if (kind === undefined) return 'no call';
  if (kind === 'barrier') return kind;
  const dtype = dtypeOf((operation >>> 8) & 0xff) ?? 'unknown';
  const how = reducing.has(kind) ? ` (${reductionNames[(operation >>> 16) & 0xff] ?? 'unknown'})` : '';
  const from = rooted.has(kind) ? ` with root ${root}` : '';
  if (kind === 'allToAllv') return `${kind} of ${dtype}`;
  const each = kind === 'allToAll' ? ' to each rank' : '';
  return `${kind}${how} of ${count} ${dtype}${each}${from}`;
}

function numbersOf<Name extends string>(names: readonly Name[]): Readonly<Record<Name, number>> {
  return Object.fromEntries(names.map((name, number) => [name, number])) as Record<Name, number>;
}

/** How bytes get from one rank to another: within it, through the windows of its host, or over the network. */
export type Route = 'self' | 'window' | 'network';

/** One side of a message between two ranks of the group. */
export interface PairMessage {
  readonly direction: 'send' | 'recv';
  readonly peer: number;
  readonly address: number;
  readonly bytes: number;
  readonly dtype: DType;
  /** The tensor whose memory it is, which must not be collected until the message is over: a group's messages wait for its end. */
  readonly tensor: Tensor;
}

/** What a Communicator asks of the engine that carries its calls out; arguments were checked before. */
export interface CollectiveEngine {
  /** Takes what fails when a graph with calls cannot be launched now. Left out where calls cannot be recorded. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  /** Routes by rank of the group. */
  readonly routes: readonly Route[];
  /** True of GPUs: calls return before they are over, and begin after `previousEvent` by themselves. */
  readonly ordersCalls: boolean;
  /** The end of the last call, if it was to end asynchronously. */
  readonly lastEvent: DeviceEvent | undefined;
  /** Hot path. Fails when an earlier call left the ranks in disagreement. */
  throwIfUnusable(): void;
  /** Hot path. Does as much as it can at once: undefined when the call has ended, and no promise was made. */
  run(call: CollectiveCall, options: CallWait & OverlapOptions): Promise<void> | undefined;
  /** The same for messages that make progress together. */
  exchange(messages: readonly PairMessage[], options: CallWait & OverlapOptions): Promise<void> | undefined;
  /** Collective. Lets all ranks map the memory of a tensor, where that makes calls faster. */
  register(tensor: Tensor, wait: CallWait): Promise<void>;
  /** Once it has resolved, nobody else touches the engine's memory. */
  close(): Promise<void>;
}
