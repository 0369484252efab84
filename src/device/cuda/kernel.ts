// A compiled kernel file on a device, and each of its kernels.
import type { Layout } from '../../abi/layout.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Out } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';
import { type ArgumentPassing, LaunchPlan, type LaunchShape } from './launch-plan.ts';

/** CUfunction_attribute. */
const STATIC_SHARED_BYTES = 1;
const LOCAL_BYTES = 3;
const REGISTERS = 4;
const MAX_DYNAMIC_SHARED_BYTES = 8;
/** A block gets this much without opting in, what the kernel declares itself included. */
const PLAIN_SHARED_BYTES = 48 << 10;

/** A loaded cubin; its kernels keep it. */
export class CudaModule implements Disposable {
  readonly context: CudaContext;
  /** CUmodule. */
  readonly handle: number;
  #disposed = false;

  constructor(context: CudaContext, cubin: Uint8Array, name: string) {
    const handle: Out = [0];
    context.check('cuModuleLoadData', context.status('cuModuleLoadData', handle, cubin), `loading ${name}`);
    this.context = context;
    this.handle = handle[0];
    context.own(this);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.context.disown(this);
    this.context.release('cuModuleUnload', this.handle);
  }
}

export interface KernelOptions<Name extends string> {
  readonly entry: string;
  /** The kernel file's name, for errors. */
  readonly file: string;
  /** Of its one parameter, or of all of them. */
  readonly arguments: Layout<Name>;
  readonly passing: ArgumentPassing;
  /** Where plans launch if they are not told. */
  readonly stream: CudaStream;
  readonly multiprocessors: number;
  readonly sharedBytesPerBlock: number;
}

export class CudaKernel<Name extends string = string> {
  readonly label: string;
  /** Per thread. */
  readonly registers: number;
  /** Bytes of local memory per thread: spills, and arrays that registers cannot hold. */
  readonly localBytes: number;
  readonly #module: CudaModule;
  readonly #handle: number;
  readonly #options: KernelOptions<Name>;
  /** What a launch may ask for. */
  #dynamicSharedBytes: number;

  constructor(module: CudaModule, options: KernelOptions<Name>) {
    const { context } = module;
    this.label = `${options.file}:${options.entry}`;
    this.#module = module;
    this.#options = options;
    const value: Out = [0];
    const status = context.status('cuModuleGetFunction', value, module.handle, options.entry);
    context.check('cuModuleGetFunction', status, this.label);
    this.#handle = value[0];
    context.call('cuFuncGetAttribute', value, REGISTERS, this.#handle);
    this.registers = value[0];
    context.call('cuFuncGetAttribute', value, LOCAL_BYTES, this.#handle);
    this.localBytes = value[0];
    context.call('cuFuncGetAttribute', value, STATIC_SHARED_BYTES, this.#handle);
    this.#dynamicSharedBytes = PLAIN_SHARED_BYTES - value[0];
  }

  /** Prepares launches of this shape; keep the plan and set its arguments before each launch. */
  plan(shape: LaunchShape): LaunchPlan<Name> {
    const { context } = this.#module;
    this.#allowShared(shape.sharedBytes ?? 0);
    return new LaunchPlan(
      {
        context,
        handle: this.#handle,
        label: this.label,
        arguments: this.#options.arguments,
        passing: this.#options.passing,
        stream: this.#options.stream,
      },
      shape,
    );
  }

  /** Blocks of so many threads that the whole device holds at once; the most for a cooperative launch. */
  residentBlocks(threads: number, sharedBytes = 0): number {
    this.#allowShared(sharedBytes);
    const blocks: Out = [0];
    const { context } = this.#module;
    context.call('cuOccupancyMaxActiveBlocksPerMultiprocessor', blocks, this.#handle, threads, sharedBytes);
    return blocks[0] * this.#options.multiprocessors;
  }

  #allowShared(bytes: number): void {
    const most = this.#options.sharedBytesPerBlock;
    if (bytes > most) throw invalidArgument(`sharedBytes of ${this.label}`, bytes, `at most ${most} on this GPU`);
    if (bytes <= this.#dynamicSharedBytes) return;
    this.#module.context.call('cuFuncSetAttribute', this.#handle, MAX_DYNAMIC_SHARED_BYTES, bytes);
    this.#dynamicSharedBytes = bytes;
  }
}
