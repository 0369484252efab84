// The part of this process's trace that kernels of one GPU write, and what the host tells of them: names of files, comparisons of clocks.
import { closeSync, fstatSync, ftruncateSync, openSync, readSync, unlinkSync } from 'node:fs';
import { Block } from '../abi/layout.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { holdFile, isHeldFile } from '../native/libc.ts';
import { viewAt } from '../native/library.ts';
import { mapSharedFile, reserveInFile } from '../native/memory-file.ts';
import {
  CLOCK_FIELDS,
  CLOCK_SAMPLES,
  clockField,
  KERNEL_LABEL_BYTES,
  KERNEL_RING_BYTES,
  KERNEL_RING_HEAD_BYTES,
  KERNEL_RINGS,
  kernelRing,
  kernelRingOffset,
  reserve,
  type TraceFile,
  traceHead,
} from './trace-rings.ts';

export interface ClockSample {
  /** The GPU's clock in ns: 2^32 * high + low. */
  readonly high: number;
  readonly low: number;
  /** The host's at the same moment, in µs since 1970. */
  readonly hostUs: number;
  /** How far they may be apart, in µs. */
  readonly errorUs: number;
}

export class KernelRing {
  /** Address of the memory for records that kernels may write to, until the process ends; undefined where there is none. */
  readonly memory: number | undefined;
  /** Bytes of the records. */
  readonly bytes: number = KERNEL_RING_BYTES - KERNEL_RING_HEAD_BYTES;
  readonly #ring: number;
  /** Address of the records in the end. */
  readonly #address: number;
  readonly #head: Block<keyof typeof kernelRing.offset>;
  readonly #labels: Uint8Array;
  readonly #samples: Float64Array;
  readonly #numbers = new Map<string, number>();

  /** Takes a ring of the file for a GPU; undefined if none is left, or no room on its file system. */
  static claim({ path, address }: TraceFile, device: number): KernelRing | undefined {
    const head = new Int32Array(viewAt(address, traceHead.size));
    const ring = Atomics.add(head, traceHead.offset.kernelRings / 4, 1);
    if (ring >= KERNEL_RINGS || !reserve(path, kernelRingOffset(ring), KERNEL_RING_BYTES)) return undefined;
    return new KernelRing(address + kernelRingOffset(ring), ring, device);
  }

  private constructor(address: number, ring: number, device: number) {
    const memory = viewAt(address, KERNEL_RING_HEAD_BYTES);
    this.#ring = ring;
    this.#address = address + KERNEL_RING_HEAD_BYTES;
    this.#head = new Block(kernelRing, memory, 0);
    this.#labels = new Uint8Array(memory, kernelRing.offset.labels, KERNEL_LABEL_BYTES);
    this.#samples = new Float64Array(memory, kernelRing.size, CLOCK_SAMPLES * CLOCK_FIELDS);
    this.#head.set('device', device);
    this.memory = mapKernelMemory(ring, this.bytes);
    if (this.memory !== undefined) this.#head.set('isElsewhere', 1);
  }

  /** Takes the records over into the file: those of `memory`, or of another place to which kernels wrote instead. */
  keep(records?: Uint8Array): void {
    const from = records ?? (this.memory === undefined ? undefined : new Uint8Array(viewAt(this.memory, this.bytes)));
    if (from !== undefined) new Uint8Array(viewAt(this.#address, this.bytes)).set(from);
    this.#head.set('isElsewhere', 0);
    if (this.memory !== undefined) removeOwnKernelMemory(this.#ring);
  }

  /** The number of a kernel file in its records; 0 is one for which there was no room. */
  labelOf(file: string): number {
    const known = this.#numbers.get(file);
    if (known !== undefined) return known;
    const line = Buffer.from(`${file}\n`);
    const used = this.#head.get('labelBytes');
    const hasRoom = used + line.length <= this.#labels.length;
    if (hasRoom) {
      this.#labels.set(line, used);
      this.#head.set('labelBytes', used + line.length);
    }
    const number = hasRoom ? this.#numbers.size + 1 : 0;
    this.#numbers.set(file, number);
    return number;
  }

  addSample({ high, low, hostUs, errorUs }: ClockSample): void {
    const count = this.#head.get('samples');
    const at = (count % CLOCK_SAMPLES) * CLOCK_FIELDS;
    this.#samples[at + clockField.high] = high;
    this.#samples[at + clockField.low] = low;
    this.#samples[at + clockField.host] = hostUs;
    this.#samples[at + clockField.error] = errorUs;
    this.#head.set('samples', count + 1);
  }
}

// Records of kernels lie, while their process lives, in a file in /dev/shm, since drivers register no memory of files on disks.

/** The name is unlike those of the other files there: those are removed when they are old and nobody holds a lock on them. */
function pathOf(pid: number, ring: number): string {
  return `/dev/shm/weftline.trace.${pid}.${ring}`;
}

/** The address of that many bytes, zeroed, for a ring of this process; undefined where there is no room for them. */
function mapKernelMemory(ring: number, bytes: number): number | undefined {
  const path = pathOf(process.pid, ring);
  // A file of a process that had this number, and was killed, may be there; one that lives has it in another process-id namespace.
  if (isHeldFile(path)) return undefined;
  remove(path);
  try {
    const fd = openSync(path, 'wx+', 0o600);
    try {
      // The mapping keeps the lock.
      holdFile(fd);
      ftruncateSync(fd, bytes);
      if (reserveInFile(fd, 0, bytes)) return mapSharedFile(fd, bytes, false);
    } finally {
      closeSync(fd);
    }
  } catch {
    // There may be no such folder, or it is not ours.
  }
  remove(path);
  return undefined;
}

/**
 * Fills `records` with what a process of this host has left there; false if it has left nothing. Everybody may make files
 * there: only those of `owner`, the user of the process, and of this process's user count.
 */
export function readKernelMemory(pid: number, ring: number, owner: number, records: Uint8Array): boolean {
  try {
    const fd = openGuarded(pathOf(pid, ring), { owner: 'anyone' });
    try {
      const { uid } = fstatSync(fd);
      if (uid !== owner && uid !== process.geteuid?.()) return false;
      return readSync(fd, records, 0, records.length, 0) === records.length;
    } finally {
      closeSync(fd);
    }
  } catch {
    return false;
  }
}

/** Removes the file of a ring of this process, when its records are elsewhere. */
export function removeOwnKernelMemory(ring: number): void {
  remove(pathOf(process.pid, ring));
}

/** Removes the files of a process of this host that has ended, when its records are not wanted any more. */
export function removeKernelMemory(pid: number): void {
  for (let ring = 0; ring < KERNEL_RINGS; ring++) {
    const path = pathOf(pid, ring);
    if (!isHeldFile(path)) remove(path);
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // There is none, or what is there is not ours.
  }
}
