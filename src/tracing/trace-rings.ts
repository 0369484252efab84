// The rings of this process in a file that all its threads map: what they have written is there however the process ends.
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  ftruncateSync,
  lstatSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  unlinkSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { KERNEL_RECORDS, kernelRecord } from '../abi/kernel-trace.ts';
import { alignUp, Block, defineLayout } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { type TracePoint, tracePoints, type TraceSink } from '../core/trace.ts';
import { holdFile, isHeldFile } from '../native/libc.ts';
import { viewAt } from '../native/library.ts';
import { mapSharedFile, reserveInFile } from '../native/memory-file.ts';

// The files that the processes of a job leave beside the trace that was asked for, each with the rings of one.

const PART = '.part';

/** Path for a trace that goes to `file`. `more` tells several of one process number apart. */
export function partPath(file: string, host: string, pid: number, more?: string): string {
  return `${file}.${host}.${pid}${more === undefined ? '' : `.${more}`}${PART}`;
}

/** Parts that are there, in order of their names. */
export function partsOf(file: string): string[] {
  const folder = dirname(file);
  if (!existsSync(folder)) return [];
  const begin = `${basename(file)}.`;
  const names = readdirSync(folder).filter((name) => name.startsWith(begin) && name.endsWith(PART));
  return names.toSorted().map((name) => join(folder, name));
}

// The file in which one process leaves its trace: a head that says who it is, and a ring of records for each of its threads;
// behind them those of its GPUs.

/** "WLTR", little endian. */
export const TRACE_MAGIC = 0x5254_4c57;
export const TRACE_VERSION = 2;
export const TRACE_TEXT_BYTES = 120;
/** Threads beyond these are not traced. */
export const TRACE_RINGS = 32;
/** Records of a thread; older ones are overwritten. A power of two. */
export const TRACE_RECORDS = 65_536;
const TRACE_HEAD_BYTES = 4096;

/**
 * `rings`: how many threads have taken one, by atomic addition; `kernelRings`: how many GPUs (kernel-trace.ts). `rank` is -1 in a process that is no rank of a job;
 * `launcher` is the process that started it, if that is weftline's, else 0. Texts
 * are UTF-8 and end at the first zero.
 */
export const traceHead = defineLayout('TraceHead', {
  magic: 'u32',
  version: 'u32',
  pid: 'u32',
  rank: 'i32',
  size: 'u32',
  rings: 'u32',
  kernelRings: 'u32',
  launcher: 'u32',
  host: { of: 'u8', count: TRACE_TEXT_BYTES },
  program: { of: 'u8', count: TRACE_TEXT_BYTES },
});

/**
 * In front of the records of a thread. `written`: records so far, modulo 2^32; stored after the record. `labels`: lines of
 * UTF-8, of which the records name the first by 0.
 */
export const traceRing = defineLayout('TraceRing', {
  written: 'u32',
  labelBytes: 'u32',
  thread: { of: 'u8', count: TRACE_TEXT_BYTES },
  labels: { of: 'u8', count: 3960 },
});

/**
 * A record, as numbers of 64 bits: microseconds since the Unix epoch; twice the number of the trace point, plus 1 at its
 * end; the subject, which tells apart what runs at once; the label plus 1, or 0.
 */
export const traceField = { time: 0, point: 1, subject: 2, label: 3 } as const;
export const TRACE_FIELDS = 4;

const TRACE_RING_BYTES: number = traceRing.size + TRACE_RECORDS * TRACE_FIELDS * 8;

export function traceRingOffset(ring: number): number {
  return TRACE_HEAD_BYTES + ring * TRACE_RING_BYTES;
}

/** GPUs of one process that are traced. */
export const KERNEL_RINGS = 2;
/** Comparisons of the clocks of GPU and host that are kept, the last ones. */
export const CLOCK_SAMPLES = 256;
const KERNEL_LABEL_BYTES = 4080;

/**
 * In front of the records of a GPU. `labels`: names of kernel files, lines of UTF-8. `samples`: comparisons of clocks so far.
 * `isElsewhere`: 1 while the records lie in a file in memory, until the process ends (tracing/kernel-memory.ts).
 */
