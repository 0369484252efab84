// Reads what a process has left of its trace: spans by thread, from records whose begins and ends belong together.
import { closeSync, fstatSync, readSync } from 'node:fs';
import { hostname } from 'node:os';
import { KERNEL_RECORDS, kernelRecord, NO_PEER, OWN_BLOCKS, pointHash } from '../abi/kernel-trace.ts';
import { Block } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { printable } from '../core/quote.ts';
import { type TracePoint, tracePoints } from '../core/trace.ts';
import {
  CLOCK_FIELDS,
  CLOCK_SAMPLES,
  clockField,
  type ClockSample,
  KERNEL_RING_BYTES,
  KERNEL_RING_HEAD_BYTES,
  KERNEL_RINGS,
  kernelRing,
  kernelRingOffset,
  readKernelMemory,
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

// Times of a GPU's clock as times of its host's, from comparisons of both.

/** What a trace says about a GPU's clock. */
interface GpuClock {
  readonly device: number;
  /** How far the GPU's clock, taken as time since 1970, was ahead of the host's at the first comparison, in µs. */
  readonly offsetUs: number;
  /** Time that it gained since, up to the last comparison, in µs. */
  readonly driftUs: number;
  /** How far the best and the worst comparison may be off. */
  readonly errorUs: number;
  readonly mostErrorUs: number;
  readonly samples: number;
}

/** Between two comparisons the clocks drift evenly; before the first and after the last as between the nearest two. */
class GpuTimes {
  readonly #samples: readonly ClockSample[];
  readonly #points: readonly { readonly ns: number; readonly hostUs: number }[];

  /** `samples` in the order of their times, at least one. */
  constructor(samples: readonly ClockSample[]) {
    this.#samples = samples;
    this.#points = samples.map(({ high, low, hostUs }) => ({ ns: this.#since(high, low), hostUs }));
  }

  /** µs since 1970 of the host's clock. */
  hostUs(high: number, low: number): number {
    const ns = this.#since(high, low);
    const points = this.#points;
    if (points.length === 1) return points[0]!.hostUs + ns / 1000;
    const after = points.findIndex((point) => point.ns >= ns);
    const right = after < 0 ? points.length - 1 : Math.max(1, after);
    const [from, to] = [points[right - 1]!, points[right]!];
    const rate = to.ns === from.ns ? 1 / 1000 : (to.hostUs - from.hostUs) / (to.ns - from.ns);
    return from.hostUs + (ns - from.ns) * rate;
  }

  clock(device: number): GpuClock {
    const first = this.#samples[0]!;
    const last = this.#points.at(-1)!;
    const errors = this.#samples.map(({ errorUs }) => errorUs);
    return {
      device,
      offsetUs: first.high * (2 ** 32 / 1000) + first.low / 1000 - first.hostUs,
      driftUs: last.ns / 1000 - (last.hostUs - first.hostUs),
      errorUs: Math.min(...errors),
      mostErrorUs: Math.max(...errors),
      samples: this.#samples.length,
    };
  }

  /** ns since the first comparison: differences are exact where times since 1970 are not. */
  #since(high: number, low: number): number {
    const first = this.#samples[0]!;
    return (high - first.high) * 2 ** 32 + (low - first.low);
  }
}

/** Blocks with neighbouring numbers share a track: what any of them does shows there. */
const BLOCKS_OF_TRACK = 16;

interface TracedGpu {
  readonly clock: GpuClock;
  readonly threads: readonly TracedThread[];
}

interface Phase {
  readonly point: TracePoint;
  readonly peer: number;
  readonly begin: number;
  readonly end: number | undefined;
}

interface KernelEvent {
  readonly time: number;
  readonly sequence: number;
  readonly point: TracePoint;
  readonly isEnd: boolean;
  readonly peer: number;
}

/** What one launch did in one group of blocks. */
interface Piece {
  readonly label: number;
  readonly launch: number;
  readonly group: number;
  readonly blocks: Map<number, KernelEvent[]>;
}

/** A GPU runs no more launches at once. */
const MAX_LANES = 128;

const pointsByHash: ReadonlyMap<number, TracePoint> = new Map(tracePoints.map((point) => [pointHash(point), point]));

