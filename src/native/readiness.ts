// Sleeping until a descriptor is readable or another thread rings: epoll, ppoll with nanoseconds, eventfd.
import { addressOf, nativeError } from './library.ts';
import { systemCall } from './system-call.ts';
import { closeDescriptor } from './udp.ts';

const epollCreateFunction = systemCall('int epoll_create1(int)');
const epollCtlFunction = systemCall('int epoll_ctl(int, int, int, void*)');
const epollWaitFunction = systemCall('int epoll_wait(int, intptr_t, int, int)');
const ppollFunction = systemCall('int ppoll(intptr_t, uint64_t, intptr_t, intptr_t)');
/** The same with arguments that may move before the call. */
const ppollOnceFunction = systemCall('int ppoll(void*, uint64_t, void*, void*)');
const eventfdFunction = systemCall('int eventfd(uint32_t, int)');
const readFunction = systemCall('int64_t read(int, intptr_t, size_t)');
const writeFunction = systemCall('int64_t write(int, intptr_t, size_t)');

const fcntlFunction = systemCall('int fcntl(int, int, int)');

const F_DUPFD_CLOEXEC = 1030;
const F_GETFL = 3;
const F_SETFL = 4;
const CLOEXEC = 0o2000000;
const NONBLOCK = 0o4000;
const EPOLL_CTL_ADD = 1;
const EPOLL_CTL_DEL = 2;
const EPOLL_CTL_MOD = 3;
const READABLE = 1;
const ONE_SHOT = 1 << 30;
const WRITABLE = 4;
const EINTR = 4;
const MAX_EVENTS = 64;
const MAX_PAUSE_MICROSECONDS = 1000;

/** struct epoll_event, in words of 32 bits: events, then the caller's number. It is packed on x86-64 alone. */
const epollEventWord: { readonly events: number; readonly number: number } = {
  events: 0,
  number: process.arch === 'x64' ? 1 : 2,
};
const EPOLL_EVENT_WORDS: number = process.arch === 'x64' ? 3 : 4;

/** Descriptors to wait for, each with a number by which the caller knows it. */
export class ReadinessSet implements Disposable {
  /** Readable itself when one of its descriptors is. */
  readonly fd: number;
  readonly #isOwn: boolean;
  // Shared memory does not move, so that the kernel may be given addresses once.
  readonly #events: Int32Array = new Int32Array(new SharedArrayBuffer(MAX_EVENTS * EPOLL_EVENT_WORDS * 4));
  readonly #poll: Int32Array = new Int32Array(new SharedArrayBuffer(8));
  readonly #timespec: Int32Array = new Int32Array(new SharedArrayBuffer(16));
  readonly #eventsAddress: number = Number(addressOf(this.#events));
  readonly #pollAddress: number = Number(addressOf(this.#poll));
  readonly #timespecAddress: number = Number(addressOf(this.#timespec));

  /** `fd`: of a set that another thread of the process has made. */
  constructor(fd?: number) {
    this.#isOwn = fd === undefined;
    this.fd = fd ?? epollCreateFunction()(CLOEXEC);
    if (this.fd < 0) throw nativeError('epoll_create1', 'making a set of sockets to wait for', this.fd);
    this.#poll[0] = this.fd;
    this.#poll[1] = READABLE;
  }

  add(fd: number, number: number): void {
    this.#control(EPOLL_CTL_ADD, fd, number, READABLE);
  }

  /** The same until one `poll()` has found it readable; then `addAgain`. */
  addOnce(fd: number, number: number): void {
    this.#control(EPOLL_CTL_ADD, fd, number, READABLE | ONE_SHOT);
  }

  addAgain(fd: number, number: number): void {
    this.#control(EPOLL_CTL_MOD, fd, number, READABLE | ONE_SHOT);
  }

  remove(fd: number): void {
    epollCtlFunction()(this.fd, EPOLL_CTL_DEL, fd, new Int32Array(EPOLL_EVENT_WORDS));
  }

