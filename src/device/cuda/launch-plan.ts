// A kernel launch prepared once: its configuration and arguments lie in native memory, and launching is one call.
import { alignUp, Block, type Layout } from '../../abi/layout.ts';
import { invalidArgument } from '../../core/errors.ts';
import { addressOf } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';

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

/** What a plan launches. */
interface LaunchTarget<Name extends string> {
  readonly context: CudaContext;
  /** CUfunction. */
  readonly handle: number;
  /** "dispatch.cu:dispatchRows", for errors. */
  readonly label: string;
  readonly arguments: Layout<Name>;
  /** The kernel takes the layout as one structure, or each of its fields as a parameter. */
  readonly passing: ArgumentPassing;
  readonly stream: CudaStream;
}

export type ArgumentPassing = 'structure' | 'each';

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
  constructor(target: LaunchTarget<Name>, shape: LaunchShape) {
    const offsets = target.passing === 'structure' ? [0] : Object.values<number>(target.arguments.offset);
    const parameters = alignUp(PARAMETER_TABLE + 8 * offsets.length, 64);
    // Shared memory never moves, so its address may be kept.
    const memory = new SharedArrayBuffer(parameters + alignUp(target.arguments.size, 64));
    const base = Number(addressOf(new Uint8Array(memory)));
    this.label = target.label;
    this.#context = target.context;
    this.#handle = target.handle;
    this.#defaultStream = target.stream;
    this.#view = new DataView(memory);
    this.#configuration = base;
    this.#parameters = base + PARAMETER_TABLE;
    this.arguments = new Block(target.arguments, memory, parameters);
    this.argumentBytes = new DataView(memory, parameters, target.arguments.size);
    for (const [index, offset] of offsets.entries()) {
      this.#setAddress(PARAMETER_TABLE + 8 * index, base + parameters + offset);
    }
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

  /** Which of the arguments are addresses, the layout alone does not say: what is none is in no block of memory. */
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
