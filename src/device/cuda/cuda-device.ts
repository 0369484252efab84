// The CUDA device: one GPU of this process with its memory, streams, kernels and trap record.
import type { WaitOptions } from '../../core/deadline.ts';
import { alignUp, type Layout } from '../../abi/layout.ts';
import { type DType, dtypes, requireDType, type TypedArrayOf, typedArrayOver } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import { IPC_HANDLE_BYTES } from '../../native/cuda-driver.ts';
import type { Out } from '../../native/library.ts';
import { openNvrtc } from '../../native/nvrtc.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { startTracing } from '../../tracing/start-tracing.ts';
import { AbandonedMemory } from '../abandoned-memory.ts';
import type { Device } from '../device.ts';
import {
  elementCount,
  type MemoryRange,
  OwnedStorage,
  requireDownload,
  requireUpload,
  type Storage,
  Tensor,
} from '../tensor.ts';
import { CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CudaContext } from './cuda-context.ts';
import { CudaEvent } from './cuda-event.ts';
import { captureGraph, type CudaGraph } from './cuda-graph.ts';
import { CudaStream, type Fence, WorkFences } from './cuda-stream.ts';
import { architectureOf, type DeviceProperties, readDeviceProperties } from './device-properties.ts';
import { HostMemory } from './host-memory.ts';
import { resolveCacheFolder } from './jit/cubin-cache.ts';
import { KernelCompiler } from './jit/kernel-compiler.ts';
import { KernelTrace } from './kernel-trace.ts';
import {
  type CompiledKernels,
  CudaKernel,
  CudaModule,
  definesOfUser,
  loadUserKernels,
  readUserText,
  type UserKernelParameters,
  type UserSource,
} from './kernel.ts';
import { MemoryPool } from './memory-pool.ts';
import { TrapBox } from './trap-box.ts';
import { type ConstantValues, type KernelFile, kernelFiles, variantName } from './kernel-files.ts';

// Copies between ordinary host memory and the device, through two pieces of pinned memory in turn.

/** One piece is copied by the host in well under a millisecond. */
const PIECE_BYTES = 2 << 20;

interface Piece {
  readonly memory: HostMemory;
  readonly bytes: Uint8Array;
  readonly event: CudaEvent;
  /** What the host does with the piece once its copy is done. */
  finish: (() => void) | undefined;
}

export class HostCopy {
  readonly #context: CudaContext;
  readonly #stream: CudaStream;
  readonly #timeoutMs: number;
  #pieces: readonly Piece[] | undefined;
  /** Copies run one after another: they share the pieces. */
  #tail: Promise<unknown> = Promise.resolve();

  /** Copies are enqueued on `stream`, so they follow what was launched there before. */
  constructor(context: CudaContext, stream: CudaStream, timeoutMs: number) {
    this.#context = context;
    this.#stream = stream;
    this.#timeoutMs = timeoutMs;
  }

  /** Resolves when the bytes are in device memory. */
  toDevice(address: number, source: Uint8Array): Promise<void> {
    return this.#inTurn(async () => {
      for (let offset = 0, turn = 0; offset < source.length; offset += PIECE_BYTES, turn ^= 1) {
        const piece = await this.#claim(turn);
        const part = source.subarray(offset, offset + PIECE_BYTES);
        piece.bytes.set(part);
        const { hostAddress } = piece.memory;
        this.#context.call('cuMemcpyHtoDAsync', address + offset, hostAddress, part.length, this.#stream.handle);
        this.#mark(piece);
      }
      await this.#finishAll();
    });
  }

  /** Resolves when the bytes are in host memory. */
  fromDevice(target: Uint8Array, address: number): Promise<void> {
    return this.#inTurn(async () => {
      for (let offset = 0, turn = 0; offset < target.length; offset += PIECE_BYTES, turn ^= 1) {
        const piece = await this.#claim(turn);
        const part = target.subarray(offset, offset + PIECE_BYTES);
        const { hostAddress } = piece.memory;
        this.#context.call('cuMemcpyDtoHAsync', hostAddress, address + offset, part.length, this.#stream.handle);
        piece.finish = () => part.set(piece.bytes.subarray(0, part.length));
        this.#mark(piece);
      }
      await this.#finishAll();
    });
  }

  #inTurn(copy: () => Promise<void>): Promise<void> {
    this.#context.refuseCapture('a copy between the host and the device, which the host waits for,');
    const turn = this.#tail.then(copy).finally(this.#context.beginHostCall('a copy between the host and the device'));
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  #mark(piece: Piece): void {
    this.#context.workCount += 1;
    piece.event.record(this.#stream);
  }

  /** Waits until the last copy of this piece is done, and finishes it. */
  async #claim(turn: number): Promise<Piece> {
    this.#pieces ??= [this.#createPiece(), this.#createPiece()];
    const piece = this.#pieces[turn];
    if (piece === undefined) throw new WeftlineError('WL_INTERNAL', `There is no piece ${turn}`);
    await piece.event.wait({ timeoutMs: this.#timeoutMs });
    piece.finish?.();
    piece.finish = undefined;
    return piece;
  }

  async #finishAll(): Promise<void> {
    await this.#claim(0);
    await this.#claim(1);
  }

  #createPiece(): Piece {
    const memory = new HostMemory(this.#context, PIECE_BYTES);
    const event = new CudaEvent(this.#context, { timing: false, timeoutMs: this.#timeoutMs });
    return { memory, bytes: memory.view('u8'), event, finish: undefined };
  }
}

