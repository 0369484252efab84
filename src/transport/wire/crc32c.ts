// CRC32C (Castagnoli), eight bytes a step by tables. Hot path: no allocation.

const POLYNOMIAL = 0x82f6_3b78;

/** Eight tables of 256: the effect of a byte that is 0 to 7 bytes before the end of a step. */
const tables = makeTables();

function makeTables(): Int32Array {
  const table = new Int32Array(2048);
  for (let byte = 0; byte < 256; byte++) {
    let word = byte;
    for (let bit = 0; bit < 8; bit++) word = (word & 1) === 1 ? (word >>> 1) ^ POLYNOMIAL : word >>> 1;
    table[byte] = word;
  }
  for (let at = 256; at < 2048; at++) {
    const before = table[at - 256]!;
    table[at] = (before >>> 8) ^ table[before & 255]!;
  }
  return table;
}

/** What a checksum begins with; `crc32cEnd` ends it. */
export const CRC32C_START = -1;

/** The checksum goes on over bytes `from` to `to` of a view. */
export function crc32cUpdate(state: number, view: DataView, from: number, to: number): number {
  let crc = state;
  let at = from;
  for (; at + 8 <= to; at += 8) {
    const word = crc ^ view.getInt32(at, true);
    const next = view.getInt32(at + 4, true);
    crc =
      tables[1792 + (word & 255)]! ^
      tables[1536 + ((word >>> 8) & 255)]! ^
      tables[1280 + ((word >>> 16) & 255)]! ^
      tables[1024 + (word >>> 24)]! ^
      tables[768 + (next & 255)]! ^
      tables[512 + ((next >>> 8) & 255)]! ^
      tables[256 + ((next >>> 16) & 255)]! ^
      tables[next >>> 24]!;
  }
  for (; at + 4 <= to; at += 4) {
    const word = crc ^ view.getInt32(at, true);
    crc =
      tables[768 + (word & 255)]! ^
      tables[512 + ((word >>> 8) & 255)]! ^
      tables[256 + ((word >>> 16) & 255)]! ^
      tables[word >>> 24]!;
  }
  for (; at < to; at++) crc = (crc >>> 8) ^ tables[(crc ^ view.getUint8(at)) & 255]!;
  return crc;
}

/** The checksum goes on over four bytes that are zero. */
export function crc32cZeroWord(crc: number): number {
  return (
    tables[768 + (crc & 255)]! ^
    tables[512 + ((crc >>> 8) & 255)]! ^
    tables[256 + ((crc >>> 16) & 255)]! ^
    tables[crc >>> 24]!
  );
}

export function crc32cEnd(state: number): number {
  return ~state;
}

/**
 * What a word that is changed by `difference` (exclusive or) changes in a checksum that goes on over `after` more bytes,
 * 0 to 252: checksums are linear. Make one table for each distance, and use it for many words.
 */
export class WordChange {
  readonly #changes = new Int32Array(1024);

  /** `after`: bytes between the end of the word and the end of what is summed. */
  constructor(after: number) {
    const zeros = new DataView(new ArrayBuffer(after));
    for (let byte = 0; byte < 4; byte++) {
      for (let value = 0; value < 256; value++) {
        const state = crc32cZeroWord(value << (8 * byte));
        this.#changes[256 * byte + value] = crc32cUpdate(state, zeros, 0, after);
      }
    }
  }

  /** The change is to be combined with the checksum by exclusive or. */
  of(difference: number): number {
    const changes = this.#changes;
    return (
      changes[difference & 255]! ^
      changes[256 + ((difference >>> 8) & 255)]! ^
      changes[512 + ((difference >>> 16) & 255)]! ^
      changes[768 + (difference >>> 24)]!
    );
  }
}
