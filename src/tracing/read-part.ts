// Reads what a process has left of its trace: spans by thread, from records whose begins and ends belong together.
import { closeSync, fstatSync, readSync } from 'node:fs';
import { hostname } from 'node:os';
import {
  KERNEL_RING_BYTES,
  KERNEL_RING_HEAD_BYTES,
  KERNEL_RINGS,
  kernelRing,
  kernelRingOffset,
  TRACE_FIELDS,
  TRACE_FILE_BYTES,
  TRACE_MAGIC,
  TRACE_RECORDS,
  TRACE_RINGS,
  TRACE_TEXT_BYTES,
  TRACE_VERSION,
  type TracedProcess,
  traceField,
  traceHead,
  traceRing,
  traceRingOffset,
} from './trace-rings.ts';
import { Block } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { printable } from '../core/quote.ts';
import { tracePoints } from '../core/trace.ts';
import { type GpuClock, isTime, readKernels, type Span, type TracedGpu, type TracedThread } from './read-kernels.ts';
import { readKernelMemory } from './kernel-ring.ts';

export interface TracePart extends TracedProcess {
  /** Threads of the host, then groups of blocks of kernels. */
  readonly threads: readonly TracedThread[];
  /** Clocks of the GPUs whose kernels are among them. */
  readonly gpuClocks: readonly GpuClock[];
}

/** Fails with WL_FILE_FORMAT for another file, with WL_FILE for one of a stranger, a link or a pipe. */
export function readTracePart(path: string): TracePart {
  const fd = openGuarded(path, { owner: 'folder' });
  try {
    const { size, uid } = fstatSync(fd);
    if (size !== TRACE_FILE_BYTES) throw wrong(path, `${size} bytes long, not ${TRACE_FILE_BYTES}`);
    const bytes = bytesAt(fd, 0, traceHead.size);
    const head = Block.over(traceHead, bytes);
    if (head.get('magic') !== TRACE_MAGIC) throw wrong(path, 'no trace, or its process ended while it was made');
    if (head.get('version') !== TRACE_VERSION)
      throw wrong(path, `of version ${head.get('version')}, and this is version ${TRACE_VERSION}`);
    const rings = Math.min(head.get('rings'), TRACE_RINGS);
    const threads = Array.from({ length: rings }, (_, ring) => readThread(fd, traceRingOffset(ring), head.get('size')));
    const host = textAt(bytes, traceHead.offset.host);
    const writer = host === hostname() ? { pid: head.get('pid'), uid } : undefined;
    const gpus = readGpus(fd, Math.min(head.get('kernelRings'), KERNEL_RINGS), writer);
    return {
      pid: head.get('pid'),
      rank: head.get('rank'),
      size: head.get('size'),
      host,
      program: textAt(bytes, traceHead.offset.program),
      launcher: head.get('launcher'),
      threads: [...threads, ...gpus.flatMap((gpu) => gpu.threads)],
      gpuClocks: gpus.map(({ clock }) => clock),
    };
  } finally {
    closeSync(fd);
  }
}

/** `writer`: a process of this host, and its user. */
function readGpus(fd: number, rings: number, writer?: { readonly pid: number; readonly uid: number }): TracedGpu[] {
  const gpus = Array.from({ length: rings }, (_, ring) => {
    const bytes = bytesAt(fd, kernelRingOffset(ring), KERNEL_RING_BYTES);
    // It runs, or was killed.
    if (writer !== undefined && Block.over(kernelRing, bytes).get('isElsewhere') === 1)
      readKernelMemory(writer.pid, ring, writer.uid, bytes.subarray(KERNEL_RING_HEAD_BYTES));
    return readKernels(bytes);
  });
  return gpus.filter((gpu) => gpu !== undefined);
}

/** Reads only these bytes: most of the file has never been written. */
function bytesAt(fd: number, offset: number, count: number): Buffer {
  const bytes = Buffer.alloc(count);
  for (let read = 0; read < count;) {
    const more = readSync(fd, bytes, read, count - read, offset + read);
    if (more === 0) break;
    read += more;
  }
  return bytes;
}

/** `size`: of the job. */
function readThread(fd: number, at: number, size: number): TracedThread {
  const bytes = bytesAt(fd, at, traceRing.size);
  const ring = Block.over(traceRing, bytes);
  const { labels: labelsAt } = traceRing.offset;
  const lines = bytes.toString('utf8', labelsAt, labelsAt + ring.get('labelBytes')).split('\n');
  // Nothing is to be said of calls of all ranks.
  const labels = lines.map((line) => printable(line.replace(` of ${rankRange(size)}`, ''), 200));
  const written = ring.get('written');
  const kept = Math.min(written, TRACE_RECORDS);
  const memory = bytesAt(fd, at + traceRing.size, kept * TRACE_FIELDS * 8);
  const records = new Float64Array(Uint8Array.from(memory).buffer);
  const spans = new SpanReader(labels);
  for (let index = written - kept; index < written; index++) {
    const from = (index & (TRACE_RECORDS - 1)) * TRACE_FIELDS;
    spans.take(records.subarray(from, from + TRACE_FIELDS));
  }
  return { name: textAt(bytes, traceRing.offset.thread), spans: spans.all(), lost: written - kept };
}

/** Ranks of a world as CallGuard writes them. */
function rankRange(size: number): string {
  return size === 1 ? '0' : `0-${size - 1}`;
}

/** An end belongs to the last begin of the same point, subject and label. */
class SpanReader {
  readonly #labels: readonly string[];
  readonly #spans: Span[] = [];
  /** Places in `#spans` of those that have begun, by point and subject. */
  readonly #open = new Map<string, number[]>();

  constructor(labels: readonly string[]) {
    this.#labels = labels;
  }

  take(record: Float64Array): void {
    const point = tracePoints[Math.floor(record[traceField.point]! / 2)];
    if (point === undefined) return;
    const subject = record[traceField.subject]!;
    const label = this.#labels[record[traceField.label]! - 1] ?? '';
    const key = `${point} ${subject} ${label}`;
    const time = record[traceField.time]!;
    // The record is of a process that was killed while it wrote, or of none of ours: JSON knows no such number.
    if (!isTime(time)) return;
    const open = this.#open.get(key) ?? [];
    if (record[traceField.point]! % 2 === 1) {
      const at = open.pop();
      if (at !== undefined) this.#spans[at] = { ...this.#spans[at]!, end: time };
      return;
    }
    open.push(this.#spans.length);
    this.#open.set(key, open);
    this.#spans.push({ point, subject, label, begin: time, end: undefined });
  }

  all(): Span[] {
    return this.#spans;
  }
}

function textAt(bytes: Buffer, at: number): string {
  const end = bytes.indexOf(0, at);
  return printable(bytes.toString('utf8', at, Math.min(end < 0 ? at : end, at + TRACE_TEXT_BYTES)), TRACE_TEXT_BYTES);
}

function wrong(path: string, what: string): WeftlineError {
  return new WeftlineError('WL_FILE_FORMAT', `${printable(path, 1024)} is ${what}`, { details: { path } });
}
