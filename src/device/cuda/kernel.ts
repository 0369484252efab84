// A compiled kernel file on a device, and each of its kernels.
import { basename } from 'node:path';
import { alignUp, Block, defineLayout, type Layout, type Scalar } from '../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { readInput } from '../../core/guarded-file.ts';
import { type CudaContext, OwnedResource } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';
import { type KernelText, ourHeaders } from './jit/cubin-cache.ts';
import type { Storage, Tensor } from '../tensor.ts';
import { addressOf, type Out } from '../../native/library.ts';

// A kernel launch prepared once: its configuration and arguments lie in native memory, and launching is one call.

/** CUlaunchConfig, and where each part of a plan lies behind it. */
const GRID = 0;
const BLOCK = 12;
const SHARED_BYTES = 24;
const STREAM = 32;
const ATTRIBUTES_ADDRESS = 40;
const ATTRIBUTE_COUNT = 48;
const ATTRIBUTES = 64;
/** CUlaunchAttribute: a number, then a value of 64 bytes. */
const ATTRIBUTE_BYTES = 72;
const MAX_ATTRIBUTES = 3;
const PARAMETER_TABLE = alignUp(ATTRIBUTES + MAX_ATTRIBUTES * ATTRIBUTE_BYTES, 8);

const attributeNumbers = { cooperative: 2, cluster: 4, overlap: 6 } as const;

type Extent = number | readonly [x: number, y?: number, z?: number];

export interface LaunchShape {
  /** Blocks. */
  readonly grid: Extent;
  /** Threads per block. */
  readonly block: Extent;
  /** Dynamic shared memory per block. */
  readonly sharedBytes?: number;
  /** All blocks run at once and may wait for each other. */
  readonly cooperative?: boolean;
  /** Blocks per cluster (sm_90 and newer). */
  readonly cluster?: Extent;
  /** The kernel may start while its predecessor ends; it must wait itself before it uses results (sm_90 and newer). */
  readonly overlapPredecessor?: boolean;
}

interface KernelOptions<Name extends string> {
  readonly entry: string;
  /** The kernel file's name, for errors. */
  readonly file: string;
  /** Layout of its one parameter, or of all of them. */
  readonly arguments: Layout<Name>;
  /** The kernel takes the layout as one structure, or each of its fields as a parameter. */
  readonly passing: 'structure' | 'each';
  /** The stream of plans that are not told otherwise. */
  readonly stream: CudaStream;
  readonly multiprocessors: number;
  readonly sharedBytesPerBlock: number;
}

interface LaunchTarget<Name extends string> {
  readonly context: CudaContext;
  /** CUfunction. */
  readonly handle: number;
  /** "dispatch.cu:dispatchRows", for errors. */
  readonly label: string;
  readonly options: Pick<KernelOptions<Name>, 'arguments' | 'passing' | 'stream'>;
}

export class LaunchPlan<Name extends string = string> {
  readonly label: string;
  /** The kernel's arguments in place: what is set here is what the next launch passes. */
  readonly arguments: Block<Name>;
  /** The same bytes, for callers that write whole runs. */
  readonly argumentBytes: DataView;
  readonly #context: CudaContext;
  readonly #handle: number;
  readonly #view: DataView;
  readonly #configuration: number;
  readonly #parameters: number;
  readonly #defaultStream: CudaStream;
  #stream: CudaStream | undefined;

  /** Use kernel.plan(). */
  constructor({ context, handle, label, options }: LaunchTarget<Name>, shape: LaunchShape, sharing?: LaunchPlan<Name>) {
    const layout = options.arguments;
    const offsets = options.passing === 'structure' ? [0] : Object.values<number>(layout.offset);
    const parameters = alignUp(PARAMETER_TABLE + 8 * offsets.length, 64);
    // Shared memory never moves, so its address may be kept.
    const memory = new SharedArrayBuffer(parameters + alignUp(layout.size, 64));
    const base = Number(addressOf(new Uint8Array(memory)));
    this.label = label;
    this.#context = context;
    this.#handle = handle;
    this.#defaultStream = options.stream;
    this.#view = new DataView(memory);
    this.#configuration = base;
    this.#parameters = base + PARAMETER_TABLE;
    this.arguments = sharing?.arguments ?? new Block(layout, memory, parameters);
    this.argumentBytes = sharing?.argumentBytes ?? new DataView(memory, parameters, layout.size);
    const { buffer, byteOffset } = this.argumentBytes;
    const first = Number(addressOf(new Uint8Array(buffer))) + byteOffset;
    for (const [index, offset] of offsets.entries()) this.#setAddress(PARAMETER_TABLE + 8 * index, first + offset);
    this.setGrid(shape.grid);
    this.#setExtent(BLOCK, shape.block, 'block');
    this.#view.setUint32(SHARED_BYTES, shape.sharedBytes ?? 0, true);
    this.#setAddress(ATTRIBUTES_ADDRESS, base + ATTRIBUTES);
    this.#setAttributes(shape);
  }

