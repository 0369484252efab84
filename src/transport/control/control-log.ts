// Control records of a connection: in order, repeated until acknowledged, each packet with all that are still open.
import { setWide } from '../../abi/layout.ts';
import { controlRecord } from '../wire/packet-layout.ts';

/** Records that may be open; a power of two. */
const CAPACITY = 1024;
/** Records that stay free for failures and refusals, which must not get stuck behind grants. */
const RESERVE = 128;
const RECORD_BYTES = controlRecord.size;
const AT = controlRecord.offset;

export class ControlLog {
  /** First record that the peer has not confirmed, one after the last, and one after the last that was ever sent. */
  first: number;
  end: number;
  sent: number;
  /** When the open records were last sent, when one was last confirmed, and how often they were repeated since. */
  sentAt = 0;
  progressAt = 0;
  repeats = 0;
  /** The peer misses open records that were sent: they are due at once. And when such a repetition was last asked for. */
  missing = false;
  missingAt = Number.NEGATIVE_INFINITY;
  /** Records of the peer came, and others before them did not: the next ack says so. */
  gap = false;
  /** The path that the open records were last sent on. */
  path = 0;
  /** Carried out so far of the peer's records. */
  expected: number;
  readonly bytes = new Uint8Array(CAPACITY * RECORD_BYTES);
  readonly #view = new DataView(this.bytes.buffer);

  constructor(first = 0) {
    this.first = first;
    this.end = first;
    this.sent = first;
    this.expected = first;
  }

  get open(): number {
    return (this.end - this.first) | 0;
  }

  /** True if an ordinary record can be added. */
  hasRoom(): boolean {
    return this.open < CAPACITY - RESERVE;
  }

  /** True if even the reserve is used up. */
  get isFull(): boolean {
    return this.open === CAPACITY;
  }

  /** Adds a record of zeros; false if the log is full. `set` fills it in. */
  append(kind: number, flow: number): boolean {
    if (this.isFull) return false;
    const at = (this.end & (CAPACITY - 1)) * RECORD_BYTES;
    this.bytes.fill(0, at, at + RECORD_BYTES);
    this.#view.setUint16(at + AT.kind, kind, true);
    this.#view.setUint16(at + AT.flow, flow, true);
    this.end = (this.end + 1) | 0;
    return true;
  }

  /** Fills in numbers of the record that was added last. */
  setIds(a: number, b: number, c: number): void {
    const at = ((this.end - 1) & (CAPACITY - 1)) * RECORD_BYTES;
    this.#view.setInt32(at + AT.a, a, true);
    this.#view.setInt32(at + AT.b, b, true);
    this.#view.setInt32(at + AT.c, c, true);
  }

  setSizes(bytes: number, more: number): void {
    const at = ((this.end - 1) & (CAPACITY - 1)) * RECORD_BYTES;
    setWide(this.#view, at + AT.bytes, bytes);
    setWide(this.#view, at + AT.more, more);
  }

  /** Raises `more` of the last record if it is unsent and of this kind for `a`: two grants become one. */
  raiseLast(kind: number, a: number, more: number): boolean {
    if (this.end === this.sent || this.open === 0) return false;
    const at = ((this.end - 1) & (CAPACITY - 1)) * RECORD_BYTES;
    if (this.#view.getUint16(at + AT.kind, true) !== kind || this.#view.getInt32(at + AT.a, true) !== (a | 0)) {
      return false;
    }
    setWide(this.#view, at + AT.more, more);
    return true;
  }

  /** Writes `count` records from number `from` on to `to` at `at`. */
  copy(from: number, count: number, to: { readonly target: Uint8Array; readonly at: number }): void {
    for (let index = 0; index < count; index++) {
      const slot = ((from + index) & (CAPACITY - 1)) * RECORD_BYTES;
      to.target.set(this.bytes.subarray(slot, slot + RECORD_BYTES), to.at + index * RECORD_BYTES);
    }
  }

  /** The peer has carried out everything before `expected`. False if it cannot have. */
  confirm(expected: number, now: number): boolean {
    if (((expected - this.sent) | 0) > 0) return false;
    if (((expected - this.first) | 0) <= 0) return true;
    this.first = expected;
    this.progressAt = now;
    this.repeats = 0;
    return true;
  }
}
