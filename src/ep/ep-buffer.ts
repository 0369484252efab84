// EpBuffer: dispatch sends each token once to every rank that holds one of its experts; combine brings the sums back.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import { TensorSet } from '../device/tensor-set.ts';
import { SymmetricWindow } from '../memory/symmetric-window.ts';
import type { WaitOptions } from '../world/store.ts';
import type { World } from '../world/world.ts';
import { agreeOn, requireOneHost } from './agree.ts';
import { bufferSize, type EpBufferConfig, type EpBufferSize } from './buffer-size.ts';
import { CallGuard } from './call-guard.ts';
import { callWord, describeCall } from './calls.ts';
import { checkCombine, type CombineArguments } from './combine-arguments.ts';
import { CpuEpEngine } from './cpu-engine.ts';
import { checkDispatch, checkHandle, type DispatchArguments } from './dispatch-arguments.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import { computeLayout, type DispatchLayout, emptyLayout } from './dispatch-layout.ts';
import type { CombineResult, DispatchResult } from './ep-results.ts';
import { type EpTables, makeEpTables } from './ep-tables.ts';
import { checkTensor } from './tensor-check.ts';

export class EpBuffer implements AsyncDisposable {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
  readonly #engine: CpuEpEngine;
  readonly #guard = new CallGuard('EpBuffer');

  /**
   * Collective over the world, whose ranks must all be on one host. Fails on every rank with the same error:
   * WL_INVALID_ARGUMENT, WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY or WL_TIMEOUT.
   */
  static async create(
    world: World,
    device: CpuDevice,
    config: EpBufferConfig,
    options: WaitOptions = {},
  ): Promise<EpBuffer> {
    requireOneHost(world, 'EpBuffer');
    const full = { combineRows: 'separate' as const, ...config };
    const prepare = (): { readonly size: EpBufferSize; readonly tables: EpTables } => {
      const size = bufferSize(full, world.size);
      return { size, tables: makeEpTables(device, full, { ranks: world.size, size }) };
    };
    const release = ({ tables }: ReturnType<typeof prepare>): void => tables[Symbol.dispose]();
    const { size, tables } = await agreeOn(world, { what: 'EpBuffer', config: full, prepare, release }, options);
    try {
      const of = { world, device, name: 'ep', bytes: size.bytes, describeCall };
      const window = await SymmetricWindow.create({ ...options, ...of });
      return new EpBuffer({ world, device, config: full, size, window, tables });
    } catch (error) {
      tables[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(parts: EpBufferParts) {
    this.world = parts.world;
    this.device = parts.device;
    this.config = Object.freeze({ ...parts.config });
    this.size = parts.size;
    this.#engine = new CpuEpEngine(this, parts.window, parts.tables);
  }

  /** Counts for dispatch. Local, no rank waits for another. `topkIdx` [T, K], -1 for no expert. The caller owns the result. */
  getDispatchLayout({ topkIdx }: { readonly topkIdx: Tensor<'i32' | 'i64'> }): DispatchLayout {
    this.#guard.requireOpen();
    const { device } = this;
    const choices = checkTensor('topkIdx', topkIdx, { device, dtype: ['i32', 'i64'], shape: ['T', 'K'] });
    const { shape } = this.#engine.tables;
    const { set, made } = TensorSet.make(device, (tensors) => {
      const layout = emptyLayout(tensors, choices.shape[0] as number, shape);
      computeLayout(choices, layout, shape);
      return layout;
    });
    return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
  }

  /**
   * Collective. Sends row t of `x` once to every rank that `topkIdx[t]` names an expert of. Bad arguments fail with
   * WL_INVALID_ARGUMENT on this rank before it does anything; the others then wait for it.
   */
  async dispatch(args: DispatchArguments): Promise<DispatchResult> {
    return this.#guard.run('dispatch', async () => {
      const { window } = this.#engine;
      window.barrier.throwIfUnusable();
      const input = checkDispatch(args, this, window);
      const { handle } = input;
      return handle === undefined
        ? this.#engine.dispatch(input, args)
        : this.#engine.dispatchCached(input, handle, args);
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [rows, H] in this rank's window, valid
   * until combine() returns. With combineRows 'shared' it is the memory of recvX.
   */
  combineInput(handle: DispatchHandle): Tensor<'bf16'> {
    this.#guard.requireOpen();
    const { rows } = checkHandle(handle, this);
    return this.#engine.view('bf16', 'combineRows', [rows, this.config.hidden]);
  }

  /** Collective. The unweighted sum of the rows that the ranks hold of each token, back at the token's rank. */
  async combine(args: CombineArguments): Promise<CombineResult> {
    return this.#guard.run('combine', async () => {
      const { window } = this.#engine;
      window.barrier.throwIfUnusable();
      return this.#engine.combine(checkCombine(args, this, window.storage), args);
    });
  }

  /** Address in this rank's memory of a row of the receive (or combine) region of any rank; for benchmarks. */
  peerRowAddress(rank: number, row: number, region: 'rows' | 'combineRows' = 'rows'): number {
    return (
      (this.#engine.window.addresses[rank] as number) + this.size.regions[region].offset + row * this.config.hidden * 2
    );
  }

  /** Collective: returns when all ranks have called it. */
  barrier(options: WaitOptions = {}): Promise<void> {
    return this.#guard.run('barrier', () =>
      this.#engine.window.barrier.wait(callWord({ kind: 'barrier' }, 'opening'), options),
    );
  }

  /** Releases the window here. Not collective; ranks that still wait for this one get WL_PEER_LOST. Idempotent. */
  [Symbol.asyncDispose](): Promise<void> {
    if (this.#guard.close()) this.#engine[Symbol.dispose]();
    return Promise.resolve();
  }
}

interface EpBufferParts {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: Required<EpBufferConfig>;
  readonly size: EpBufferSize;
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
}
