// One random collective call, and what it must give: made alike on all ranks from a seed.
import { dtypes, type DType, type Tensor, type CpuDevice, type CudaDevice, type TypedArrayOf } from 'weftline';
import { type Communicator, type Reduction } from 'weftline/collectives';
import { referenceReduction } from 'weftline/reference';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { ReducedDType } from '#lib/collectives/collective-call.js';

const kinds = [
  'broadcast',
  'reduce',
  'allGather',
  'reduceScatter',
  'allReduce',
  'allToAll',
  'allToAllv',
  'pairs',
  'barrier',
] as const;
const movable: readonly DType[] = ['f32', 'bf16', 'i32', 'f16', 'u8', 'i64', 'fp8e4m3'];
const reduced: readonly ReducedDType[] = ['f32', 'bf16', 'i32'];
const reductions: readonly Reduction[] = ['sum', 'max', 'min'];

export interface CollectiveCase {
  readonly kind: (typeof kinds)[number];
  readonly dtype: DType;
  readonly op: Reduction;
  readonly root: number;
  readonly inPlace: boolean;
  /** [from][to] elements of allToAllv and pairs; others take the first one. */
  readonly counts: readonly (readonly number[])[];
  readonly seed: number;
}

/** `longest`: elements of the longest runs, of which there are few. */
export function collectiveCase(seed: number, ranks: number, longest: number): CollectiveCase {
  const next = seededRandom(seed);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)]!;
  const kind = pick(kinds);
  const isReduced = kind === 'reduce' || kind === 'reduceScatter' || kind === 'allReduce';
  const length = (): number =>
    Math.floor(pick([0, 1.9, 2.9, 8, 70, 1000, 5000, longest]) * (next() < 0.3 ? 1 : next()));
  const shared = length();
  const counts = Array.from({ length: ranks }, () =>
    Array.from({ length: ranks }, () => (next() < 0.2 ? 0 : length())),
  );
  return {
    kind,
    dtype: isReduced ? pick(reduced) : pick(movable),
    op: pick(reductions),
    root: Math.floor(next() * ranks),
    inPlace: next() < 0.4 && kind !== 'allToAllv' && kind !== 'pairs',
    counts: kind === 'allToAllv' || kind === 'pairs' ? counts : [[shared]],
    seed,
  };
}

/** The elements that a rank has: random bits for copies, numbers with a few of the odd ones for reductions. */
function elements<D extends DType>(dtype: D, count: number, seed: number): TypedArrayOf[D] {
  const next = seededRandom(seed);
  const values = new dtypes[dtype].array(count) as TypedArrayOf[D];
  const odd = [0, -0, Infinity, -Infinity, NaN, 1e38, 3.4e38];
  for (let at = 0; at < count; at++) {
    const draw = next();
    if (dtype === 'f32') values[at] = draw < 0.02 ? odd[Math.floor(draw * 50 * odd.length)]! : (next() - 0.5) * 1000;
    else if (dtype === 'i64') values[at] = BigInt(Math.floor(draw * 2 ** 40)) as never;
    else if (dtype === 'i32') values[at] = Math.floor((draw - 0.5) * 2 ** 32);
    else values[at] = Math.floor(draw * 65_536);
  }
  return values;
}

interface Made {
  input(rank: number): TypedArrayOf[DType];
  expected(rank: number): TypedArrayOf[DType] | undefined;
}

function concat(dtype: DType, parts: readonly TypedArrayOf[DType][]): TypedArrayOf[DType] {
  const out = new dtypes[dtype].array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part as never, at);
    at += part.length;
  }
  return out;
}

/** Inputs and outputs of all ranks; the part of rank s in what r sends is [r][s]. */
function make({ kind, dtype, op, root, counts, seed }: CollectiveCase, ranks: number): Made {
  const all = Array.from({ length: ranks }, (_, rank) => rank);
  const count = counts[0]![0]!;
  const parts = all.map((from) =>
    all.map((to) => elements(dtype, counts.length === ranks ? counts[from]![to]! : count, seed * 64 + from * 8 + to)),
  );
  const wholes = parts.map((row) => row[0]!);
  const reduce = (runs: TypedArrayOf[DType][]): TypedArrayOf[DType] =>
    referenceReduction(dtype as ReducedDType, op, runs as never);
  const flat = (rank: number): TypedArrayOf[DType] => concat(dtype, parts[rank]!);
  const column = (rank: number): TypedArrayOf[DType][] => parts.map((row) => row[rank]!);
  switch (kind) {
    case 'barrier':
      return { input: () => wholes[0]!, expected: () => undefined };
    case 'broadcast':
      return { input: (rank) => wholes[rank]!, expected: () => wholes[root]! };
    case 'reduce':
      return { input: (rank) => wholes[rank]!, expected: (rank) => (rank === root ? reduce(wholes) : undefined) };
    case 'allReduce':
      return { input: (rank) => wholes[rank]!, expected: () => reduce(wholes) };
    case 'allGather':
      return { input: (rank) => wholes[rank]!, expected: () => concat(dtype, wholes) };
    case 'reduceScatter':
      return { input: flat, expected: (rank) => reduce(column(rank)) };
    case 'allToAll':
    case 'allToAllv':
    case 'pairs':
    default:
      return { input: flat, expected: (rank) => concat(dtype, column(rank)) };
  }
}

