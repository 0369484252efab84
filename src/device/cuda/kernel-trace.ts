// Traces kernels of a GPU: gives them memory for their records and keeps these in the trace's file; compares its clock with the host's.
import { kernelTraceTarget, type traceClockArguments, traceClockCells } from '../../abi/kernel-trace.ts';
import { Block, type Layout } from '../../abi/layout.ts';
import type { Out } from '../../native/library.ts';
import { KernelRing } from '../../tracing/trace-rings.ts';
import { currentTrace } from '../../tracing/start-tracing.ts';
import { type CudaContext, OwnedResource } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';
import { HostMemory } from './host-memory.ts';
import type { CudaKernel, LaunchPlan } from './kernel.ts';

/** CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP. */
const REGISTER_FLAGS = 3;
/** What kernels that were compiled for it have as a constant. */
const TARGET = 'weftlineTrace';
/** Offset of the staged target, behind the cells of the clock. */
const STAGED_AT = 64;
const COUNTER_BYTES = 256;
const LEGACY_STREAM = 0;
/** Rounds of a comparison of clocks, of which the least difference counts. */
const ROUNDS = 32;
const FIRST_DEADLINE_MS = 500;
/** Clocks drift by some µs in a second. */
const COMPARE_EVERY_MS = 1000;
const LATER_ROUNDS = 8;
const LATER_DEADLINE_MS = 2;
/** A number that no round reaches: the kernel ends as soon as it runs. */
const NO_MORE = 0x7fff_ffff;

type NameOf<L> = L extends Layout<infer Name> ? Name : never;

export class KernelTrace extends OwnedResource {
  readonly #ring: KernelRing;
  /** Memory that kernels write to if the ring's cannot be given to the GPU: what they wrote is lost if the process is killed. */
  readonly #records: HostMemory | undefined;
  readonly #target: Block<NameOf<typeof kernelTraceTarget>>;
  readonly #counter: number;
  readonly #cells: HostMemory;
  readonly #words: Int32Array;
  readonly #origin: number = performance.timeOrigin * 1000;
  readonly #keep = (): void => this.#keepRecords();
  #clock: { readonly plan: LaunchPlan<NameOf<typeof traceClockArguments>>; readonly stream: CudaStream } | undefined;
  #timer: NodeJS.Timeout | undefined;

  /** undefined if this process is not traced, or has no room for another GPU. */
  static begin(context: CudaContext): KernelTrace | undefined {
    const file = currentTrace();
    const ring = file === undefined ? undefined : KernelRing.claim(file, context.ordinal);
    return ring === undefined ? undefined : new KernelTrace(context, ring);
  }

