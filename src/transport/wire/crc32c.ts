// CRC32C (Castagnoli), four bytes a step by tables. Hot path: no allocation.

const POLYNOMIAL = 0x82f6_3b78;

/** Four tables: the effect of a byte that is 0, 1, 2 or 3 bytes before the end of a step. */
const tables = makeTables();

function makeTables(): Int32Array {
  const table = new Int32Array(1024);
  for (let byte = 0; byte < 256; byte++) {
    let word = byte;
    for (let bit = 0; bit < 8; bit++) word = (word & 1) === 1 ? (word >>> 1) ^ POLYNOMIAL : word >>> 1;
    table[byte] = word;
  }
  for (let at = 256; at < 1024; at++) {
    const before = table[at - 256] as number;
    table[at] = (before >>> 8) ^ (table[before & 255] as number);
  }
  return table;
}

/** What a checksum begins with; `crc32cEnd` ends it. */
export const CRC32C_START = -1;

/** The checksum goes on over bytes `from` to `to` of a view. */
export function crc32cUpdate(state: number, view: DataView, from: number, to: number): number {
  let crc = state;
  let at = from;
  for (; at + 4 <= to; at += 4) {
    const word = crc ^ view.getInt32(at, true);
    crc =
      (tables[768 + (word & 255)] as number) ^
      (tables[512 + ((word >>> 8) & 255)] as number) ^
      (tables[256 + ((word >>> 16) & 255)] as number) ^
      (tables[word >>> 24] as number);
  }
  for (; at < to; at++) crc = (crc >>> 8) ^ (tables[(crc ^ view.getUint8(at)) & 255] as number);
  return crc;
}

/** The checksum goes on over four bytes that are zero. */
export function crc32cZeroWord(crc: number): number {
  return (
    (tables[768 + (crc & 255)] as number) ^
    (tables[512 + ((crc >>> 8) & 255)] as number) ^
    (tables[256 + ((crc >>> 16) & 255)] as number) ^
    (tables[crc >>> 24] as number)
  );
}

export function crc32cEnd(state: number): number {
  return ~state;
}
