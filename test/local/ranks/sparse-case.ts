// One random sparse all-reduce: tensors of all workers, made alike on all ranks from a seed, and what must come of them.
import { type DType, dtypes, toBf16, type TypedArrayOf } from 'weftline';
import { type SparseAllReduce } from 'weftline/collectives';
import { referenceSparseSum } from 'weftline/reference';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { EpDevice } from '../support/test-device.js';
import type { ReducedDType } from '#lib/collectives/collective-call.js';

const reduced: readonly ReducedDType[] = ['f32', 'bf16', 'i32'];

export interface SparseCase {
  readonly dtype: ReducedDType;
  readonly count: number;
  /** Share of blocks that a worker has. */
  readonly density: number;
  readonly threshold: number;
  readonly dense: boolean;
  /** The call tells which parts are done. */
  readonly tells: boolean;
  readonly inPlace: boolean;
  /** Elements of its memory before the tensor: copies of whole vectors may not fit then. */
  readonly shift: number;
  readonly seed: number;
}

/** `longest`: elements of the longest tensors, of which there are few. */
export function sparseCase(seed: number, longest: number): SparseCase {
  const next = seededRandom(seed);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)]!;
  return {
    dtype: pick(reduced),
    count: pick([0, 1, 63, 64, 65, 1000, 4096, Math.floor(next() * longest), Math.floor(next() * longest)]),
    density: pick([0, 0.01, 0.1, 0.5, 1]),
    threshold: pick([0, 0, 3.5]),
    dense: next() < 0.2,
    tells: next() < 0.5,
    inPlace: next() < 0.5,
    shift: pick([0, 0, 1, 5]),
    seed,
  };
}

/** Most blocks are zero; some of these have elements that are -0 or below thresholds, and a few that count are NaN or large. */
function elements<D extends ReducedDType & DType>(
  { dtype, count, density, seed }: SparseCase & { readonly dtype: D },
  worker: number,
  blockSize: number,
): TypedArrayOf[D] {
  const next = seededRandom(seed * 31 + worker);
  const values = new dtypes[dtype].array(count) as TypedArrayOf[D];
  const odd = [NaN, Infinity, -Infinity, 1e38];
  const bits = (value: number): number =>
    dtype === 'bf16' ? toBf16(value) : dtype === 'i32' ? Math.trunc(value) : value;
  for (let from = 0; from < count; from += blockSize) {
    const end = Math.min(from + blockSize, count);
    if (next() < density) {
      const isDense = next() < 0.5;
      for (let at = from; at < end; at++) {
        if (!isDense && next() < 0.95) continue;
        const value = next() < 0.01 ? odd[Math.floor(next() * odd.length)]! : (next() - 0.5) * 1000;
        values[at] = bits(dtype === 'i32' && !Number.isFinite(value) ? -(2 ** 31) : value);
      }
    } else if (next() < 0.2) {
      for (let at = from; at < end; at++) values[at] = bits(next() < 0.5 ? -0 : (next() - 0.5) * 6);
    }
  }
  return values;
}

/** undefined if the result is right. */
export async function runSparseCase(
  reducer: SparseAllReduce,
  device: EpDevice,
  of: SparseCase,
  cut: { readonly blockSize: number; readonly fanIn?: number },
): Promise<string | undefined> {
  const { dtype, count, inPlace, dense, tells, shift } = of;
  const { blockSize } = cut;
  // Without a threshold -0 is zero; a dense call takes it as it is.
  const threshold = dense ? 0 : of.threshold;
  const inputs = reducer.workers.map((worker) => elements(of, worker, blockSize));
  using flag = await device.tensor('i32', [1], Int32Array.of(100));
  const own = inputs[reducer.workers.indexOf(reducer.group.rank)]!;
  using inputMemory = device.empty(dtype, [shift + count]);
  using apartMemory = device.empty(dtype, [count + shift]);
  const input = inputMemory.slice(shift, shift + count);
  const apart = apartMemory.slice(0, count);
  await input.fromHost(own);
  await apart.fromHost(new dtypes[dtype].array(count).fill(7));
  const output = inPlace ? input : apart;
  const traffic = await reducer.allReduce({
    ...(inPlace ? {} : { input }),
    output,
    ...(dense ? { dense } : { threshold }),
    ...(tells ? { completion: { flag, elements: 3 * blockSize } } : {}),
  });
  // A worker whose dense blocks are all -0 still counts, so that theirs is the sum.
  const expected = referenceSparseSum(dtype, inputs, { ...cut, ...(dense ? { dense } : { threshold }) });
  const parts = (await flag.toHost())[0]! - 100;
  if (parts !== (tells ? Math.ceil(count / (3 * blockSize)) : 0)) return `${parts} parts were told`;
  const [got, right] = [bytesOf(await output.toHost()), bytesOf(expected)];
  if (Buffer.compare(got, right) !== 0) {
    const byte = got.findIndex((value, at) => value !== right[at]);
    return `wrong from byte ${byte} on: ${got.subarray(byte, byte + 8).toString('hex')}, expected ${right.subarray(byte, byte + 8).toString('hex')}`;
  }
  if (!inPlace && Buffer.compare(bytesOf(await input.toHost()), bytesOf(own)) !== 0) return 'the input has changed';
  if (traffic.ownBlocks > traffic.sumBlocks || traffic.sumBlocks > traffic.blocks) return JSON.stringify(traffic);
  return undefined;
}

function bytesOf(view: ArrayBufferView): Buffer {
  return Buffer.from(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength);
}
