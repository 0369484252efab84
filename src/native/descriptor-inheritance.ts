// Descriptors that a native library opens are inherited by the programs that this process starts, unless they are marked.
import { readdirSync } from 'node:fs';
import { lazyFunction, linuxLibrary } from './library.ts';

const FIOCLEX = 0x5451;
const mark = lazyFunction(linuxLibrary, 'int ioctl(int, unsigned long)');

/** Runs native code; what it has opened when it returns stays with this process. Node marks what it opens itself. */
export function withoutInheritance<T>(run: () => T): T {
  const before = new Set(descriptors());
  try {
    return run();
  } finally {
    for (const descriptor of descriptors()) if (!before.has(descriptor)) mark()(Number(descriptor), FIOCLEX);
  }
}

function descriptors(): string[] {
  return readdirSync('/proc/self/fd');
}
