// The Linux calls that Node does not offer: memory mapping, futex, advisory locks, process control.
import { closeSync } from 'node:fs';
import { openGuarded } from '../core/guarded-file.ts';
import { addressOf, nativeError as failed, lazyFunction, linuxLibrary as libc, nativeError } from './library.ts';
import { pooledSystemCall, systemCall } from './system-call.ts';

// How the kernel schedules a thread.

const setSchedulerFunction = systemCall('int sched_setscheduler(int, int, void*)');

const SCHED_OTHER = 0;
const SCHED_BATCH = 3;

/**
 * The calling thread no longer interrupts others when it is woken; its share of the processors stays the same. Returns what
 * makes it an ordinary thread again. A kernel or sandbox that refuses leaves things as they are.
 */
export function useBatchScheduling(): () => void {
  setSchedulerFunction()(0, SCHED_BATCH, new Int32Array(1));
  return () => void setSchedulerFunction()(0, SCHED_OTHER, new Int32Array(1));
}

// Keeps a thread on one core.

const setAffinityFunction = systemCall('int sched_setaffinity(int, size_t, void*)');
const getAffinityFunction = systemCall('int sched_getaffinity(int, size_t, void*)');

/** Bytes of the kernel's bit map of cores: for 8192 of them, more than any kernel has. */
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

const mmapFunction = systemCall('intptr_t mmap(intptr_t, size_t, int, int, int, int64_t)');
const fallocateFunction = systemCall('int fallocate(int, int, int64_t, int64_t)');
const fcntlFunction = systemCall('int fcntl(int, int, void*)');
const prctlFunction = systemCall('int prctl(int, uint64_t, uint64_t, uint64_t, uint64_t)');
const yieldFunction = lazyFunction(libc, 'int sched_yield()');
const getrusageFunction = lazyFunction(libc, 'int getrusage(int, void*)');
/** The function's result is its first argument; not to take it saves half of the call. */
const memcpyFunction = lazyFunction(libc, 'void memcpy(intptr_t, intptr_t, size_t)');
const madviseFunction = lazyFunction(libc, 'int madvise(intptr_t, size_t, int)');
/** Declared without "...", so that each argument keeps one type and the call stays cheap. */
const FUTEX_PROTOTYPE = 'int64_t syscall(int64_t, intptr_t, int64_t, int64_t, void*, void*, int64_t)';
const futexFunction = systemCall(FUTEX_PROTOTYPE);
const pooledFutex = pooledSystemCall(FUTEX_PROTOTYPE);

const PROT_READ_WRITE = 3;
const MAP_SHARED = 1;
const MAP_PRIVATE = 2;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;
const MADV_HUGEPAGE = 14;
const MADV_POPULATE_WRITE = 23;
const F_OFD_GETLK = 36;
const F_OFD_SETLK = 37;
const F_WRLCK = 1;
const F_UNLCK = 2;
const PR_SET_PDEATHSIG = 1;
const RUSAGE_THREAD = 1;
const FUTEX_WAIT = 0;
const FUTEX_WAKE = 1;
const EBADF = 9;
const EAGAIN = 11;
const EACCES = 13;
const ETIMEDOUT = 110;
const EINTR = 4;

/** struct flock. */
const fileLockOffset = { type: 0, start: 8, length: 16 } as const;
const FILE_LOCK_BYTES = 32;

/** struct rusage: two times of 16 bytes and 14 numbers of 8, the last of which counts involuntary context switches. */
const RUSAGE_WORDS = 36;
const RUSAGE_INVOLUNTARY_WORD = 34;

interface FileMapping {
  /** Page aligned, inside memory that is already mapped. */
  readonly address: bigint;
  readonly bytes: number;
  readonly fd: number;
  readonly populate: boolean;
}

