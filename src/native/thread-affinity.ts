// Keeps a thread on one core.
import { nativeError } from './native-error.ts';
import { systemCall } from './system-call.ts';

const setAffinityFunction = systemCall('int sched_setaffinity(int, size_t, void*)');
const getAffinityFunction = systemCall('int sched_getaffinity(int, size_t, void*)');

/** Of the kernel's bit map of cores: for 8192 of them, more than any kernel has. */
const MASK_BYTES = 1024;

/**
 * Pins the calling thread to a core, numbered as the system does. Returns what lets it go again. Fails with WL_NATIVE if the
 * process may not use the core.
 */
export function pinThread(core: number): () => void {
  const [before, mask] = [new Uint8Array(MASK_BYTES), new Uint8Array(MASK_BYTES)];
  const found: number = getAffinityFunction()(0, before.length, before);
  mask[core >> 3] = 1 << (core & 7);
  const result: number = setAffinityFunction()(0, mask.length, mask);
  if (result !== 0) throw nativeError('sched_setaffinity', `pinning a thread to core ${core}`, result);
  return () => {
    if (found >= 0) setAffinityFunction()(0, before.length, before);
  };
}
