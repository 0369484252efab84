// The part of this process's trace that kernels of one GPU write, and what the host tells of them: names of files, comparisons of clocks.
import { Block } from '../abi/layout.ts';
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
  traceHead,
} from './trace-layout.ts';
import { viewAt } from '../native/library.ts';
import { mapKernelMemory, removeOwnKernelMemory } from './kernel-memory.ts';
import { reserve, type TraceFile } from './trace-rings.ts';

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
  /** Of the memory for records that kernels may write to, until the process ends; undefined where there is none. */
  readonly memory: number | undefined;
  /** Of the records. */
  readonly bytes: number = KERNEL_RING_BYTES - KERNEL_RING_HEAD_BYTES;
  readonly #ring: number;
  /** Where the records are in the end. */
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