export const kernelRing = defineLayout(
  'KernelRing',
  {
    device: 'u32',
    samples: 'u32',
    labelBytes: 'u32',
    isElsewhere: 'u32',
    labels: { of: 'u8', count: KERNEL_LABEL_BYTES },
  },
  4096,
);

/** A comparison of clocks, as numbers of 64 bits: the GPU's clock in ns as 2^32 * high + low; the host's in µs since 1970; how far they may be apart, in µs. */
export const clockField = { high: 0, low: 1, host: 2, error: 3 } as const;
export const CLOCK_FIELDS = 4;
const CLOCK_BYTES = CLOCK_SAMPLES * CLOCK_FIELDS * 8;

export const KERNEL_RING_HEAD_BYTES: number = kernelRing.size + CLOCK_BYTES;
export const KERNEL_RING_BYTES: number = KERNEL_RING_HEAD_BYTES + KERNEL_RECORDS * kernelRecord.size;
const KERNEL_RINGS_BEGIN = alignUp(TRACE_HEAD_BYTES + TRACE_RINGS * TRACE_RING_BYTES, 4096);
export const TRACE_FILE_BYTES: number = KERNEL_RINGS_BEGIN + KERNEL_RINGS * KERNEL_RING_BYTES;

/** A multiple of the size of a page. */
export function kernelRingOffset(ring: number): number {
  return KERNEL_RINGS_BEGIN + ring * KERNEL_RING_BYTES;
}

export interface TracedProcess {
  readonly pid: number;
  /** -1 of a process that is no rank. */
  readonly rank: number;
  readonly size: number;
  readonly host: string;
  readonly program: string;
  /** 0 without weftline's launcher. */
  readonly launcher: number;
}

/** File as all threads of the process know it. */
export interface TraceFile {
  readonly path: string;
  /** Address at which it is mapped. */
  readonly address: number;
}

/** The part of this process for the trace that goes to `file`. Fails as createTraceFile() does. */
export function createPart(file: string, process: TracedProcess): TraceFile {
  const { host, pid } = process;
  const path = partPath(file, host, pid);
  try {
    return createTraceFile(path, process);
  } catch (error) {
    // The name may be taken by a process with the same number in another container; or anybody put it there, as the name can be guessed.
    const isTaken = lstatSync(path, { throwIfNoEntry: false }) !== undefined;
    if (!isTaken) throw error;
  }
  return createTraceFile(partPath(file, host, pid, randomBytes(8).toString('hex')), process);
}

/** Makes the file, sparse, and maps it. Fails with the error of the file system, with WL_NATIVE, WL_FILE if it is full. */
export function createTraceFile(path: string, process: TracedProcess): TraceFile {
  if (isHeldFile(path))
    throw new WeftlineError('WL_FILE', 'another process with the same number and host name uses it');
  // The file is of a process that had this number, and has ended.
  rmSync(path, { force: true });
  const fd = openSync(path, 'wx+', 0o600);
  try {
    // The mapping keeps the lock.
    holdFile(fd);
    ftruncateSync(fd, TRACE_FILE_BYTES);
    if (!reserveInFile(fd, 0, TRACE_HEAD_BYTES)) throw new WeftlineError('WL_FILE', 'its file system is full');
    const address = mapSharedFile(fd, TRACE_FILE_BYTES, false);
    const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
    head.set('version', TRACE_VERSION);
    head.set('pid', process.pid);
    setText(head, 'host', process.host);
    setText(head, 'program', process.program);
    head.set('launcher', process.launcher);
    describeRank({ path, address }, process.rank, process.size);
    head.set('magic', TRACE_MAGIC);
    return { path, address };
  } catch (error) {
    rmSync(path, { force: true });
    throw error;
  } finally {
    closeSync(fd);
  }
}

/** A process learns its rank when it joins its job. */
export function describeRank({ address }: TraceFile, rank: number, size: number): void {
  const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
  head.set('rank', rank);
  head.set('size', size);
}