/** Elements of memory that is large enough to be registered. */
function registered(count: number): number {
  return Math.max(count, 2 << 20);
}

/** How a call is made; it may be made again with the same tensors. */
export type AroundCall = (call: () => Promise<void>) => Promise<void>;

/** Makes the call. Returns what is wrong with its result, undefined if nothing is. */
export async function runCollectiveCase(
  communicator: Communicator,
  device: CpuDevice | CudaDevice,
  of: CollectiveCase,
  around: AroundCall = (call) => call(),
): Promise<string | undefined> {
  const { rank, size } = communicator.group;
  const { kind, dtype, op, root, inPlace, counts } = of;
  const made = make(of, size);
  const values = made.input(rank);
  const expected = made.expected(rank);
  const count = counts[0]![0]!;
  const isLarge = kind === 'allGather' && inPlace;
  // On GPUs one tensor of some cases is registered, and both of some.
  const registers = device.kind === 'cuda' ? of.seed % 3 : 0;
  using memoryBlock = device.empty(dtype, [registers > 0 ? registered(values.length) : values.length]);
  const memory = memoryBlock.slice(0, values.length);
  await memory.fromHost(values);
  const length = expected?.length ?? values.length;
  using resultsBlock = device.empty(dtype, [registers > 0 ? registered(length) : length]);
  const results = resultsBlock.slice(0, length);
  const place = rank * count;
  if (isLarge) await results.slice(place, place + count).fromHost(values);
  if (registers > 0) await communicator.register(inPlace && !isLarge ? memory : results);
  if (registers > 1) await communicator.register(memory);
  let output: Tensor | undefined = inPlace ? memory : results;
  const input = inPlace ? undefined : memory;
  if (isLarge) output = results;
  if (kind === 'reduceScatter' && inPlace) output = memory.slice(place, place + count);
  const target = output;
  await around(async () => {
    switch (kind) {
      case 'barrier':
        await communicator.barrier();
        break;
      case 'broadcast':
        await communicator.broadcast({ input, output: target, root });
        break;
      case 'reduce':
        await communicator.reduce({ input, output: target, root, op });
        break;
      case 'allReduce':
        await communicator.allReduce({ input, output: target, op });
        break;
      case 'allGather':
        await communicator.allGather({ input, output: target });
        break;
      case 'reduceScatter':
        await communicator.reduceScatter({ input: memory, output: inPlace ? undefined : results, op });
        break;
      case 'allToAll':
        await communicator.allToAll({ input, output: target });
        break;
      case 'allToAllv': {
        const sendCounts = counts[rank]!;
        const recvCounts = counts.map((row) => row[rank]!);
        await communicator.allToAllv({ input: memory, output: results, sendCounts, recvCounts });
        break;
      }
      case 'pairs':
        await exchangePairs(communicator, { from: memory, to: results, counts });
        break;
    }
  });
  return expected === undefined ? undefined : difference(await output.toHost(), expected);
}

/** allToAllv by send and recv, in an order that differs from rank to rank. */
async function exchangePairs(
  communicator: Communicator,
  { from, to, counts }: { from: Tensor; to: Tensor; counts: readonly (readonly number[])[] },
): Promise<void> {
  const { rank, size } = communicator.group;
  const received = counts.map((row) => row[rank]!);
  communicator.groupStart();
  for (let step = 0; step < size; step++) {
    const peer = (rank + step) % size;
    const sentAt = sumBefore(counts[rank]!, peer);
    const receivedAt = sumBefore(received, peer);
    void communicator.send({ input: from.slice(sentAt, sentAt + counts[rank]![peer]!), peer });
    void communicator.recv({ output: to.slice(receivedAt, receivedAt + received[peer]!), peer });
  }
  await communicator.groupEnd();
}

function difference(got: TypedArrayOf[DType], expected: TypedArrayOf[DType]): string | undefined {
  if (got.length !== expected.length) return `${got.length} elements instead of ${expected.length}`;
  if (bytesOf(got).equals(bytesOf(expected))) return undefined;
  const at = Array.from(got as ArrayLike<unknown>).findIndex((value, index) => !Object.is(value, expected[index]));
  return `element ${at} of ${got.length} is ${got[at]}, not ${expected[at]}`;
}

function bytesOf(array: TypedArrayOf[DType]): Buffer {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

function sumBefore(list: readonly number[], end: number): number {
  return list.slice(0, end).reduce((sum, count) => sum + count, 0);
}
