// Copies of tables in device memory, enqueued on a stream.
import type { layerWidenArguments } from '../../../abi/layer-arguments.ts';
import type { DType } from '../../../core/dtype.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { LaunchPlan } from '../../../device/cuda/launch-plan.ts';
import type { Tensor } from '../../../device/tensor.ts';

export interface CopiedBytes {
  readonly to: number;
  readonly from: number;
  readonly bytes: number;
}

export function copyBytes(device: CudaDevice, { to, from, bytes }: CopiedBytes, stream: CudaStream): void {
  if (bytes === 0) return;
  const { context } = device;
  context.workCount += 1;
  context.call('cuMemcpyDtoDAsync', to, from, bytes, stream.handle);
}

export function copyTable<D extends DType>(device: CudaDevice, table: Tensor<D>, stream: CudaStream): Tensor<D> {
  const copy = device.empty(table.dtype, table.shape);
  copyBytes(device, { to: copy.address, from: table.address, bytes: copy.bytes }, stream);
  return copy;
}

/** The same numbers as i64. */
export function widenTable(
  device: CudaDevice,
  table: Tensor<'i32'>,
  launch: { readonly widen: LaunchPlan<keyof typeof layerWidenArguments.offset>; readonly stream: CudaStream },
): Tensor<'i64'> {
  const wide = device.empty('i64', table.shape);
  if (table.elements === 0) return wide;
  const { widen, stream } = launch;
  widen.arguments.set('from', table.address);
  widen.arguments.set('to', wide.address);
  widen.arguments.set('count', table.elements);
  widen.launch(stream);
  return wide;
}