  private constructor(context: CudaContext, ring: KernelRing) {
    super(context);
    this.#ring = ring;
    this.#cells = new HostMemory(context, 4096);
    this.#words = this.#cells.view('i32', 0, traceClockCells.size / 4);
    this.#target = new Block(kernelTraceTarget, this.#cells.buffer, STAGED_AT);
    const out: Out = [0];
    const { memory } = ring;
    if (memory !== undefined && context.status('cuMemHostRegister', memory, ring.bytes, REGISTER_FLAGS) === 0) {
      context.call('cuMemHostGetDevicePointer', out, memory, 0);
    } else {
      this.#records = new HostMemory(context, ring.bytes);
      out[0] = this.#records.deviceAddress;
    }
    process.once('exit', this.#keep);
    this.#target.set('records', out[0]);
    context.call('cuMemAlloc', out, COUNTER_BYTES);
    this.#counter = out[0];
    this.#target.set('taken', this.#counter);
    context.call('cuMemsetD8Async', this.#counter, 0, COUNTER_BYTES, LEGACY_STREAM);
    this.#awaitLegacy();
    context.own(this);
  }

  /** Kernels of a CUmodule write their records from now on, if they were compiled for it. */
  attach(module: number, file: string): void {
    const address: Out = [0];
    const bytes: Out = [0];
    if (this.context.status('cuModuleGetGlobal', address, bytes, module, TARGET) !== 0) return;
    this.#target.set('label', this.#ring.labelOf(file));
    const from = this.#cells.hostAddress + STAGED_AT;
    this.context.call('cuMemcpyHtoDAsync', address[0], from, kernelTraceTarget.size, LEGACY_STREAM);
    this.#awaitLegacy();
  }

  get hasClock(): boolean {
    return this.#clock !== undefined;
  }

  /** Compares the clocks now, every second, and when the device is closed. `stream` is used for nothing else. */
  startClock(kernel: CudaKernel<NameOf<typeof traceClockArguments>>, stream: CudaStream): void {
    if (this.hasClock) return;
    const plan = kernel.plan({ grid: 1, block: 32 });
    plan.arguments.set('cells', this.#cells.deviceAddress);
    this.#clock = { plan, stream };
    this.#compare(ROUNDS, FIRST_DEADLINE_MS);
    this.#timer = setInterval(() => this.#compare(LATER_ROUNDS, LATER_DEADLINE_MS), COMPARE_EVERY_MS).unref();
  }

  /** The last comparison, while the device still works. */
  stopClock(): void {
    clearInterval(this.#timer);
    this.#compare(ROUNDS, FIRST_DEADLINE_MS);
    this.#clock = undefined;
  }

  override release(): void {
    clearInterval(this.#timer);
    this.context.release('cuMemFree', this.#counter);
    process.off('exit', this.#keep);
    this.#keepRecords();
    if (this.#records === undefined) this.context.release('cuMemHostUnregister', this.#ring.memory!);
    else this.#records[Symbol.dispose]();
    this.#cells[Symbol.dispose]();
  }

  #keepRecords(): void {
    this.#ring.keep(this.#records === undefined ? undefined : new Uint8Array(this.#records.buffer));
  }

  /** Takes the answer that came soonest of several; none if the GPU is too busy to answer. */
  #compare(rounds: number, deadlineMs: number): void {
    const context = this.context;
    if (this.#clock === undefined || context.isCapturing || context.lost !== undefined || context.disposed) return;
    try {
      if (this.#clock.stream.isIdle()) this.#ask(rounds, deadlineMs);
    } catch {
      // The device was lost; who uses it is told.
    }
  }

  #ask(rounds: number, deadlineMs: number): void {
    const { plan, stream } = this.#clock!;
    const words = this.#words;
    const { time, answered, asked } = traceClockCells.offset;
    Atomics.store(words, asked / 4, 0);
    Atomics.store(words, answered / 4, 0);
    plan.arguments.set('rounds', rounds);
    plan.arguments.set('deadlineNs', deadlineMs * 1e6);
    plan.launch(stream);
    const deadline = performance.now() + deadlineMs;
    let best:
      | { readonly high: number; readonly low: number; readonly hostUs: number; readonly errorUs: number }
      | undefined;
    for (let round = 1; round <= rounds; round++) {
      const before = performance.now();
      Atomics.store(words, asked / 4, round);
      while (Atomics.load(words, answered / 4) < round && performance.now() < deadline);
      const after = performance.now();
      if (Atomics.load(words, answered / 4) < round) break;
      const errorUs = ((after - before) / 2) * 1000;
      if (best !== undefined && best.errorUs <= errorUs) continue;
      const hostUs = this.#origin + ((before + after) / 2) * 1000;
      best = { high: words[time / 4 + 1]! >>> 0, low: words[time / 4]! >>> 0, hostUs, errorUs };
    }
    Atomics.store(words, asked / 4, NO_MORE);
    if (best !== undefined) this.#ring.addSample(best);
  }

  #awaitLegacy(): void {
    while (!this.context.isGood(this.context.status('cuStreamQuery', LEGACY_STREAM) === 0));
  }
}