/** `bytes`: of one ring, KERNEL_RING_BYTES. undefined if its kernels have told nothing, or the clocks were never compared. */
function readKernels(bytes: Uint8Array): TracedGpu | undefined {
  const memory = bytes.byteOffset % 8 === 0 ? bytes : Uint8Array.from(bytes);
  const head = Block.over(kernelRing, memory);
  const samples = readSamples(memory, head.get('samples'));
  if (samples.length === 0) return undefined;
  const labelBytes = memory.subarray(kernelRing.offset.labels, kernelRing.offset.labels + head.get('labelBytes'));
  const labels = Buffer.from(labelBytes).toString().split('\n');
  const times = new GpuTimes(samples);
  const { pieces, lost } = readPieces(memory, times);
  if (pieces.length === 0) return undefined;
  const device = head.get('device');
  return {
    clock: times.clock(device),
    threads: tracksOf(pieces, { device, labels, lost }),
  };
}

function readSamples(memory: Uint8Array, count: number): ClockSample[] {
  const cells = new Float64Array(memory.buffer, memory.byteOffset + kernelRing.size, CLOCK_SAMPLES * CLOCK_FIELDS);
  const first = Math.max(0, count - CLOCK_SAMPLES);
  const samples = Array.from({ length: count - first }, (_, index) => {
    const at = ((first + index) % CLOCK_SAMPLES) * CLOCK_FIELDS;
    const read = (field: number): number => cells[at + field]!;
    return {
      high: read(clockField.high),
      low: read(clockField.low),
      hostUs: read(clockField.host),
      errorUs: read(clockField.error),
    };
  });
  return samples.filter((sample) => Object.values(sample).every(isTime));
}

function readPieces(memory: Uint8Array, times: GpuTimes): { readonly pieces: Piece[]; readonly lost: number } {
  const at = memory.byteOffset + KERNEL_RING_HEAD_BYTES;
  const words = new Uint32Array(memory.buffer, at, (KERNEL_RING_BYTES - KERNEL_RING_HEAD_BYTES) / 4);
  const wordsOf = kernelRecord.size / 4;
  const { offset } = kernelRecord;
  const pieces = new Map<string, Piece>();
  let kept = 0;
  let most = 0;
  for (let index = 0; index < KERNEL_RECORDS; index++) {
    const word = (field: keyof typeof offset): number => words[index * wordsOf + offset[field] / 4]!;
    const sequence = word('sequence');
    const point = pointsByHash.get(word('point'));
    // A record of which one half was not written yet, or belongs to an earlier round, is none.
    const isWhole = sequence !== 0 && sequence === word('sequenceAgain') && (sequence - 1) % KERNEL_RECORDS === index;
    if (!isWhole || point === undefined) continue;
    kept += 1;
    most = Math.max(most, sequence);
    const time = times.hostUs(words[index * wordsOf + offset.time / 4 + 1]!, words[index * wordsOf + offset.time / 4]!);
    // Times like these are of clocks that were compared at nearly the same time, or that say what no clock says.
    if (!isTime(time)) continue;
    const [block, tag] = [word('block') & 0xffff, word('block') >>> 16];
    const [label, launch, group] = [tag >> 1, word('launch'), Math.floor(block / BLOCKS_OF_TRACK)];
    const key = `${label} ${launch} ${group}`;
    const piece = pieces.get(key) ?? { label, launch, group, blocks: new Map<number, KernelEvent[]>() };
    pieces.set(key, piece);
    const events = piece.blocks.get(block) ?? [];
    piece.blocks.set(block, events);
    events.push({ time, sequence, point, isEnd: tag % 2 === 1, peer: word('peer') });
  }
  // Blocks leave some that they took unused, which is not counted.
  return { pieces: [...pieces.values()], lost: most <= KERNEL_RECORDS ? 0 : most - kept };
}

function tracksOf(
  pieces: readonly Piece[],
  { device, labels, lost }: { readonly device: number; readonly labels: readonly string[]; readonly lost: number },
): TracedThread[] {
  const groups = new Map<string, { readonly piece: Piece; readonly spans: Span[] }[]>();
  for (const piece of pieces) {
    const spans = spansOf(piece, kernelName(labels[piece.label - 1]));
    if (spans.length === 0) continue;
    const key = `${String(piece.group).padStart(5)} ${piece.label}`;
    const entries = groups.get(key) ?? [];
    groups.set(key, entries);
    entries.push({ piece, spans });
  }
  const inOrder = [...groups].toSorted(([left], [right]) => (left < right ? -1 : 1)).map(([, entries]) => entries);
  const tracks = inOrder.flatMap((entries) => {
    const { label, group } = entries[0]!.piece;
    const first = group * BLOCKS_OF_TRACK;
    const name = `GPU ${device}: ${kernelName(labels[label - 1])}, blocks ${first}-${first + BLOCKS_OF_TRACK - 1}`;
    return lanesOf(entries.map(({ spans }) => spans)).map((spans, lane) => ({
      name: lane === 0 ? name : `${name}, stream ${lane + 1}`,
      spans,
      lost: 0,
    }));
  });
  return tracks.map((track, at) => (at === 0 ? { ...track, lost } : track));
}

