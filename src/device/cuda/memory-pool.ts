// Device memory for tensors: blocks that were given back are handed out again, since the driver's own calls are slow
// and freeing waits for the whole device.
import { alignUp } from '../../abi/layout.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Out } from '../../native/library.ts';
import { CUDA_ERROR_OUT_OF_MEMORY, type CudaContext } from './cuda-context.ts';
import type { Fence, WorkFences } from './cuda-stream.ts';

const SMALLEST = 512;
const LARGE = 2 << 20;
/** How much larger than asked a block may be that is handed out again. */
const SLACK = 1.25;

interface FreeBlock {
  readonly address: number;
  readonly bytes: number;
  /** INVARIANT: work that used the block was enqueued before it was given back, so it is over once this has passed. */
  readonly fence: Fence;
}

/** Blocks that were taken while a graph was recorded, or that its calls name; its work may use them as long as it can be launched. */
export interface KeptMemory {
  /** A recorded call names this address: the block around it belongs to the graph, too. */
  hold(address: number): void;
  /** The recording has ended. */
  end(): void;
  /** The graph is no more. */
  release(): void;
}

export class MemoryPool {
  /** Blocks of graphs: of how many, and whether their tensors gave them back. */
  readonly #kept = new Map<number, { graphs: number; isGiven: boolean }>();
  /** Blocks of the graph that is being recorded; and what was given back meanwhile, as recorded work is no fence. */
  #recorded: Set<number> | undefined;
  readonly #waiting: number[] = [];
  readonly #context: CudaContext;
  readonly #fences: WorkFences;
  readonly #taken = new Map<number, number>();
  #free: FreeBlock[] = [];
  #used = 0;

  constructor(context: CudaContext, fences: WorkFences) {
    this.#context = context;
    this.#fences = fences;
  }

  /** Bytes of blocks in use. */
  get used(): number {
    return this.#used;
  }

  /** Uninitialised memory at a multiple of 256. Fails with WL_MEMORY. */
  take(bytes: number): number {
    const size = roundUp(bytes);
    const block = this.#reuse(size) ?? { address: this.allocate(size), bytes: size };
    this.#taken.set(block.address, block.bytes);
    this.#used += block.bytes;
    if (this.#recorded !== undefined) this.#keepFor(this.#recorded, block.address);
    return block.address;
  }

  /** From now on blocks that are taken belong to a graph, too, until its memory is released. */
  keep(): KeptMemory {
    const addresses = new Set<number>();
    this.#recorded = addresses;
    return {
      hold: (address) => {
        const start = this.#blockAround(address);
        if (start !== undefined) this.#keepFor(addresses, start);
      },
      end: () => {
        this.#recorded = undefined;
        for (const address of this.#waiting.splice(0)) this.give(address);
      },
      release: () => {
        for (const address of addresses) {
          const kept = this.#kept.get(address);
          if (kept === undefined || --kept.graphs > 0) continue;
          this.#kept.delete(address);
          if (kept.isGiven) this.give(address);
        }
        addresses.clear();
      },
    };
  }

  /** Memory that the pool keeps no account of, freed by the caller. Its free blocks make room. Fails with WL_MEMORY. */
  allocate(bytes: number): number {
    const address: Out = [0];
    let status = this.#context.status('cuMemAlloc', address, bytes);
    if (status === CUDA_ERROR_OUT_OF_MEMORY && this.#free.length > 0) {
      this.trim();
      status = this.#context.status('cuMemAlloc', address, bytes);
    }
    if (status === CUDA_ERROR_OUT_OF_MEMORY) throw this.#exhausted(bytes);
    this.#context.check('cuMemAlloc', status, formatBytes(bytes));
    return address[0];
  }

  /** Never throws; on a lost device the memory goes with the process. */
  give(address: number): void {
    const bytes = this.#taken.get(address);
    if (bytes === undefined || this.#context.lost !== undefined || this.#context.disposed) return;
    const kept = this.#kept.get(address);
    if (kept !== undefined) {
      kept.isGiven = true;
      return;
    }
    if (this.#recorded !== undefined) {
      this.#waiting.push(address);
      return;
    }
    this.#taken.delete(address);
    this.#used -= bytes;
    try {
      this.#free.push({ address, bytes, fence: this.#fences.now() });
    } catch {
      // The device was lost just now; the next call that can throw says so.
    }
  }

  /** Gives free blocks back to the driver, which waits for the work that uses them. */
  trim(): void {
    const blocks = this.#free;
    this.#free = [];
    for (const { address } of blocks) this.#context.release('cuMemFree', address);
  }

  dispose(): void {
    this.trim();
    for (const address of this.#taken.keys()) this.#context.release('cuMemFree', address);
    this.#taken.clear();
    this.#used = 0;
  }

  #keepFor(graph: Set<number>, address: number): void {
    if (graph.has(address)) return;
    graph.add(address);
    const kept = this.#kept.get(address);
    if (kept === undefined) this.#kept.set(address, { graphs: 1, isGiven: false });
    else kept.graphs += 1;
  }

  /** Start of the block in use that holds the address. It looks at all of them, as only recordings do. */
  #blockAround(address: number): number | undefined {
    for (const [start, bytes] of this.#taken) if (address >= start && address < start + bytes) return start;
    return undefined;
  }

  #reuse(size: number): FreeBlock | undefined {
    let best = -1;
    for (const [index, block] of this.#free.entries()) {
      if (block.bytes < size || block.bytes > size * SLACK) continue;
      if (best !== -1 && (this.#free[best] as FreeBlock).bytes <= block.bytes) continue;
      if (block.fence.isPassed()) best = index;
    }
    return best === -1 ? undefined : this.#free.splice(best, 1)[0];
  }

  #exhausted(bytes: number): WeftlineError {
    const free: Out = [0];
    const total: Out = [0];
    this.#context.call('cuMemGetInfo', free, total);
    const used = this.used;
    return new WeftlineError(
      'WL_MEMORY',
      `Cannot take ${formatBytes(bytes)} on GPU ${this.#context.ordinal}: ${formatBytes(free[0])} of ${formatBytes(total[0])} are free and this process holds ${formatBytes(used)} in tensors; close some, use fewer tokens per rank, or see with nvidia-smi who else uses the GPU`,
      { details: { bytes, free: free[0], total: total[0], used } },
    );
  }
}

/** Few distinct sizes, so that blocks fit again: powers of two, and multiples of 2 MiB where those would waste much. */
function roundUp(bytes: number): number {
  if (bytes > LARGE) return alignUp(bytes, LARGE);
  return Math.max(SMALLEST, 2 ** Math.ceil(Math.log2(Math.max(bytes, 1))));
}
