// Checksums of blocks where they lie: by zlib in host memory, by a kernel in memory of a GPU. Both give CRC-32 over the ranges of
// a block, part after part, so that a block has the same sum wherever it lies.
import { crc32 } from 'node:zlib';
import { KV_SUM_THREADS, type kvSumArguments, kvSumPart } from '../abi/kv.ts';
import { Block } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { LaunchPlan } from '../device/cuda/kernel.ts';
import { kernelFiles } from '../device/cuda/kernel-files.ts';
import type { Tensor } from '../device/tensor.ts';
import { joinChecksums, shiftOf, threadTables } from './crc32.ts';
import type { KvMemory, KvPart, KvRanges } from './kv-memory.ts';

/** Sums blocks up where they lie. */
export abstract class BlockSums {
  readonly #underWay = new Set<Promise<Uint32Array>>();
  #isClosed = false;

  /** The sums of the blocks, in this order. On GPUs it follows what is enqueued on the device's stream. Fails with WL_CLOSED. */
  of(blocks: readonly number[]): Promise<Uint32Array> {
    const summing = this.sum(blocks);
    const forget = (): unknown => this.#underWay.delete(summing);
    this.#underWay.add(summing);
    summing.then(forget, forget);
    return summing;
  }

  /** Calls that are under way fail. Resolves when none reads the memory any more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.allSettled(this.#underWay);
    this.free();
  }

  protected abstract sum(blocks: readonly number[]): Promise<Uint32Array>;
  protected abstract free(): void;

  /** To be called behind each pause, before memory is read. */
  protected checkOpen(): void {
    if (this.#isClosed)
      throw new WeftlineError('WL_CLOSED', 'The KV store or reader was closed while it summed blocks up');
  }
}

/** `ranges` are those of the memory. Fails with WL_UNSUPPORTED or WL_COMPILE where the kernel cannot be compiled. */
export async function openBlockSums(memory: KvMemory, ranges: KvRanges): Promise<BlockSums> {
  if (ranges.kind === 'host') return new HostSums(memory, ranges);
  return CudaSums.create(memory.parts[0]?.memory.memory.device as CudaDevice, ranges);
}

/** The event loop turns after so many bytes, which take about a millisecond. */
const TURN_BYTES = 4 << 20;

class HostSums extends BlockSums {
  readonly #parts: readonly Pick<KvPart, 'memory' | 'offset'>[];
  readonly #ranges: KvRanges;

  constructor(memory: KvMemory, ranges: KvRanges) {
    super();
    // The caller's array may serve for another store next.
    this.#parts = memory.parts.map(({ memory: one, offset }) => ({ memory: one, offset: offset ?? 0 }));
    this.#ranges = ranges;
  }

  protected async sum(blocks: readonly number[]): Promise<Uint32Array> {
    const sums = new Uint32Array(blocks.length);
    const blocksPerTurn = Math.ceil(TURN_BYTES / this.#ranges.blockBytes);
    for (let begin = 0; begin < blocks.length; begin += blocksPerTurn) {
      if (begin > 0) await new Promise((resolve) => setImmediate(resolve));
      this.checkOpen();
      // Anew in each turn: memory that was closed meanwhile must not be touched.
      const views = this.#parts.map(({ memory }) => memory.bytes);
      for (let at = begin; at < Math.min(begin + blocksPerTurn, blocks.length); at++) {
        for (const [index, { stride, bytes }] of this.#ranges.parts.entries()) {
          const from = this.#parts[index]!.offset! + blocks[at]! * stride;
          sums[at] = crc32(views[index]!.subarray(from, from + bytes), sums[at]);
        }
      }
    }
    return sums;
  }

  protected free(): void {}
}

/** A thread block sums a range up at a time; as many at once keep the memory of any GPU busy. */
const MAX_GRID = 2048;

class CudaSums extends BlockSums {
  readonly #device: CudaDevice;
  readonly #plan: LaunchPlan<keyof typeof kvSumArguments.offset>;
  readonly #tensors: readonly Tensor[];
  /** What joins the sums of the ranges, by part. */
  readonly #shifts: readonly number[];

  static async create(device: CudaDevice, { parts }: KvRanges): Promise<CudaSums> {
    const { kvBlockSums } = await device.loadKernels(kernelFiles.kvSums);
    const table = new Uint8Array(parts.length * kvSumPart.size);
    for (const [index, part] of parts.entries()) {
      const entry = new Block(kvSumPart, table.buffer, index * kvSumPart.size);
      for (const field of ['address', 'stride', 'bytes'] as const) entry.set(field, part[field]);
    }
    const partTable = await device.tensor('u8', [table.length], table);
    const threads = threadTables(KV_SUM_THREADS);
    const tables = await device.tensor('i32', [threads.length], threads);
    const plan = kvBlockSums.plan({ grid: 1, block: KV_SUM_THREADS });
    plan.arguments.set('partTable', partTable.address);
    plan.arguments.set('tables', tables.address);
    plan.arguments.set('parts', parts.length);
    return new CudaSums(device, plan, {
      tensors: [partTable, tables],
      shifts: parts.map(({ bytes }) => shiftOf(bytes)),
    });
  }

  private constructor(
    device: CudaDevice,
    plan: LaunchPlan<keyof typeof kvSumArguments.offset>,
    { tensors, shifts }: { readonly tensors: readonly Tensor[]; readonly shifts: readonly number[] },
  ) {
    super();
    this.#device = device;
    this.#plan = plan;
    this.#tensors = tensors;
    this.#shifts = shifts;
  }

  protected async sum(blocks: readonly number[]): Promise<Uint32Array> {
    const shifts = this.#shifts;
    const ranges = blocks.length * shifts.length;
    if (ranges === 0) return new Uint32Array(0);
    using list = await this.#device.tensor('i32', [blocks.length], Int32Array.from(blocks));
    this.checkOpen();
    using sums = this.#device.empty('i32', [ranges]);
    // The launch takes the arguments as they are now, before another call sets them.
    const { arguments: set } = this.#plan;
    set.set('list', list.address);
    set.set('sums', sums.address);
    set.set('blocks', blocks.length);
    this.#plan.setGrid(Math.min(ranges, MAX_GRID));
    this.#plan.launch();
    const found = await sums.toHost();
    return Uint32Array.from(blocks, (_, index) =>
      shifts.reduce((sum, shift, part) => joinChecksums(sum, found[index * shifts.length + part]!, shift), 0),
    );
  }

  protected free(): void {
    for (const tensor of this.#tensors) tensor.close();
  }
}
