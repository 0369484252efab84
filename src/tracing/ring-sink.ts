// Writes the trace points of one thread into its ring. Hot path: no allocation but for the first record of a label.
import { Block } from '../abi/layout.ts';
import {
  reserve,
  setText,
  TRACE_FIELDS,
  TRACE_RECORDS,
  TRACE_RING_BYTES,
  TRACE_RINGS,
  traceField,
  type TraceFile,
  traceHead,
  traceRing,
  traceRingOffset,
} from './trace-rings.ts';
import { type TracePoint, tracePoints, type TraceSink } from '../core/trace.ts';
import { viewAt } from '../native/library.ts';

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

  /** Its number plus 1; 0 when there is no room for more. */
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
