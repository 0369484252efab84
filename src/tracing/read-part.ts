// Reads what a process has left of its trace: spans by thread, from records whose begins and ends belong together.
import { readFileSync } from 'node:fs';
import { Block } from '../abi/layout.ts';
import {
  TRACE_FIELDS,
  TRACE_FILE_BYTES,
  TRACE_MAGIC,
  TRACE_RECORDS,
  TRACE_RINGS,
  TRACE_TEXT_BYTES,
  TRACE_VERSION,
  traceField,
  traceHead,
  traceRing,
  traceRingOffset,
} from '../abi/trace-rings.ts';
import { WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';
import { type TracePoint, tracePoints } from '../core/trace.ts';
import type { TracedProcess } from './trace-rings.ts';

/** Times in microseconds since the Unix epoch. */
export interface Span {
  readonly point: TracePoint;
  readonly subject: number;
  readonly label: string;
  readonly begin: number;
  /** undefined of what had not ended when the file was read. */
  readonly end: number | undefined;
}

export interface TracedThread {
  readonly name: string;
  /** In the order of their begins. */
  readonly spans: readonly Span[];
  /** Records that were overwritten by later ones. */
  readonly lost: number;
}

export interface TracePart extends TracedProcess {
  readonly threads: readonly TracedThread[];
}

/** Fails with WL_FILE_FORMAT for another file. */
export function readTracePart(path: string): TracePart {
  const bytes = readFileSync(path);
  const { buffer, byteOffset, length } = bytes;
  if (length !== TRACE_FILE_BYTES) throw wrong(path, `${length} bytes long, not ${TRACE_FILE_BYTES}`);
  const head = new Block(traceHead, buffer, byteOffset);
  if (head.get('magic') !== TRACE_MAGIC) throw wrong(path, 'no trace, or its process ended while it was made');
  if (head.get('version') !== TRACE_VERSION)
    throw wrong(path, `of version ${head.get('version')}, and this is version ${TRACE_VERSION}`);
  const text = (at: number): string => textAt(bytes, at);
  const rings = Math.min(head.get('rings'), TRACE_RINGS);
  return {
    pid: head.get('pid'),
    rank: head.get('rank'),
    size: head.get('size'),
    host: text(traceHead.offset.host),
    program: text(traceHead.offset.program),
    launcher: head.get('launcher'),
    threads: Array.from({ length: rings }, (_, ring) => readThread(bytes, traceRingOffset(ring), head.get('size'))),
  };
}

/** `size`: of the job. */
function readThread(bytes: Buffer, at: number, size: number): TracedThread {
  const ring = new Block(traceRing, bytes.buffer, bytes.byteOffset + at);
  const labelsAt = at + traceRing.offset.labels;
  const lines = bytes.toString('utf8', labelsAt, labelsAt + ring.get('labelBytes')).split('\n');
  // Of calls of all ranks nothing is to be said.
  const labels = lines.map((line) => line.replace(` of ${rankRange(size)}`, ''));
  const first = (bytes.byteOffset + at + traceRing.size) % 8;
  const memory = bytes.subarray(at + traceRing.size, at + traceRing.size + TRACE_RECORDS * TRACE_FIELDS * 8);
  const records = new Float64Array(
    first === 0 ? memory.buffer : Uint8Array.from(memory).buffer,
    first === 0 ? memory.byteOffset : 0,
    TRACE_RECORDS * TRACE_FIELDS,
  );
  const written = ring.get('written');
  const kept = Math.min(written, TRACE_RECORDS);
  const spans = new SpanReader(labels);
  for (let index = written - kept; index < written; index++) {
    const from = (index & (TRACE_RECORDS - 1)) * TRACE_FIELDS;
    spans.take(records.subarray(from, from + TRACE_FIELDS));
  }
  return { name: textAt(bytes, at + traceRing.offset.thread), spans: spans.all(), lost: written - kept };
}

/** As CallGuard writes the ranks of a world. */
function rankRange(size: number): string {
  return size === 1 ? '0' : `0-${size - 1}`;
}

/** An end belongs to the last begin of the same point, subject and label. */
class SpanReader {
  readonly #labels: readonly string[];
  readonly #spans: Span[] = [];
  /** Of those that have begun, by point and subject, where they are in `#spans`. */
  readonly #open = new Map<string, number[]>();

  constructor(labels: readonly string[]) {
    this.#labels = labels;
  }

  take(record: Float64Array): void {
    const point = tracePoints[Math.floor(record[traceField.point]! / 2)];
    if (point === undefined) return;
    const subject = record[traceField.subject]!;
    const label = printable(this.#labels[record[traceField.label]! - 1] ?? '', 200);
    const key = `${point} ${subject} ${label}`;
    const time = record[traceField.time]!;
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
  return new WeftlineError('WL_FILE_FORMAT', `${path} is ${what}`, { details: { path } });
}
