// Commands that need a GPU say at once that this machine has none, and what to do.
import { WeftlineError } from '../../core/errors.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';

/** Fails with WL_UNSUPPORTED and what to do, instead of with the name of a library that is missing. */
export function requireGpu(ordinal = 0): void {
  const count = cudaDeviceCount();
  if (ordinal < count) return;
  const why =
    count === 0
      ? 'this machine has no GPU or no driver for it ("weftline doctor" tells); use --device cpu or WEFTLINE_DEVICE=cpu'
      : `this machine has ${count === 1 ? 'GPU 0 only' : `GPUs 0 to ${count - 1}`}, not GPU ${ordinal}`;
  throw new WeftlineError('WL_UNSUPPORTED', `Cannot run on a GPU: ${why}`, { details: { ordinal, count } });
}