  /** Blocks of the next launches. */
  setGrid(grid: Extent): void {
    this.#setExtent(GRID, grid, 'grid');
  }

  /** Enqueues the kernel with the arguments as they are now; returns before it has run. */
  launch(stream: CudaStream = this.#defaultStream): void {
    const context = this.#context;
    context.enter();
    if (stream !== this.#stream) {
      this.#setAddress(STREAM, stream.handle);
      this.#stream = stream;
    }
    context.lastLaunch = this.label;
    context.workCount += 1;
    if (context.holdRecorded !== undefined) this.#holdArguments(context.holdRecorded);
    const status = context.driver.cuLaunchKernelEx(this.#configuration, this.#handle, this.#parameters, 0);
    if (status !== 0) context.check('cuLaunchKernelEx', status, this.#describe());
  }

  /** The layout alone does not say which arguments are addresses: what is none is in no block of memory. */
  #holdArguments(hold: (address: number) => void): void {
    const { argumentBytes } = this;
    for (let at = 0; at + 8 <= argumentBytes.byteLength; at += 8) hold(Number(argumentBytes.getBigUint64(at, true)));
  }

  #setAttributes(shape: LaunchShape): void {
    let count = 0;
    const add = (number: number): number => {
      const at = ATTRIBUTES + count * ATTRIBUTE_BYTES;
      this.#view.setUint32(at, number, true);
      count += 1;
      return at + 8;
    };
    if (shape.cooperative === true) this.#view.setUint32(add(attributeNumbers.cooperative), 1, true);
    if (shape.cluster !== undefined) this.#setExtent(add(attributeNumbers.cluster), shape.cluster, 'cluster');
    if (shape.overlapPredecessor === true) this.#view.setUint32(add(attributeNumbers.overlap), 1, true);
    this.#view.setUint32(ATTRIBUTE_COUNT, count, true);
  }

  #setExtent(at: number, extent: Extent, name: string): void {
    const [x, y = 1, z = 1] = typeof extent === 'number' ? [extent] : extent;
    for (const value of [x, y, z]) {
      if (!Number.isInteger(value) || value < 1) throw invalidArgument(name, extent, 'whole numbers of at least 1');
    }
    this.#view.setUint32(at, x, true);
    this.#view.setUint32(at + 4, y, true);
    this.#view.setUint32(at + 8, z, true);
  }

  #setAddress(at: number, address: number): void {
    this.#view.setBigUint64(at, BigInt(address), true);
  }

  #describe(): string {
    const word = (at: number): number => this.#view.getUint32(at, true);
    const extent = (at: number): string => `${word(at)}x${word(at + 4)}x${word(at + 8)}`;
    return `launching ${this.label} with ${extent(GRID)} blocks of ${extent(BLOCK)} threads and ${word(SHARED_BYTES)} bytes of shared memory each`;
  }
}

/** CUfunction_attribute. */
const STATIC_SHARED_BYTES = 1;
const LOCAL_BYTES = 3;
const REGISTERS = 4;
const MAX_DYNAMIC_SHARED_BYTES = 8;
/** A block gets this much without opting in, what the kernel declares itself included. */
const PLAIN_SHARED_BYTES = 48 << 10;

/** A loaded cubin; its kernels keep it. */
export class CudaModule extends OwnedResource {
  /** CUmodule. */
  readonly handle: number;

  constructor(context: CudaContext, cubin: Uint8Array, name: string) {
    super(context);
    const handle: Out = [0];
    context.check('cuModuleLoadData', context.status('cuModuleLoadData', handle, cubin), `loading ${name}`);
    this.handle = handle[0];
    context.own(this);
  }

  override release(): void {
    this.context.release('cuModuleUnload', this.handle);
  }
}

export class CudaKernel<Name extends string = string> {
  readonly label: string;
  /** Registers of a thread. */
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

