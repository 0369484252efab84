// Memory of a scenario's hosts in which every wrong byte shows: known content, guards between ranges, poison after use.
import type { Region } from '../../transport/engine/region.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import type { SimulatedHost } from './simulated-host.ts';

const GUARD = 0x5a;
const POISON = 0xa5;
/** Bytes before and behind each range. */
const GUARD_BYTES = 16;

/** Random bytes that all contents are cut from; a prime, so that a shift by a round number shows. */
const SAMPLE_BYTES = 1_048_573;
let sample: Uint8Array | undefined;

function sampleBytes(): Uint8Array {
  if (sample !== undefined) return sample;
  const random = seededRandom(0x5a3b1e);
  sample = new Uint8Array(SAMPLE_BYTES);
  for (let at = 0; at < SAMPLE_BYTES; at += 1) sample[at] = random() * 256;
  return sample;
}

export interface BufferRange {
  readonly region: Region;
  readonly offset: number;
  readonly bytes: number;
}

/** One region of a host, cut into ranges. */
export class ScenarioBuffers {
  readonly #region: Region;
  readonly #poisoned: BufferRange[] = [];
  readonly #ranges: BufferRange[] = [];
  #used = GUARD_BYTES;

  /** `bytes` for all ranges together, `ranges` of them at most. */
  constructor(host: SimulatedHost, { bytes, ranges }: { readonly bytes: number; readonly ranges: number }) {
    const memory = new Uint8Array(bytes + (ranges + 1) * (GUARD_BYTES + 8)).fill(GUARD);
    this.#region = host.register({ bytes: memory, remote: { read: true, write: true } });
  }

  /** A range that begins at an odd place, or at a multiple of eight. */
  take(bytes: number, aligned = false): BufferRange {
    const offset = aligned ? Math.ceil(this.#used / 8) * 8 : this.#used;
    this.#used = offset + bytes + GUARD_BYTES;
    const range = { region: this.#region, offset, bytes };
    this.#ranges.push(range);
    return range;
  }

  /** The range's request is over: nobody may touch it any more. */
  poison(range: BufferRange): void {
    bytesOf(range).fill(POISON);
    this.#poisoned.push(range);
  }

  /** What is wrong now: written guards, and ranges that were written after their request was over. */
  problems(): string[] {
    const found: string[] = [];
    let at = 0;
    for (const { region, offset, bytes } of this.#ranges) {
      if (!isFilled(region.bytes.subarray(at, offset), GUARD)) found.push(`bytes before ${offset} written`);
      at = offset + bytes;
    }
    if (!isFilled(this.#region.bytes.subarray(at), GUARD)) found.push(`bytes from ${at} on written`);
    for (const range of this.#poisoned) {
      if (!isFilled(bytesOf(range), POISON)) {
        found.push(`${range.bytes} bytes at ${range.offset} written after their request was over`);
      }
    }
    return found;
  }
}

export function bytesOf({ region, offset, bytes }: BufferRange): Uint8Array {
  return region.bytes.subarray(offset, offset + bytes);
}

const filled = { [GUARD]: new Uint8Array(65_536).fill(GUARD), [POISON]: new Uint8Array(65_536).fill(POISON) };

function isFilled(bytes: Uint8Array, value: keyof typeof filled): boolean {
  for (let at = 0; at < bytes.length; at += 65_536) {
    const part = bytes.subarray(at, at + 65_536);
    if (Buffer.compare(part, filled[value].subarray(0, part.length)) !== 0) return false;
  }
  return true;
}

/** Writes the content that `number` stands for. */
export function fillContent(range: BufferRange, number: number): void {
  const target = bytesOf(range);
  let from = startOf(number);
  for (let at = 0; at < target.length;) {
    const part = Math.min(target.length - at, SAMPLE_BYTES - from);
    target.set(sampleBytes().subarray(from, from + part), at);
    at += part;
    from = 0;
  }
}

/** Position of the first byte of the range that is not the content of `number`; -1 if all are. */
export function firstWrongByte(range: BufferRange, number: number): number {
  const got = bytesOf(range);
  let from = startOf(number);
  for (let at = 0; at < got.length;) {
    const part = Math.min(got.length - at, SAMPLE_BYTES - from);
    const expected = sampleBytes().subarray(from, from + part);
    if (Buffer.compare(got.subarray(at, at + part), expected) !== 0) {
      return at + expected.findIndex((byte, index) => byte !== got[at + index]);
    }
    at += part;
    from = 0;
  }
  return -1;
}

function startOf(number: number): number {
  return (Math.imul(number + 1, 0x9e37_79b1) >>> 0) % SAMPLE_BYTES;
}
