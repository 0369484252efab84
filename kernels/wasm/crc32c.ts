// CRC-32C (Castagnoli) of memory, sixteen bytes a step by sixteen tables (slicing, Kounavis and Berry 2005).

const POLYNOMIAL: u32 = 0x82f63b78;
const TABLE_BYTES: usize = 1024;
/** Table k holds, for each value of a byte, what remains of it k bytes later. */
const tables: usize = memory.data(16384, 16);
let ready: bool = false;

function fillTables(): void {
  for (let byte: u32 = 0; byte < 256; byte++) {
    let remainder = byte;
    for (let bit = 0; bit < 8; bit++) remainder = (remainder >>> 1) ^ (remainder & 1 ? POLYNOMIAL : 0);
    store<u32>(tables + (<usize>byte << 2), remainder);
  }
  for (let byte: u32 = 0; byte < 256; byte++) {
    let remainder = load<u32>(tables + (<usize>byte << 2));
    for (let table: usize = 1; table < 16; table++) {
      remainder = (remainder >>> 8) ^ load<u32>(tables + (<usize>(remainder & 0xff) << 2));
      store<u32>(tables + table * TABLE_BYTES + (<usize>byte << 2), remainder);
    }
  }
  ready = true;
}

@inline
function entry(table: usize, byte: u32): u32 {
  return load<u32>(tables + table * TABLE_BYTES + (<usize>(byte & 0xff) << 2));
}

/** What remains of a word whose last byte has `behind` bytes behind it. */
@inline
function word(behind: usize, value: u32): u32 {
  return (
    entry(behind + 3, value) ^
    entry(behind + 2, value >>> 8) ^
    entry(behind + 1, value >>> 16) ^
    entry(behind, value >>> 24)
  );
}

/** Continues from `crc`, the result for the bytes before; 0 at the beginning. */
export function crc32c(crc: u32, address: usize, bytes: usize): u32 {
  if (!ready) fillTables();
  let state = ~crc;
  const end = address + bytes;
  const last = address + (bytes & ~15);
  for (; address < last; address += 16) {
    const first = load<u32>(address) ^ state;
    const second = load<u32>(address, 4);
    const third = load<u32>(address, 8);
    const fourth = load<u32>(address, 12);
    // Only the first word waits for the step before; the rest is summed meanwhile.
    state = word(4, third) ^ word(0, fourth) ^ word(8, second) ^ word(12, first);
  }
  for (; address < end; address++) state = (state >>> 8) ^ entry(0, state ^ load<u8>(address));
  return ~state;
}
