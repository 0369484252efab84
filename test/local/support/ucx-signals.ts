// Loads UCX on a thread of its own and says whose function then handles SIGSEGV: the name of the mapped file.
import { readFileSync } from 'node:fs';
import { isMainThread, Worker } from 'node:worker_threads';
import { lazyFunction, linuxLibrary } from '#lib/native/library.js';
import { openUcx } from '#lib/native/ucx.js';

const SIGSEGV = 11;

function handlerOfSegv(): string {
  const action = new BigUint64Array(19);
  lazyFunction(linuxLibrary, 'int sigaction(int, intptr_t, void*)')()(SIGSEGV, 0, action);
  const address = action[0] as bigint;
  for (const line of readFileSync('/proc/self/maps', 'utf8').split('\n')) {
    const [, start = '0', end = '0'] = /^([0-9a-f]+)-([0-9a-f]+)/.exec(line) ?? [];
    if (address >= BigInt(`0x${start}`) && address < BigInt(`0x${end}`)) return line.split('/').at(-1) ?? '';
  }
  return '';
}

if (isMainThread) {
  const worker = new Worker(new URL(import.meta.url));
  worker.on('exit', () => process.stdout.write(handlerOfSegv()));
} else {
  openUcx();
}
