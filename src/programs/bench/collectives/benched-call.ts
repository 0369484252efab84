// One collective under test: its tensors, filled with numbers whose results are known, its calls, and what came out wrong.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { dtypes, fromBf16, toBf16 } from '../../../core/dtype.ts';
import type { CollectiveResult, Communicator } from '../../../collectives/index.ts';
import { type BenchedKind, type CollectivesWorkload, countOf, hasParts } from './collectives-workload.ts';

/** Small integers: exact in every dtype, and their sums over up to 16 ranks too. */
function valueOf(rank: number, element: number): number {
  return ((element * 7 + rank * 3) % 16) - 8;
}

const combine = {
  sum: (a: number, b: number): number => a + b,
  max: (a: number, b: number): number => Math.max(a, b),
  min: (a: number, b: number): number => Math.min(a, b),
} as const;

export class BenchedCall {
  readonly #communicator: Communicator;
  readonly #workload: CollectivesWorkload;
  readonly #kind: BenchedKind;
  readonly #large: Tensor<CollectivesWorkload['dtype']>;
  readonly #other: Tensor<CollectivesWorkload['dtype']>;
  readonly #count: number;

  /** `memory`: of `maxBytes` each. */
  constructor(
    communicator: Communicator,
    workload: CollectivesWorkload,
    { kind, bytes, memory }: { kind: BenchedKind; bytes: number; memory: BenchMemory },
  ) {
    this.#communicator = communicator;
    this.#workload = workload;
    this.#kind = kind;
    this.#count = countOf(kind, bytes, workload);
    const elements = hasParts(kind) ? this.#count * communicator.group.size : this.#count;
    this.#large = memory.first.slice(0, elements);
    this.#other = memory.second.slice(0, elements);
  }

  /** Elements of a rank's part, or of the whole. */
  get count(): number {
    return this.#count;
  }

  /** Addresses of what a peer's call of the same kind takes. */
  addresses(isInPlace: boolean): { readonly input: number; readonly output: number } {
    const part = this.#communicator.group.rank * this.#count * dtypes[this.#workload.dtype].bytes;
    const output = this.#large.address;
    if (!isInPlace) return { input: this.#other.address, output };
    if (this.#kind === 'allGather') return { input: output + part, output };
    if (this.#kind === 'reduceScatter') return { input: this.#other.address, output: this.#other.address + part };
    return { input: output, output };
  }

  /** The call, to be made again and again. */
  prepare(isInPlace: boolean): () => Promise<CollectiveResult> {
    const { op } = this.#workload;
    const { rank } = this.#communicator.group;
    const [input, output] = [this.#other, this.#large];
    const part = rank * this.#count;
    const of = this.#communicator;
    const apart = isInPlace ? undefined : input;
    switch (this.#kind) {
      case 'allReduce': {
        const args = { input: apart, output, op };
        return () => of.allReduce(args);
      }
      case 'reduce': {
        const args = { input: apart, output, op, root: 0 };
        return () => of.reduce(args);
      }
      case 'broadcast': {
        const args = { input: apart, output, root: 0 };
        return () => of.broadcast(args);
      }
      case 'allToAll': {
        const args = { input: apart, output };
        return () => of.allToAll(args);
      }
      case 'allGather': {
        const args = {
          input: isInPlace ? output.slice(part, part + this.#count) : input.slice(0, this.#count),
          output,
        };
        return () => of.allGather(args);
      }
      case 'reduceScatter':
      default: {
        const args = { input, output: isInPlace ? undefined : output.slice(0, this.#count), op };
        return () => of.reduceScatter(args);
      }
    }
  }

  /** Makes the call once with known numbers. Returns how many elements of this rank's result are wrong. */
  async countWrong(isInPlace: boolean): Promise<number> {
    const { rank, size } = this.#communicator.group;
    const own = (element: number): number => valueOf(rank, element);
    const isInput = isInPlace && this.#kind !== 'reduceScatter';
    const at = this.#kind === 'allGather' && isInPlace ? rank * this.#count : 0;
    await fill(isInput ? this.#large : this.#other, (element) => own(element - at));
    if (!isInput) await fill(this.#large, () => 99);
    await this.prepare(isInPlace)();
    const first = this.#kind === 'reduceScatter' && isInPlace ? rank * this.#count : 0;
    const isTold = this.#kind !== 'reduce' || rank === 0;
    if (!isTold) return 0;
    const view = await (this.#kind === 'reduceScatter' && isInPlace ? this.#other : this.#large).toHost();
    const results = this.#kind === 'reduceScatter' ? this.#count : view.length;
    let wrong = 0;
    for (let element = 0; element < results; element++) {
      const got = view[first + element]!;
      const number = this.#workload.dtype === 'bf16' ? fromBf16(got) : got;
      if (number !== this.#expected(element, rank, size)) wrong += 1;
    }
    return wrong;
  }

  #expected(element: number, rank: number, size: number): number {
    const count = this.#count;
    const source = hasParts(this.#kind) ? Math.floor(element / count) : 0;
    const within = element - source * count;
    if (this.#kind === 'broadcast') return valueOf(0, element);
    if (this.#kind === 'allGather') return valueOf(source, within);
    if (this.#kind === 'allToAll') return valueOf(source, rank * count + within);
    const place = this.#kind === 'reduceScatter' ? rank * count + element : element;
    let value = valueOf(0, place);
    for (let other = 1; other < size; other++) value = combine[this.#workload.op](value, valueOf(other, place));
    return value;
  }
}

/** Two tensors of the largest size, for calls of every size. */
export interface BenchMemory {
  readonly first: Tensor<CollectivesWorkload['dtype']>;
  readonly second: Tensor<CollectivesWorkload['dtype']>;
}

export function makeBenchMemory(device: CpuDevice | CudaDevice, { dtype, maxBytes }: CollectivesWorkload): BenchMemory {
  const elements = Math.floor(maxBytes / dtypes[dtype].bytes);
  const make = (): BenchMemory['first'] => {
    const tensor = device.empty(dtype, [elements]);
    if (device.kind === 'cpu') tensor.view().fill(0);
    else device.setBytes(tensor, 0);
    return tensor;
  };
  return { first: make(), second: make() };
}

async function fill(tensor: Tensor<CollectivesWorkload['dtype']>, value: (element: number) => number): Promise<void> {
  const values = new dtypes[tensor.dtype].array(tensor.elements);
  for (let element = 0; element < values.length; element++) {
    const number = value(element);
    values[element] = tensor.dtype === 'bf16' ? toBf16(number) : number;
  }
  await tensor.fromHost(values);
}
