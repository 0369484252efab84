// Keeps a thread on one core.
import { nativeError } from './native-error.ts';
import { systemCall } from './system-call.ts';

const setAffinityFunction = systemCall('int sched_setaffinity(int, size_t, void*)');

/** Pins the calling thread to a core, numbered as the system does. Fails with WL_NATIVE if the process may not use it. */
export function pinThread(core: number): void {
  // The kernel's bit map of cores, in words of 64 bits.
  const mask = new Uint8Array(Math.ceil((core + 1) / 64) * 8);
  mask[core >> 3] = 1 << (core & 7);
  const result: number = setAffinityFunction()(0, mask.length, mask);
  if (result !== 0) throw nativeError('sched_setaffinity', `pinning a thread to core ${core}`, result);
}