/** Room for a part of the file: a write to a mapped page without room on the disk would end the process. False if there is none. */
export function reserve(path: string, offset: number, bytes: number): boolean {
  const fd = openGuarded(path, { owner: 'user', flags: constants.O_RDWR });
  try {
    return reserveInFile(fd, offset, bytes);
  } finally {
    closeSync(fd);
  }
}

/** Sets the text as far as there is room. */
function setText<Name extends string>(block: Block<Name>, field: Name, text: string): void {
  const bytes = Buffer.from(text).subarray(0, TRACE_TEXT_BYTES - 1);
  for (const [index, byte] of bytes.entries()) block.set(field, byte, index);
}

/** Writes the trace points of one thread into its ring. Hot path: no allocation but for the first record of a label. */
export class RingSink implements TraceSink {
  readonly #words: Int32Array;
  readonly #labelMemory: Uint8Array;
  readonly #records: Float64Array;
  readonly #numbers = new Map<TracePoint, number>(tracePoints.map((point, number) => [point, number]));
  readonly #labels = new Map<string, number>();
  readonly #origin: number = performance.timeOrigin * 1000;
  #written = 0;

  /** Takes a ring of the file for this thread; undefined if none is left, or no room on its file system. */
  static claim({ path, address }: TraceFile, thread: string): RingSink | undefined {
    const head = new Int32Array(viewAt(address, traceHead.size));
    const ring = Atomics.add(head, traceHead.offset.rings / 4, 1);
    if (ring >= TRACE_RINGS || !reserve(path, traceRingOffset(ring), TRACE_RING_BYTES)) return undefined;
    return new RingSink(address + traceRingOffset(ring), thread);
  }

  private constructor(address: number, thread: string) {
    const memory = viewAt(address, traceRing.size + TRACE_RECORDS * TRACE_FIELDS * 8);
    const { offset, size } = traceRing;
    this.#words = new Int32Array(memory, 0, size / 4);
    this.#labelMemory = new Uint8Array(memory, offset.labels, size - offset.labels);
    this.#records = new Float64Array(memory, size);
    setText(new Block(traceRing, memory, 0), 'thread', thread);
  }

  begin(point: TracePoint, subject: number, label?: string): void {
    this.#write(this.#numbers.get(point)! * 2, subject, label === undefined ? 0 : this.#labelOf(label));
  }

  end(point: TracePoint, subject: number, label?: string): void {
    this.#write(this.#numbers.get(point)! * 2 + 1, subject, label === undefined ? 0 : this.#labelOf(label));
  }

  #write(point: number, subject: number, label: number): void {
    const records = this.#records;
    const at = (this.#written & (TRACE_RECORDS - 1)) * TRACE_FIELDS;
    records[at + traceField.time] = this.#origin + performance.now() * 1000;
    records[at + traceField.point] = point;
    records[at + traceField.subject] = subject;
    records[at + traceField.label] = label;
    this.#written = (this.#written + 1) | 0;
    // ORDER: after the record, so that whoever reads the file of a process that was killed finds whole records.
    Atomics.store(this.#words, traceRing.offset.written / 4, this.#written);
  }

  /** The label's number plus 1; 0 when there is no room for more. */
  #labelOf(label: string): number {
    const known = this.#labels.get(label);
    if (known !== undefined) return known;
    const line = Buffer.from(`${label}\n`);
    const used = this.#words[traceRing.offset.labelBytes / 4]!;
    const hasRoom = used + line.length <= this.#labelMemory.length;
    if (hasRoom) {
      this.#labelMemory.set(line, used);
      this.#words[traceRing.offset.labelBytes / 4] = used + line.length;
    }
    const number = hasRoom ? this.#labels.size + 1 : 0;
    this.#labels.set(label, number);
    return number;
  }
}

export interface ClockSample {
  /** The GPU's clock in ns: 2^32 * high + low. */
  readonly high: number;
  readonly low: number;
  /** The host's at the same moment, in µs since 1970. */
  readonly hostUs: number;
  /** How far they may be apart, in µs. */
  readonly errorUs: number;
}

/** The part of this process's trace that kernels of one GPU write: records, names of files, comparisons of clocks. */
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