/** Launches that run at the same time are on different streams, and stand on different tracks, up to MAX_LANES. */
function lanesOf(launches: readonly (readonly Span[])[]): Span[][] {
  const lanes: { readonly launches: (readonly Span[])[]; end: number }[] = [];
  for (const spans of launches.toSorted((left, right) => left[0]!.begin - right[0]!.begin)) {
    const begin = spans[0]!.begin;
    const end = spans.reduce((latest, span) => Math.max(latest, endOf(span)), begin);
    let lane = lanes.find((each) => each.end <= begin) ?? (lanes.length < MAX_LANES ? undefined : lanes.at(-1)!);
    if (lane === undefined) lanes.push((lane = { launches: [], end }));
    lane.launches.push(spans);
    lane.end = Math.max(lane.end, end);
  }
  return lanes.map(({ launches: own }) => own.flat());
}

function kernelName(file: string | undefined): string {
  return file === undefined ? 'kernel' : printable(file.replace(/\.cu\b.*/, ''), 100);
}

function endOf({ end }: Span): number {
  return end ?? Number.POSITIVE_INFINITY;
}

/** Spans in the order of their begins; of those that begin together the longest first. */
function spansOf({ launch, blocks }: Piece, name: string): Span[] {
  const phases = new Map<string, Phase[]>();
  for (const events of blocks.values()) {
    for (const phase of phasesOf(events)) {
      const key = `${phase.point} ${phase.peer}`;
      const same = phases.get(key) ?? [];
      phases.set(key, same);
      same.push(phase);
    }
  }
  const spans = [...phases.values()].flatMap(joined).map(({ point, peer, begin, end }): Span => ({
    point,
    subject: launch,
    label: point === 'kernel' ? `kernel ${name}` : waitLabel(peer),
    begin,
    end,
  }));
  return spans.toSorted((left, right) => left.begin - right.begin || endOf(right) - endOf(left));
}

/** How a wait of a kernel says for whom it is; undefined of another label. */
export function peerOfLabel(label: string): string | undefined {
  return /^wait for (.+)$/.exec(label)?.[1];
}

function waitLabel(peer: number): string {
  if (peer === NO_PEER) return '';
  return peer >= OWN_BLOCKS ? 'wait for own blocks' : `wait for rank ${peer}`;
}

/** Phases of one block; an end belongs to the last begin of the same point and peer. */
function phasesOf(events: readonly KernelEvent[]): Phase[] {
  const phases: Phase[] = [];
  const open = new Map<string, number[]>();
  for (const { point, peer, time, isEnd } of events.toSorted(
    (left, right) => left.time - right.time || left.sequence - right.sequence,
  )) {
    const key = `${point} ${peer}`;
    const begun = open.get(key) ?? [];
    open.set(key, begun);
    if (!isEnd) {
      begun.push(phases.length);
      phases.push({ point, peer, begin: time, end: undefined });
      continue;
    }
    const at = begun.pop();
    if (at !== undefined) phases[at] = { ...phases[at]!, end: time };
  }
  return phases;
}

/** The times in which any block is in the phase. */
function joined(phases: readonly Phase[]): Phase[] {
  const all: Phase[] = [];
  for (const phase of phases.toSorted((left, right) => left.begin - right.begin)) {
    const last = all.at(-1);
    if (last === undefined || (last.end !== undefined && last.end < phase.begin)) {
      all.push(phase);
      continue;
    }
    const end = last.end === undefined || phase.end === undefined ? undefined : Math.max(last.end, phase.end);
    all[all.length - 1] = { ...last, end };
  }
  return all;
}

// What a trace holds: times of phases, by thread.

/** Times in microseconds since the Unix epoch. */
export interface Span {
  readonly point: TracePoint;
  readonly subject: number;
  readonly label: string;
  readonly begin: number;
  /** undefined of what had not ended when the file was read. */
  readonly end: number | undefined;
}

/** Microseconds whose differences are exact, and which JSON knows: not those that a damaged file, or a stranger's, may hold. */
function isTime(time: number): boolean {
  return Math.abs(time) <= Number.MAX_SAFE_INTEGER;
}

/** A thread, or a group of blocks of a kernel. */
export interface TracedThread {
  readonly name: string;
  /** Spans in the order of their begins. */
  readonly spans: readonly Span[];
  /** Records that were overwritten by later ones. */
  readonly lost: number;
}