// Device memory that other processes of this host map into their own address space.

const LAZY_ENABLE_PEER_ACCESS = 1;

/** Names the memory for other processes; valid as long as the memory is. */
function exportMemory(context: CudaContext, address: number): string {
  const handle = new Uint8Array(IPC_HANDLE_BYTES);
  context.call('cuIpcGetMemHandle', handle, address);
  return Buffer.from(handle).toString('base64');
}

/** Maps memory of another process; a process cannot open its own. Returns the address here. */
function openMemory(context: CudaContext, handle: string): number {
  const reserved = new Uint8Array(Buffer.from(handle, 'base64'));
  if (reserved.length !== IPC_HANDLE_BYTES) {
    throw new WeftlineError(
      'WL_PROTOCOL',
      `Invalid memory handle: expected ${IPC_HANDLE_BYTES} bytes, got ${reserved.length}`,
    );
  }
  const address: Out = [0];
  const status = context.status('cuIpcOpenMemHandle', address, { reserved }, LAZY_ENABLE_PEER_ACCESS);
  context.check('cuIpcOpenMemHandle', status, 'mapping the memory of another process');
  return address[0];
}

/** The GPU to take, and where its compiled kernels come from. */
export interface CudaDeviceOptions extends Partial<
  Pick<Settings, 'timeoutMs' | 'nvrtcPath' | 'cacheFolder' | 'aotFolder' | 'useAot'>
> {
  /** Number of the GPU among those that this process sees; 0 by default. */
  readonly ordinal?: number;
}

/** The kernels of one file by their names. */
type LoadedKernels<File extends KernelFile> = {
  readonly [Entry in keyof File['kernels']]: File['kernels'][Entry] extends Layout<infer Name>
    ? CudaKernel<Name>
    : never;
};

/** CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD. */
const DMABUF_DESCRIPTOR = 1;
/** Exported ranges begin and end at pages of the host. */
const HOST_PAGE_BYTES = process.arch === 'arm64' ? 65_536 : 4096;

/**
 * One GPU: its context, its streams, a pool of memory, and weftline's kernels for it. Work that it enqueues runs on `stream`.
 */
export class CudaDevice implements Device {
  readonly kind = 'cuda';
  /** @internal */
  readonly context: CudaContext;
  /** @internal */
  readonly properties: DeviceProperties;
  /** The stream of everything that is not told otherwise, copies of tensors too. */
  readonly stream: CudaStream;
  /** @internal */
  readonly traps: TrapBox;
  /** @internal */
  readonly compiler: KernelCompiler;
  readonly #settings: Settings;
  readonly #streams = new Set<CudaStream>();
  readonly #fences: WorkFences;
  readonly #pool: MemoryPool;
  readonly #copy: HostCopy;
  readonly #modules = new Map<string, Promise<LoadedKernels<KernelFile>>>();
  readonly #abandoned: AbandonedMemory;
  readonly #trace: KernelTrace | undefined;