/** Maps a shared file over already committed memory, which keeps its address. */
export function mapFileOver({ address, bytes, fd, populate }: FileMapping): void {
  const at: number = mmapFunction()(address, bytes, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (BigInt(at) !== address) throw failed('mmap', `mapping ${bytes} bytes of shared memory`, at);
  madviseFunction()(address, bytes, MADV_HUGEPAGE);
  // Kernels before 5.14 do not know this advice; pages are then set up as they are touched.
  if (populate) madviseFunction()(address, bytes, MADV_POPULATE_WRITE);
}

/** Replaces whatever is mapped there by fresh zero pages. */
export function mapZeroOver(address: bigint, bytes: number): void {
  const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  const at: number = mmapFunction()(address, bytes, PROT_READ_WRITE, flags, -1, 0);
  if (BigInt(at) !== address) throw failed('mmap', `mapping ${bytes} zero bytes`, at);
}

/**
 * Asks for huge pages, which make large copies up to 1.6 times as fast. A hint: the system may ignore it (its
 * transparent_hugepage settings decide), and nothing depends on it. Never throws. `pages` begins and ends at pages.
 */
export function preferHugePages(pages: Uint8Array): void {
  try {
    madviseFunction()(addressOf(pages), pages.length, MADV_HUGEPAGE);
  } catch {
    // No koffi or no C library; a single rank works without them.
  }
}

/** Hot path. Copies between native addresses; the ranges must not overlap and must be this process's own. */
export function copyMemory(to: number, from: number, bytes: number): void {
  memcpyFunction()(to, from, bytes);
}

/** Reserves the pages of a file, so that a later store to it cannot fail for want of memory. */
export function reserveFile(fd: number, bytes: number): void {
  const result: number = fallocateFunction()(fd, 0, 0, bytes);
  if (result !== 0) throw failed('fallocate', `reserving ${bytes} bytes`, result);
}

function lockRecord(type: number, start: number, length = 1): Uint8Array {
  const record = new Uint8Array(FILE_LOCK_BYTES);
  const view = new DataView(record.buffer);
  view.setInt16(fileLockOffset.type, type, true);
  view.setBigInt64(fileLockOffset.start, BigInt(start), true);
  view.setBigInt64(fileLockOffset.length, BigInt(length), true);
  return record;
}

/** Takes an exclusive lock on one byte; the kernel drops it when the last descriptor closes, kill -9 included. */
export function lockByte(fd: number, offset: number): boolean {
  const result: number = fcntlFunction()(fd, F_OFD_SETLK, lockRecord(F_WRLCK, offset));
  if (result === 0) return true;
  if (result === -EAGAIN || result === -EACCES) return false;
  throw failed('fcntl(F_OFD_SETLK)', `locking byte ${offset}`, result);
}

/** A lock record that is reused, because peers are checked between copies. */
const probe: Uint8Array = new Uint8Array(FILE_LOCK_BYTES);
const probeWords: Uint32Array = new Uint32Array(probe.buffer);

/**
 * True while another open file description holds the lock of that byte, and while the kernel cannot say: a passing
 * shortage must not make a living process look dead. This process's own locks do not count.
 */
export function isByteLocked(fd: number, offset: number): boolean {
  probeWords.fill(0);
  probeWords[fileLockOffset.type / 4] = F_WRLCK;
  probeWords[fileLockOffset.start / 4] = offset;
  probeWords[fileLockOffset.length / 4] = 1;
  const result: number = fcntlFunction()(fd, F_OFD_GETLK, probe);
  if (result === -EBADF) throw failed('fcntl(F_OFD_GETLK)', `testing byte ${offset}`, result);
  return result !== 0 || (probeWords[fileLockOffset.type / 4]! & 0xffff) !== F_UNLCK;
}

/** True while another open description holds a lock of any byte. Our own locks do not count. */
function isAnyByteLocked(fd: number): boolean {
  // A length of 0 means: to the end, wherever that is.
  const record = lockRecord(F_WRLCK, 0, 0);
  const result: number = fcntlFunction()(fd, F_OFD_GETLK, record);
  if (result !== 0) throw failed('fcntl(F_OFD_GETLK)', 'testing all bytes', result);
  return new DataView(record.buffer).getInt16(fileLockOffset.type, true) !== F_UNLCK;
}

/** Asks the kernel to send this process a signal when its parent ends. */
export function signalOnParentDeath(signal: number): void {
  const result: number = prctlFunction()(PR_SET_PDEATHSIG, signal, 0, 0, 0);
  if (result !== 0) throw failed('prctl', 'PR_SET_PDEATHSIG', result);
}

/** Lets other threads that are ready to run on this processor go first; returns at once if there are none. */
export function yieldProcessor(): void {
  yieldFunction()();
}

const usage: Int32Array = new Int32Array(RUSAGE_WORDS);

/**
 * How often other threads of this system were let onto the processor of this thread while it could go on, those that it
 * let go first included; modulo 2^32. Does not count what a hypervisor does.
 */
export function involuntarySwitches(): number {
  const result: number = getrusageFunction()(RUSAGE_THREAD, usage);
  if (result !== 0) throw failed('getrusage', 'counting context switches', result);
  return usage[RUSAGE_INVOLUNTARY_WORD]!;
}

/** The number of the futex call differs between architectures. */
const futexNumber = process.arch === 'arm64' ? 98 : 202;

/** Sleeps and wakes on one 32-bit word of memory shared between processes. */
export class Futex {
  readonly #word: Int32Array;
  readonly #timespec: BigInt64Array = new BigInt64Array(2);
  /** One of its own: a pool thread may still read it while a blocking wait starts. */
  readonly #poolTimespec: BigInt64Array = new BigInt64Array(2);
  #address = 0n;
  #timespecAddress = 0n;
  #poolTimespecAddress = 0n;

  /** `word` must not move. Nothing native is loaded before the first call. */
  constructor(word: Int32Array) {
    this.#word = word;
  }

  /**
   * Blocks this thread until woken, `nanoseconds` (< 1 s) passed or the word no longer holds `seen`. False if the kernel
   * could not let it sleep, for want of memory for example: the caller looks at its words again, a little later.
   */
  waitBlocking(seen: number, nanoseconds: number): boolean {
    const address = this.#resolve();
    this.#timespec[1] = BigInt(nanoseconds);
    return isOver(futexFunction()(futexNumber, address, FUTEX_WAIT, seen, this.#timespecAddress, 0n, 0) as number);
  }

  /** The same on a thread of the pool, so that the event loop goes on. */
  async wait(seen: number, nanoseconds: number): Promise<boolean> {
    const address = this.#resolve();
    this.#poolTimespec[1] = BigInt(nanoseconds);
    return isOver(await pooledFutex(futexNumber, address, FUTEX_WAIT, seen, this.#poolTimespecAddress, 0n, 0));
  }

  /** Wakes every process that sleeps on the word. */
  wakeAll(): void {
    futexFunction()(futexNumber, this.#resolve(), FUTEX_WAKE, 0x7fff_ffff, null, null, 0);
  }

  #resolve(): bigint {
    if (this.#address === 0n) {
      this.#address = addressOf(this.#word);
      this.#timespecAddress = addressOf(this.#timespec);
      this.#poolTimespecAddress = addressOf(this.#poolTimespec);
    }
    return this.#address;
  }
}

function isOver(result: number): boolean {
  return result === 0 || result === -EAGAIN || result === -ETIMEDOUT || result === -EINTR;
}

// Whether the owner of a file lives: it holds a lock on the open file, which the kernel drops when the last descriptor and
// mapping of it are gone. Numbers of processes say nothing to processes that share files but not a process-id namespace.

/**
 * Makes this process the holder of a file that it has just opened for writing: until the descriptor is closed and what was
 * mapped by it unmapped, or the process ends. False if another one holds it. Fails with WL_NATIVE where nothing can be locked.
 */
export function holdFile(fd: number): boolean {
  return lockByte(fd, 0);
}

/**
 * True while somebody holds a lock on the file, this process included. One that cannot be opened, because it is another
 * user's, or is a link or a pipe, counts as held: none of weftline's files is one. So does one whose locks cannot be told.
 */
export function isHeldFile(path: string): boolean {
  let fd: number | undefined;
  try {
    fd = openGuarded(path, { owner: 'anyone' });
    return isAnyByteLocked(fd);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ENOENT';
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}
