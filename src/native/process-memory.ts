// Copies between this process's memory and another's, where the kernel permits it. Hot path: argument blocks are made once.
import { readFileSync } from 'node:fs';
import { putWide } from '../abi/layout.ts';
import { NativeBlock, nativeError } from './library.ts';
import { IOVEC_WORDS, iovecWord } from './udp.ts';
import { systemCall } from './system-call.ts';

// Whether addresses that a caller passes are memory of this process: any other would end it when it is touched.

/** A line of the kernel's table of mappings: "7f12a000-7f12b000 rw-p …". */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) (..)/gm;

/** Whether all the bytes are mapped here and may be read and written. True where the system has no such table. */
export function isOwnMemory(address: number, bytes: number): boolean {
  let table: string;
  try {
    table = readFileSync('/proc/self/maps', 'latin1');
  } catch {
    return true;
  }
  let next = address;
  const end = address + bytes;
  for (const [, from, to, access] of table.matchAll(MAPPING)) {
    const [start, stop] = [Number.parseInt(from!, 16), Number.parseInt(to!, 16)];
    if (stop <= next) continue;
    if (start > next || access !== 'rw') return false;
    next = stop;
    if (next >= end) return true;
  }
  return false;
}

const readFunction = systemCall('int64_t process_vm_readv(int, intptr_t, ulong, intptr_t, ulong, ulong)');
const writeFunction = systemCall('int64_t process_vm_writev(int, intptr_t, ulong, intptr_t, ulong, ulong)');
const prctlFunction = systemCall('int prctl(int, uint64_t, uint64_t, uint64_t, uint64_t)');

const PR_SET_PTRACER = 0x59616d61;
const PR_SET_PTRACER_ANY = 2 ** 64 - 1;
const EPERM = 1;
const ESRCH = 3;
const ENOSYS = 38;

/** The kernel takes no more ranges in one call. */
export const MAX_RANGES = 1024;

/** Ranges here and there that belong together in order; the kernel reads them in place. */
export class IovecList {
  readonly #local: NativeBlock;
  readonly #remote: NativeBlock;

  constructor(capacity: number) {
    this.#local = new NativeBlock(capacity * IOVEC_WORDS * 4);
    this.#remote = new NativeBlock(capacity * IOVEC_WORDS * 4);
  }

  set(index: number, range: { readonly local: number; readonly remote: number; readonly bytes: number }): void {
    putRange(this.#local.words, index, range.local, range.bytes);
    putRange(this.#remote.words, index, range.remote, range.bytes);
  }

  /** Hot path. Copies `count` ranges from `first` on, out of the other process or into it. Returns the bytes, or -errno. */
  copy(pid: number, isRead: boolean, first: number, count: number): number {
    const at = first * IOVEC_WORDS * 4;
    const copy = isRead ? readFunction() : writeFunction();
    return copy(pid, this.#local.address + at, count, this.#remote.address + at, count, 0) as number;
  }
}

/** Lets every process of this user read its memory where a security module (yama) restricts who may do so. */
export function admitPeersToMemory(): void {
  // Kernels without the module do not know the call; then nothing has to be admitted.
  prctlFunction()(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

/** What a failed copy means for a person. */
export function whyCopyFailed(errno: number): 'gone' | 'forbidden' | 'missing' | 'fault' {
  if (errno === ESRCH) return 'gone';
  if (errno === EPERM) return 'forbidden';
  return errno === ENOSYS ? 'missing' : 'fault';
}

/** The error of a copy that returned -errno. */
export function copyError(isRead: boolean, errno: number): Error {
  return nativeError(isRead ? 'process_vm_readv' : 'process_vm_writev', 'copying between processes', -errno);
}

function putRange(words: Uint32Array, index: number, address: number, bytes: number): void {
  const at = index * IOVEC_WORDS;
  putWide(words, at + iovecWord.address, address);
  putWide(words, at + iovecWord.bytes, bytes);
}
