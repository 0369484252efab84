// Whether addresses that a caller passes are memory of this process: any other would end it when it is touched.
import { readFileSync } from 'node:fs';

/** A line of the kernel's table of mappings: "7f12a000-7f12b000 rw-p …". */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) (..)/gm;

/** Whether all the bytes are mapped here and may be read and written. True where the system has no such table. */
export function isOwnMemory(address: number, bytes: number): boolean {
  let table: string;
  try {
    table = readFileSync('/proc/self/maps', 'latin1');
  } catch {
    return true;
  }
  let next = address;
  const end = address + bytes;
  for (const [, from, to, access] of table.matchAll(MAPPING)) {
    const [start, stop] = [Number.parseInt(from!, 16), Number.parseInt(to!, 16)];
    if (stop <= next) continue;
    if (start > next || access !== 'rw') return false;
    next = stop;
    if (next >= end) return true;
  }
  return false;
}
