// DispatchCombineContext: the symmetric memory of an all-to-all layer, its resizable output and its count exchange.
import type { DType } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Tensor } from '../../device/tensor.ts';
import { SymmetricWindow } from '../../memory/symmetric-window.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { World } from '../../world/world.ts';
import { addressTable } from '../address-table.ts';
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

  /** Collective. Fails on all ranks with WL_MEMORY or WL_SHARED_MEMORY when the windows do not fit. */
  static async create(
    world: World,
    device: CpuDevice,
    epConfig: EPConfig,
    options: ContextOptions = {},
  ): Promise<DispatchCombineContext> {
    const { capacity = 2 } = options;
    if (!(capacity > 0)) throw invalidArgument('capacity', capacity, 'a number above 0');
    const bytes = exchangeRegionBytes(world.size, epConfig.numExperts);
    const control = await SymmetricWindow.create({
      world,
      device,
      name: 'a2a-control',
      bytes,
      describeCall,
      ...options,
    });
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
   * they suffice; else they are replaced, their contents lost and tensors over them closed.
   */
  async reallocateDispatchOutputBuf(dispatchRecvTokens: number, options: WaitOptions = {}): Promise<OutputBuffers> {
    if (!isWhole(dispatchRecvTokens, 0) || dispatchRecvTokens > this.config.maxRecvRows) {
      throw invalidArgument(
        'dispatchRecvTokens',
        dispatchRecvTokens,
        `0 to ${this.config.maxRecvRows}, the most that can arrive`,
      );
    }
    if (dispatchRecvTokens > this.outputSize.capacityRows) {
      this.#releaseOutput();
      await this.#allocate(grownRows(this.config, dispatchRecvTokens), options);
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

  async #allocate(rows: number, options: WaitOptions): Promise<void> {
    const { world, device } = this;
    const size = outputSize(this.config, rows);
    const window = await SymmetricWindow.create({
      world,
      device,
      name: 'a2a-output',
      bytes: size.bytes,
      describeCall,
      ...options,
    });
    const bases = Object.entries(size.regions).map(([name, { offset }]) => [
      name,
      addressTable(device, window, offset),
    ]);
    this.#output = { window, size, bases: Object.fromEntries(bases) as Record<OutputRegion, Tensor<'i32'>> };
  }

  #releaseOutput(): void {
    if (this.#output === undefined) return;
    this.#output.window[Symbol.dispose]();
    for (const table of Object.values(this.#output.bases)) table.dispose();
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
  readonly bases: Readonly<Record<OutputRegion, Tensor<'i32'>>>;
}