  /** Fails with WL_UNSUPPORTED without a driver, WL_CUDA without the GPU. Compiles nothing. */
  static create(options: CudaDeviceOptions = {}): Promise<CudaDevice> {
    return Promise.resolve().then(() => {
      const { ordinal = 0, ...settings } = options;
      const context = CudaContext.retain(ordinal);
      try {
        return new CudaDevice(context, readSettings(settings));
      } catch (error) {
        context[Symbol.dispose]();
        throw error;
      }
    });
  }

  private constructor(context: CudaContext, settings: Settings) {
    this.context = context;
    this.#settings = settings;
    this.properties = readDeviceProperties(context);
    this.stream = this.createStream();
    this.traps = new TrapBox(context);
    this.#fences = new WorkFences(context, this.#streams);
    this.#pool = new MemoryPool(context, this.#fences);
    this.#copy = new HostCopy(context, this.stream, settings.timeoutMs);
    startTracing(settings);
    this.#trace = KernelTrace.begin(context);
    this.compiler = new KernelCompiler({
      isTraced: this.#trace !== undefined,
      architecture: architectureOf(this.properties.capability),
      cacheFolder: resolveCacheFolder(settings.cacheFolder),
      aotFolder: settings.aotFolder,
      useAot: settings.useAot,
      openCompiler: () => openNvrtc(settings.nvrtcPath),
    });
    this.#abandoned = new AbandonedMemory({
      release: (address) => this.#pool.give(address),
      bytesInUse: () => this.#pool.used,
    });
  }

  /** @internal Tells when all work enqueued so far, on any of its streams, is done. */
  workFence(): Fence {
    return this.#fences.now();
  }

  /** Memory that is handed out again once all work enqueued before its disposal is done. */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    requireDType(dtype);
    const bytes = elementCount(shape) * dtypes[dtype].bytes;
    const address = this.#pool.take(bytes);
    const storage = new OwnedStorage(this, { address, bytes }, () => {
      this.#abandoned.forget(storage);
      this.#pool.give(address);
    });
    this.#abandoned.watch(storage);
    return Tensor.owning(storage, dtype, shape);
  }

  /** A tensor with the given values; see Device. */
  async tensor<D extends DType>(dtype: D, shape: readonly number[], values: TypedArrayOf[D]): Promise<Tensor<D>> {
    const tensor = await this.#abandoned.allocating(() => this.empty(dtype, shape));
    await tensor.fromHost(values);
    return tensor;
  }

  /**
   * Memory of its own, zeroed by the stream's next work, that exportMemory() can name to other processes. Fails with
   * WL_MEMORY.
   * @internal
   */
  allocateShared(bytes: number): Storage {
    this.context.refuseCapture('memory shared with other processes');
    const address = this.#pool.allocate(bytes);
    const storage = new OwnedStorage(this, { address, bytes }, () => {
      this.context.disown(storage);
      this.context.release('cuMemFree', address);
    });
    this.context.own(storage);
    this.setBytes(storage, 0);
    return storage;
  }

  /** @internal The name of memory from allocateShared() for openPeerMemory() in another process of this host. */
  exportMemory(storage: Storage): string {
    return exportMemory(this.context, storage.address);
  }

  /**
   * The allocation that holds an address, as a whole, to be opened with openPeerMemory() in another process of this host. Fails
   * with WL_CUDA for memory that cannot be shared.
   * @internal
   */
  exportAllocation(address: number): { readonly base: number; readonly bytes: number; readonly handle: string } {
    const base: Out = [0];
    const bytes: Out = [0];
    this.context.call('cuMemGetAddressRange', base, bytes, address);
    return { base: base[0], bytes: bytes[0], handle: exportMemory(this.context, base[0]) };
  }

  /**
   * Memory of this device as a dmabuf, by which other devices reach it: a file descriptor, which the caller closes, and where
   * in it the memory begins. Fails with WL_CUDA, or with WL_UNSUPPORTED where the driver has no such call.
   * @internal
   */
  exportDmabuf(address: number, bytes: number): { readonly descriptor: number; readonly offset: number } {
    const offset = address % HOST_PAGE_BYTES;
    const whole = alignUp(offset + bytes, HOST_PAGE_BYTES);
    const descriptor: Out = [-1];
    this.context.call('cuMemGetHandleForAddressRange', descriptor, address - offset, whole, DMABUF_DESCRIPTOR, 0);
    return { descriptor: descriptor[0], offset };
  }

  /** @internal No work that uses the memory may be running when it is disposed. */
  openPeerMemory(handle: string, bytes: number): Storage {
    const address = openMemory(this.context, handle);
    const storage = new OwnedStorage(this, { address, bytes }, () => {
      this.context.disown(storage);
      this.context.release('cuIpcCloseMemHandle', address);
    });
    return this.context.own(storage);
  }

  /** @internal Memory of the host that kernels reach; zeroed. */
  allocateHost(bytes: number): HostMemory {
    return new HostMemory(this.context, bytes);
  }

  /** @internal Sets every byte of a tensor or of other memory of the device, in the order of the stream. */
  setBytes(memory: MemoryRange, byte: number, stream: CudaStream = this.stream): void {
    this.context.workCount += 1;
    this.context.call('cuMemsetD8Async', memory.address, byte, memory.bytes, stream.handle);
  }

  /** @internal Copies bytes in the order of the stream, by a copy engine; either side may be mapped memory of a peer, or pinned. */
  copyAsync(to: number, from: number, bytes: number, stream: CudaStream): void {
    const { context } = this;
    context.enter();
    context.workCount += 1;
    context.holdRecorded?.(to);
    context.holdRecorded?.(from);
    const status = context.driver.cuMemcpyAsync(to, from, bytes, stream.handle);
    if (status !== 0) context.check('cuMemcpyAsync', status);
  }

  /** `high`: its blocks run before those of other streams. Closed by the caller, or with the device. */
  createStream(options: { readonly priority?: 'normal' | 'high' } = {}): CudaStream {
    const { priority = 'normal' } = options;
    const stream = new CudaStream(this.context, { priority, timeoutMs: this.#settings.timeoutMs }, (closed) =>
      this.#streams.delete(closed),
    );
    this.#streams.add(stream);
    return stream;
  }

  /** `timing` makes millisecondsSince() possible and recording a little slower. */
  createEvent(options: { readonly timing?: boolean } = {}): CudaEvent {
    return new CudaEvent(this.context, { timing: options.timing ?? false, timeoutMs: this.#settings.timeoutMs });
  }

  /**
   * Records what `record` enqueues on `stream`, and on streams that wait for it and that it waits for again, instead of
   * running it: kernels, events, copies within the device, calls of EpLowLatency, EpBuffer, EPAll2AllLayer and, in a group on
   * one host, of Communicator. Tensors may be taken; the graph keeps their memory, and that of all tensors which the recorded
   * calls name, until it is closed. What cannot be recorded fails with WL_UNSUPPORTED: waits of the host (of a dispatch for its
   * counts, unless it has a bound or a handle), copies to or from it, kernels that must be compiled first, calls of a
   * Communicator across hosts, and sparse ones. One at a time, and the device does nothing else meanwhile: fails with
   * WL_UNSUPPORTED while a call runs of which the host still has steps to enqueue: of a Communicator of several hosts, a sparse
   * allReduce, a layer dispatch without a bound, or a copy to or from the host.
   */
  capture(record: () => Promise<void> | void): Promise<CudaGraph> {
    return captureGraph(this.stream, () => this.#pool.keep(), record);
  }

  /** @internal Whether kernels here can use the memory of another GPU of this host. */
  canAccess(peer: CudaDevice): boolean {
    const can: Out = [0];
    this.context.call('cuDeviceCanAccessPeer', can, this.context.device, peer.context.device);
    return can[0] === 1;
  }

  /** @internal Lets kernels here use the memory of another GPU that this process holds too; may be called again. */
  enablePeerAccess(peer: CudaDevice): void {
    const status = this.context.status('cuCtxEnablePeerAccess', peer.context.handle, 0);
    if (status === CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return;
    this.context.check('cuCtxEnablePeerAccess', status, `access to GPU ${peer.context.ordinal}`);
  }

  /**
   * Compiles what is in no cache, and loads it once; with `useAot` takes it from the AOT folder or fails. WL_COMPILE,
   * WL_UNSUPPORTED or WL_CUDA.
   * @internal
   */
  loadKernels<File extends KernelFile>(
    file: File,
    values: ConstantValues = {},
    { useAot = false }: { readonly useAot?: boolean } = {},
  ): Promise<LoadedKernels<File>> {
    const key = `${variantName(file, values)}${useAot ? ' AOT' : ''}`;
    let loaded = this.#modules.get(key);
    if (loaded === undefined) {
      this.context.refuseCapture(`the first use of ${file.file}, which is compiled then,`);
      loaded = this.#load(file, values, useAot);
      this.#modules.set(key, loaded);
      loaded.catch(() => this.#modules.delete(key));
    }
    return loaded as Promise<unknown> as Promise<LoadedKernels<File>>;
  }

  /**
   * Kernels of a user: CUDA C++ that may include weftline/weftline.cuh, compiled once per text, loaded once per call. A
   * mistake in the text is WL_COMPILE with the compiler's log and, in details, its first line and message.
   */
  async compile<const Kernels extends UserKernelParameters>(
    source: UserSource<Kernels>,
  ): Promise<CompiledKernels<Kernels>> {
    const text = readUserText(source);
    this.context.refuseCapture(`the compilation of ${text.name}`);
    const cubin = await this.compiler.cubinOf(text, definesOfUser(source));
    const { multiprocessors, sharedBytesPerBlock } = this.properties;
    const module = new CudaModule(this.context, cubin, text.name);
    await this.#traceKernels(module, text.name);
    return loadUserKernels(module, source.kernels, {
      file: text.name,
      stream: this.stream,
      multiprocessors,
      sharedBytesPerBlock,
    });
  }

  /** Always fails with WL_UNSUPPORTED. */
  hostView(): never {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'The host cannot address GPU memory: copy it with tensor.toHost(), or use device.allocateHost() for memory that both reach',
    );
  }

  /** Copies values into a tensor, in the order of `stream`; the values may change once it has resolved. */
  async upload<D extends DType>(tensor: Tensor<D>, values: TypedArrayOf[D]): Promise<void> {
    requireUpload(this, tensor, values);
    return this.#copy.toDevice(tensor.address, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  }

  /** A copy of a tensor's values, once earlier work on `stream` is done. Fails with what that work reported. */
  async download<D extends DType>(tensor: Tensor<D>): Promise<TypedArrayOf[D]> {
    requireDownload(this, tensor);
    const copy = new Uint8Array(tensor.bytes);
    await this.#copy.fromDevice(copy, tensor.address);
    return typedArrayOver(tensor.dtype, copy.buffer);
  }

  /** Resolves when everything on any stream is done, as CudaStream.drained(); at once on a lost device. */
  async drained(options: WaitOptions = {}): Promise<void> {
    if (this.context.lost !== undefined) return;
    await Promise.all([...this.#streams].map((stream) => stream.drained(options)));
  }

  /** Waits for running work, unless the device is lost; then everything that was made from it is gone. Idempotent. */
  async close(): Promise<void> {
    if (this.context.disposed) return;
    const { stayingWork } = this.context;
    for (const work of stayingWork) work.leave();
    try {
      await this.drained();
    } catch (error) {
      for (const work of stayingWork) work.giveUp();
      if (stayingWork.size > 0) await this.drained();
      throw error;
    } finally {
      // Whatever becomes of their last words, they look at nothing any more.
      await Promise.allSettled([...this.context.threads].map((end) => end()));
      this.#trace?.stopClock();
      this.#pool.dispose();
      this.context[Symbol.dispose]();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #load(file: KernelFile, values: ConstantValues, useAot: boolean): Promise<LoadedKernels<KernelFile>> {
    const cubin = await this.compiler.cubin(file, values, useAot);
    const name = variantName(file, values);
    const module = new CudaModule(this.context, cubin, name);
    if (file.file !== kernelFiles.traceClock.file) await this.#traceKernels(module, file.file);
    const { multiprocessors, sharedBytesPerBlock } = this.properties;
    const { stream } = this;
    const shared = { file: name, stream, multiprocessors, sharedBytesPerBlock };
    return Object.fromEntries(
      Object.entries(file.kernels).map(([entry, layout]) => [
        entry,
        new CudaKernel(module, { ...shared, entry, arguments: layout, passing: 'structure' }),
      ]),
    );
  }

  async #traceKernels(module: CudaModule, file: string): Promise<void> {
    const trace = this.#trace;
    if (trace === undefined) return;
    trace.attach(module.handle, file);
    if (trace.hasClock) return;
    const { traceClock } = await this.loadKernels(kernelFiles.traceClock);
    if (!trace.hasClock) trace.startClock(traceClock, this.createStream({ priority: 'high' }));
  }
}
