// DispatchCombineContext: the symmetric memory of an all-to-all layer, its resizable output and its count exchange.
import type { DType } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/tensor-set.ts';
import { SymmetricWindow } from '../../memory/symmetric-window.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { World } from '../../world/world.ts';
import { type AddressTables, fillAddressTables, makeAddressTables } from '../address-table.ts';
import { agreeOn } from '../agree.ts';
import { exchangeRegionBytes, isWhole } from '../buffer-size.ts';
import { describeCall } from '../calls.ts';
import { CountExchange } from '../exchange.ts';
import type { EPConfig } from './ep-config.ts';
import { grownRows, initialRows, type OutputRegion, type OutputSize, outputSize } from './output-size.ts';

export interface ContextOptions extends WaitOptions {
  /** Rows of the output buffer as a multiple of maxTokens * topk, a balanced load; 2 by default. It grows on demand. */
  readonly capacity?: number;
}

export interface OutputBuffers {
  /** bf16 [capacity rows, H], in the window; valid until the next reallocation. */
  readonly dispatchOutputBuf: Tensor<'bf16'>;
  /** [capacity rows], of the configuration's weight dtype. */
  readonly weightRecvBuf: Tensor<'f32' | 'bf16'>;
}

export class DispatchCombineContext implements AsyncDisposable {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: EPConfig;
  readonly exchange: CountExchange;
  /** Whose barrier orders the layer's calls; holds the exchange records. */
  readonly control: SymmetricWindow;
  #output: Output | undefined;

  /** Collective. The same error on every rank: WL_INVALID_ARGUMENT, WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY. */
  static async create(
    world: World,
    device: CpuDevice,
    epConfig: EPConfig,
    options: ContextOptions = {},
  ): Promise<DispatchCombineContext> {
    const { capacity = 2 } = options;
    const { maxTokens, hidden, topk, numExperts, weightDtype } = epConfig;
    const config = { maxTokens, hidden, topk, numExperts, weightDtype, capacity };
    const prepare = (): void => {
      if (!(capacity > 0)) throw invalidArgument('capacity', capacity, 'a number above 0');
    };
    await agreeOn(world, { what: 'DispatchCombineContext', config, prepare }, options);
    const bytes = exchangeRegionBytes(world.size, numExperts);
    const of = { world, device, name: 'a2a-control', bytes, describeCall };
    const control = await SymmetricWindow.create({ ...options, ...of });
    const context = new DispatchCombineContext({ world, device, epConfig, control });
    try {
      await context.#allocate(initialRows(epConfig, capacity), options);
    } catch (error) {
      control[Symbol.dispose]();
      throw error;
    }
    return context;
  }

  private constructor(parts: { world: World; device: CpuDevice; epConfig: EPConfig; control: SymmetricWindow }) {
    this.world = parts.world;
    this.device = parts.device;
    this.config = parts.epConfig;
    this.control = parts.control;
    this.exchange = new CountExchange(parts.device, parts.control, { offset: 0, experts: parts.epConfig.numExperts });
  }

  /** Sizes of the present output buffer. */
  get outputSize(): OutputSize {
    return this.#present().size;
  }

  get outputBuffers(): OutputBuffers {
    const rows = this.outputSize.capacityRows;
    return {
      dispatchOutputBuf: this.view('bf16', 'rows', [rows, this.config.hidden]),
      weightRecvBuf: this.view(this.config.weightDtype, 'weights', [rows]),
    };
  }

  /**
   * Collective, with the same number on every rank: makes room for that many rows at every rank. Keeps the buffers when
   * they suffice; else they are replaced, their contents lost and tensors over them closed. When there is no room, all
   * ranks get the same WL_MEMORY or WL_SHARED_MEMORY, and the context goes on with buffers of the old size.
   */
  async reallocateDispatchOutputBuf(dispatchRecvTokens: number, options: WaitOptions = {}): Promise<OutputBuffers> {
    if (!isWhole(dispatchRecvTokens, 0) || dispatchRecvTokens > this.config.maxRecvRows) {
      throw invalidArgument(
        'dispatchRecvTokens',
        dispatchRecvTokens,
        `0 to ${this.config.maxRecvRows}, the most that can arrive`,
      );
    }
    const before = this.outputSize.capacityRows;
    if (dispatchRecvTokens > before) {
      this.#releaseOutput();
      try {
        await this.#allocate(grownRows(this.config, dispatchRecvTokens), options);
      } catch (error) {
        await this.#allocate(before, options);
        throw error;
      }
    }
    return this.outputBuffers;
  }

  /** For the kernels: the addresses of a region at all ranks. */
  bases(region: OutputRegion): number {
    return this.#present().bases[region].address;
  }

  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: OutputRegion, shape: readonly number[]): Tensor<D> {
    const { window, size } = this.#present();
    const offset = window.address + size.regions[region].offset - window.storage.address;
    return new Tensor(window.storage, dtype, shape, offset);
  }

  /** Releases the memory here. Not collective; idempotent. */
  finalize(): Promise<void> {
    this.#releaseOutput();
    this.control[Symbol.dispose]();
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.finalize();
  }

  /** Every rank fails alike, also when only one of them has no memory for its tables. */
  async #allocate(rows: number, options: WaitOptions): Promise<void> {
    const { world, device } = this;
    const size = outputSize(this.config, rows);
    const tables: { set?: TensorSet; bases?: AddressTables<OutputRegion> } = {};
    const prepare = (): void => {
      const names = Object.keys(size.regions) as OutputRegion[];
      const { set, made } = TensorSet.make(device, (tensors) => makeAddressTables(tensors, names, world.size));
      tables.set = set;
      tables.bases = made;
    };
    try {
      const of = { world, device, name: 'a2a-output', bytes: size.bytes, describeCall, prepare };
      const window = await SymmetricWindow.create({ ...options, ...of });
      const { set, bases } = tables as Required<typeof tables>;
      fillAddressTables(bases, window, size.regions);
      this.#output = { window, size, bases, set };
    } catch (error) {
      tables.set?.[Symbol.dispose]();
      throw error;
    }
  }

  #releaseOutput(): void {
    if (this.#output === undefined) return;
    this.#output.window[Symbol.dispose]();
    this.#output.set[Symbol.dispose]();
    this.#output = undefined;
  }

  #present(): Output {
    if (this.#output === undefined) {
      throw new WeftlineError('WL_CLOSED', 'This DispatchCombineContext was finalized, or could not be reallocated');
    }
    return this.#output;
  }
}

interface Output {
  readonly window: SymmetricWindow;
  readonly size: OutputSize;
  readonly bases: AddressTables<OutputRegion>;
  readonly set: TensorSet;
}
