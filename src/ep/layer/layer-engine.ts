// What EPAll2AllLayer asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.
import type { CallWait } from '../../core/deadline.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { DeviceEvent } from '../../device/device-event.ts';
import type { CallOptions } from '../buffer/engine.ts';
import type { CheckedLayerCombine, LayerInput } from './layer-arguments.ts';
import type { EPAllToAllLayoutDesc } from './layout-desc.ts';

export interface LayerDispatchResult {
  /**
   * bf16 [recv, H] in this rank's window, by local expert, then source rank, then token; valid until combine or the next
   * dispatch. On a GPU it is written in the order of the device's stream.
   */
  readonly output: Tensor<'bf16'>;
  /** [recv], of weightDtype, in the window like `output`; absent when no weights were passed. */
  readonly weights: Tensor<'f32' | 'bf16'> | undefined;
  readonly layoutDesc: EPAllToAllLayoutDesc;
  /** When the rows are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}

export interface LayerCombineResult {
  /** bf16 [T, H] */
  readonly combined: Tensor<'bf16'>;
  /** When the sums are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}

export interface LayerEngine {
  /** Fails when an earlier call left the ranks in disagreement, or a peer is gone. */
  throwIfUnusable(): void;
  dispatch(input: LayerInput, options: CallOptions): Promise<LayerDispatchResult>;
  combine(input: CheckedLayerCombine, options: CallOptions): Promise<LayerCombineResult>;
  barrier(options: CallWait & { readonly intraNodeOnly?: boolean }): Promise<void>;
  /** Releases what the engine has besides the context's memory. */
  close(): Promise<void>;
}

/** What a layer's engine is made for, besides its context. */
export interface LayerEngineOptions {
  readonly enableLocalCombine: boolean;
  readonly numSm: number;
  readonly useAot: boolean;
}