  // oxlint-disable-next-line max-params -- those of the system call
  #control(operation: number, fd: number, number: number, events: number): void {
    const event = new Int32Array(EPOLL_EVENT_WORDS);
    event[epollEventWord.events] = events;
    event[epollEventWord.number] = number;
    const result: number = epollCtlFunction()(this.fd, operation, fd, event);
    if (result !== 0) throw nativeError('epoll_ctl', 'adding a socket to those to wait for', result);
  }

  /** Hot path. How many descriptors are readable now; their numbers are at `numberAt(0..)`. Does not wait. */
  poll(): number {
    const count: number = epollWaitFunction()(this.fd, this.#eventsAddress, MAX_EVENTS, 0);
    return count < 0 ? 0 : count;
  }

  /** The number of the i-th readable descriptor of the last `poll()`. */
  numberAt(index: number): number {
    return this.#events[index * EPOLL_EVENT_WORDS + epollEventWord.number]!;
  }

  /**
   * Blocks this thread until a descriptor is readable or the time is over. May return early, after a signal for example:
   * the caller looks and sleeps again. So it also does when the kernel cannot let it wait, for want of memory: a thread
   * that serves connections must not end for that.
   */
  sleep(microseconds: number): void {
    const seconds = Math.floor(microseconds / 1e6);
    this.#timespec[0] = seconds;
    this.#timespec[2] = Math.ceil((microseconds - seconds * 1e6) * 1000);
    const result: number = ppollFunction()(this.#pollAddress, 1, this.#timespecAddress, 0);
    if (result < 0 && result !== -EINTR) pause(microseconds);
  }

  [Symbol.dispose](): void {
    if (this.#isOwn) closeDescriptor(this.fd);
  }
}

/** Blocks this thread until the socket takes data again or the time, less than a second, is over. */
export function waitWritable(fd: number, microseconds: number): void {
  const request = Int32Array.of(fd, WRITABLE);
  const result: number = ppollOnceFunction()(request, 1, Int32Array.of(0, 0, microseconds * 1000, 0), null);
  if (result < 0 && result !== -EINTR) pause(microseconds);
}

const neverRung = new Int32Array(new SharedArrayBuffer(4));

/** Pauses in place of a wait that the kernel refused, so that callers who look again do not keep a core busy. */
function pause(microseconds: number): void {
  Atomics.wait(neverRung, 0, 0, Math.min(microseconds, MAX_PAUSE_MICROSECONDS) / 1000);
}

/** What one thread rings to wake another that sleeps on a ReadinessSet with `fd` in it. */
export class Doorbell implements Disposable {
  readonly fd: number;
  readonly #word: Int32Array = new Int32Array(new SharedArrayBuffer(8));
  readonly #wordAddress: number = Number(addressOf(this.#word));

  private constructor(fd: number) {
    this.fd = fd;
    this.#word[0] = 1;
  }

  static create(): Doorbell {
    const fd: number = eventfdFunction()(0, CLOEXEC | NONBLOCK);
    if (fd < 0) throw nativeError('eventfd', 'making a doorbell between threads', fd);
    return new Doorbell(fd);
  }

  /** The doorbell of another thread of this process. */
  static of(fd: number): Doorbell {
    return new Doorbell(fd);
  }

  /** The same doorbell under another descriptor, which stays open when this one is closed. */
  duplicate(): Doorbell {
    const fd: number = fcntlFunction()(this.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) throw nativeError('fcntl', 'making a doorbell known to another thread', fd);
    return new Doorbell(fd);
  }

  ring(): void {
    writeFunction()(this.fd, this.#wordAddress, 8);
  }

  /** So that the descriptor is not readable any more. */
  silence(): void {
    readFunction()(this.fd, this.#wordAddress, 8);
    this.#word[0] = 1;
    this.#word[1] = 0;
  }

  [Symbol.dispose](): void {
    closeDescriptor(this.fd);
  }
}

/** Reads of a descriptor that other native code has opened return at once from now on. */
export function doNotBlock(fd: number): void {
  const flags: number = fcntlFunction()(fd, F_GETFL, 0);
  const result: number = flags < 0 ? flags : fcntlFunction()(fd, F_SETFL, flags | NONBLOCK);
  if (result < 0) throw nativeError('fcntl', `making descriptor ${fd} nonblocking`, result);
}
