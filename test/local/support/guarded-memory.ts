// Memory that is taken away for good: whoever touches it afterwards ends the process with SIGSEGV.
import { lazyFunction, linuxLibrary, viewAt } from '#lib/native/library.js';

const mmap = lazyFunction(linuxLibrary, 'intptr_t mmap(intptr_t, size_t, int, int, int, int64_t)');
const mprotect = lazyFunction(linuxLibrary, 'int mprotect(intptr_t, size_t, int)');

const PROT_NONE = 0;
const PROT_READ_WRITE = 3;
const MAP_PRIVATE_ANONYMOUS = 0x22;

export interface GuardedMemory {
  readonly address: number;
  readonly bytes: Uint8Array;
  /** Its addresses are not used again, so that nothing else lies there. */
  takeAway(): void;
}

export function guardedMemory(bytes: number): GuardedMemory {
  const address = mmap()(0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0) as number;
  if (address < 0) throw new Error(`no memory of ${bytes} bytes`);
  const takeAway = (): void => {
    if (mprotect()(address, bytes, PROT_NONE) !== 0) throw new Error('mprotect failed');
  };
  return { address, bytes: new Uint8Array(viewAt(address, bytes)), takeAway };
}
