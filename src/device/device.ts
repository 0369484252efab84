// What the rest of weftline asks of a device; the implementations are cpu/ and cuda/.
import type { DType, TypedArrayOf } from '../core/dtype.ts';
import type { HostAccess } from './host-access.ts';
import type { Tensor } from './tensor.ts';

/** Where tensors live and kernels run: a CpuDevice or a CudaDevice. */
export interface Device extends HostAccess, AsyncDisposable {
  /**
   * Uninitialised memory for a tensor. Fails with WL_MEMORY, telling what is used and by how much it is short. A tensor that
   * is not disposed keeps its memory until it is collected, which cannot happen within this call: dispose what you make in
   * a loop, or make it by tensor().
   */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;

  /**
   * A tensor with the given values; bf16 and fp8e4m3 as bit patterns. Before it fails with WL_MEMORY, and now and then when
   * much memory is in use, it has the memory of tensors that nobody holds given back, which takes a garbage collection.
   */
  tensor<D extends DType>(dtype: D, shape: readonly number[], values: TypedArrayOf[D]): Promise<Tensor<D>>;

  /** Waits for running work, then gives back what was made from the device. Idempotent; `await using` does the same. */
  close(): Promise<void>;
}