  /**
   * Prepares launches of this shape; keep the plan and set its arguments before each launch.
   * @param sharing A plan of a kernel that takes the same layout, whose arguments become those of this plan.
   */
  plan(shape: LaunchShape, sharing?: LaunchPlan<Name>): LaunchPlan<Name> {
    const { context } = this.#module;
    this.#allowShared(shape.sharedBytes ?? 0);
    const target = { context, handle: this.#handle, label: this.label, options: this.#options };
    return new LaunchPlan(target, shape, sharing);
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

// Kernels of a user's own: how their text and parameters are declared, and how they are launched.

/** The parameters of each kernel in their order: { scale: { x: 'ptr', count: 'u32', factor: 'f32' } }. */
export type UserKernelParameters = Readonly<Record<string, Readonly<Record<string, Scalar>>>>;

/** CUDA text with kernels of the caller, and the kinds of their parameters. */
export interface UserSource<Kernels extends UserKernelParameters> {
  /** CUDA C++. Its kernels are `extern "C" __global__`; it may include weftline/weftline.cuh. */
  readonly source?: string;
  /** A file with the text, instead of it. */
  readonly file?: string;
  /** What the compiler's messages call the text; the file's name, or "user.cu". */
  readonly name?: string;
  readonly kernels: Kernels;
  /** Further headers by the name in #include. */
  readonly headers?: Readonly<Record<string, string>>;
  /** { TILE: 32 } becomes -DTILE=32. */
  readonly defines?: Readonly<Record<string, string | number>>;
}

/** What a parameter takes: for `ptr` also what has an address on the device. */
type ParameterValue<Kind extends Scalar> = Kind extends 'ptr' ? Tensor | Storage | number : number;

type ParameterValues<Parameters extends Readonly<Record<string, Scalar>>> = {
  readonly [Name in keyof Parameters]: ParameterValue<Parameters[Name]>;
};

export type CompiledKernels<Kernels extends UserKernelParameters> = {
  readonly [Name in keyof Kernels]: UserKernel<Kernels[Name]>;
};

/** A compiled kernel of the caller's text, ready to be launched. */
export class UserKernel<Parameters extends Readonly<Record<string, Scalar>>> {
  readonly #kernel: CudaKernel;
  readonly #parameters: Parameters;

  /** @internal */
  constructor(kernel: CudaKernel, parameters: Parameters) {
    this.#kernel = kernel;
    this.#parameters = parameters;
  }

  /** @internal For launches that are made again and again: set its arguments, then launch() is one native call. */
  plan(shape: LaunchShape): LaunchPlan<Extract<keyof Parameters, string>> {
    return this.#kernel.plan(shape);
  }

  /** Enqueues the kernel and returns; on device.stream, if no other is given. Fails with WL_INVALID_ARGUMENT or WL_CUDA. */
  launch(shape: LaunchShape, values: ParameterValues<Parameters>, stream?: CudaStream): void {
    const plan = this.#kernel.plan(shape);
    const given = values as Readonly<Record<string, Tensor | Storage | number>>;
    for (const name of Object.keys(this.#parameters)) plan.arguments.set(name, this.#number(name, given[name]));
    plan.launch(stream);
  }

  /** Blocks of so many threads that the whole device holds at once. */
  residentBlocks(threads: number, sharedBytes = 0): number {
    return this.#kernel.residentBlocks(threads, sharedBytes);
  }

  #number(name: string, value: Tensor | Storage | number | undefined): number {
    const kind = this.#parameters[name] as Scalar;
    if (typeof value === 'number' && (kind === 'f32' || Number.isInteger(value))) return value;
    if (kind === 'ptr' && typeof value === 'object') return value.address;
    const allowed = kind === 'ptr' ? 'a tensor, memory or an address' : kind === 'f32' ? 'a number' : 'a whole number';
    throw invalidArgument(`parameter ${name} (${kind}) of ${this.#kernel.label}`, value, allowed);
  }
}

export function readUserText({ source, file, name, headers }: UserSource<UserKernelParameters>): KernelText {
  if ((source === undefined) === (file === undefined)) {
    throw invalidArgument('source', source, 'either source, a text, or file, a path');
  }
  return {
    name: name ?? (file === undefined ? 'user.cu' : basename(file)),
    text: source ?? readSource(file as string),
    headers: { ...headers, ...ourHeaders() },
  };
}

export function definesOfUser({ defines = {} }: UserSource<UserKernelParameters>): string[] {
  return Object.entries(defines).map(([name, value]) => `-D${name}=${value}`);
}

export function loadUserKernels<Kernels extends UserKernelParameters>(
  module: CudaModule,
  kernels: Kernels,
  shared: Omit<KernelOptions<string>, 'entry' | 'arguments' | 'passing'>,
): CompiledKernels<Kernels> {
  const loaded: Record<string, UserKernel<Readonly<Record<string, Scalar>>>> = {};
  for (const [entry, parameters] of Object.entries(kernels)) {
    const layout: Layout = defineLayout(entry, parameters);
    loaded[entry] = new UserKernel(
      new CudaKernel(module, { ...shared, entry, arguments: layout, passing: 'each' }),
      parameters,
    );
  }
  return loaded as CompiledKernels<Kernels>;
}

function readSource(file: string): string {
  try {
    return readInput(file).toString('utf8');
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot read the kernel source ${file}`, { details: { file }, cause });
  }
}
