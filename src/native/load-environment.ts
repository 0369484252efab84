// Environment variables for a library that reads them while it is loaded, beside threads that read the environment too.
import { WeftlineError } from '../core/errors.ts';
import { lazyFunction, linuxLibrary, symbolAddress, viewAt } from './library.ts';

const POINTER_BYTES = 8;
const RTLD_LAZY = 1;
const RTLD_NOLOAD = 4;

const dlopenFunction = lazyFunction(linuxLibrary, 'intptr_t dlopen(str, int)');
const callocFunction = lazyFunction(linuxLibrary, 'intptr_t calloc(size_t, size_t)');

/** True if a thread of this process has loaded the library. */
export function isLoaded(path: string): boolean {
  return (dlopenFunction()(path, RTLD_LAZY | RTLD_NOLOAD) as number) !== 0;
}

/**
 * Runs native code that sees these variables beside those of the process.
 *
 * setenv and unsetenv are not for a process with threads: they move the table of variables and free the old one, and a
 * thread that is looking for a variable at that moment ends the process with SIGSEGV. Libraries, drivers and Node look for
 * variables on threads of their own. So a second table takes the place of the first by one store, and the first comes back
 * in the same way. The second is never freed, because a thread may still be reading it: for what happens once in a process.
 */
export function withVariables<T>(variables: Readonly<Record<string, string>>, run: () => T): T {
  const place = new BigUint64Array(viewAt(symbolAddress('environ'), POINTER_BYTES));
  let before: bigint;
  let own: bigint;
  do {
    before = Atomics.load(place, 0);
    own = tableWith(before, Object.entries(variables));
  } while (Atomics.compareExchange(place, 0, before, own) !== before);
  const known = pointersOf(Number(before));
  const added = pointersOf(Number(own)).slice(known.length);
  try {
    return run();
  } finally {
    const present = pointersOf(Number(own));
    const isUnchanged = known.every((pointer, index) => present[index] === pointer);
    const isRestored = isUnchanged && Atomics.compareExchange(place, 0, own, before) === own;
    // Another thread has set or removed a variable meanwhile: the table that has this stays, without what was added.
    if (!isRestored) remove(Number(Atomics.load(place, 0)), added);
  }
}

/** Takes entries out of a table, in place. */
function remove(table: number, entries: readonly bigint[]): void {
  const all = pointersOf(table);
  const left = all.filter((pointer) => !entries.includes(pointer));
  const place = new BigUint64Array(viewAt(table, (all.length + 1) * POINTER_BYTES));
  place.set(left);
  place.fill(0n, left.length);
}

/** The address of a table, pointers to "NAME=value" and then 0, that holds what another does and these. */
function tableWith(other: bigint, added: readonly (readonly [name: string, value: string])[]): bigint {
  const known = pointersOf(Number(other));
  const texts = added.map(([name, value]) => Buffer.from(`${name}=${value}\0`));
  const tableBytes = (known.length + texts.length + 1) * POINTER_BYTES;
  const bytes = texts.reduce((sum, text) => sum + text.length, tableBytes);
  const address = callocFunction()(1, bytes) as number;
  if (address === 0) throw new WeftlineError('WL_MEMORY', `No memory for ${bytes} bytes of environment variables`);
  const memory = viewAt(address, bytes);
  const pointers = new BigUint64Array(memory, 0, tableBytes / POINTER_BYTES);
  pointers.set(known);
  let end = tableBytes;
  for (const [index, text] of texts.entries()) {
    new Uint8Array(memory, end).set(text);
    pointers[known.length + index] = BigInt(address + end);
    end += text.length;
  }
  return BigInt(address);
}

function pointersOf(table: number): bigint[] {
  const pointers: bigint[] = [];
  for (let at = table; at !== 0; at += POINTER_BYTES) {
    const pointer = new BigUint64Array(viewAt(at, POINTER_BYTES))[0]!;
    if (pointer === 0n) break;
    pointers.push(pointer);
  }
  return pointers;
}
