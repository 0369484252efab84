// Keeps a thread on one core.
import { lazyFunction, linuxLibrary } from './library.ts';
import { nativeError } from './native-error.ts';

const setAffinityFunction = lazyFunction(linuxLibrary, 'int sched_setaffinity(int, size_t, void*)');

/** Pins the calling thread to a core, numbered as the system does. Fails with WL_NATIVE if the process may not use it. */
export function pinThread(core: number): void {
  // The kernel's bit map of cores, in words of 64 bits.
  const mask = new Uint8Array(Math.ceil((core + 1) / 64) * 8);
  mask[core >> 3] = 1 << (core & 7);
  if (setAffinityFunction()(0, mask.length, mask) !== 0) {
    throw nativeError('sched_setaffinity', `pinning a thread to core ${core}`);
  }
}
