// Kernels of a user's own: how their text and parameters are declared, and how they are launched.
import { basename } from 'node:path';
import { defineLayout, type Layout, type Scalar } from '../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { readInput } from '../../core/guarded-file.ts';
import type { Storage, Tensor } from '../tensor.ts';
import type { CudaStream } from './cuda-stream.ts';
import { type KernelText, ourHeaders } from './jit/cubin-cache.ts';
import { CudaKernel, type CudaModule, type KernelOptions, type LaunchPlan, type LaunchShape } from './kernel.ts';

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
