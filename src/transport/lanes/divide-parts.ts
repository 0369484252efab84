// How the parts of a prepared transfer are spread over lanes: by bytes, in their order, large ones cut.
import { PartTable } from '../../abi/part-table.ts';
import { PART_BYTES } from '../../abi/transport-command.ts';

/** Cuts are made at multiples of so many bytes of a part. */
const CUT_ALIGNMENT = 4096;

/** A piece of a part. */
interface Piece {
  readonly part: number;
  readonly offset: number;
  readonly bytes: number;
}

/** By lane: its parts. Tables without parts where there is too little for all; all of it is then on `home`. */
export function divideParts(table: PartTable, lanes: number, home: number): readonly PartTable[] {
  const total = table.bytes.reduce((sum, bytes) => sum + bytes, 0);
  const used = Math.min(lanes, Math.floor(total / PART_BYTES));
  const empty = PartTable.ofCount(0);
  const shares = Array.from({ length: lanes }, () => empty);
  if (used < 2) {
    shares[home] = table;
    return shares;
  }
  const pieces = piecesOf(table, used, total);
  for (const [share, list] of pieces.entries()) shares[(home + share) % lanes] = tableOf(table, list);
  return shares;
}

function piecesOf(table: PartTable, used: number, total: number): readonly Piece[][] {
  const pieces: Piece[][] = Array.from({ length: used }, () => []);
  let lane = 0;
  let before = 0;
  for (let part = 0; part < table.count; part++) {
    let offset = 0;
    const bytes = table.bytes[part]!;
    do {
      const left = bytes - offset;
      // What lanes up to this one are to have.
      const room = Math.ceil((total * (lane + 1)) / used) - before;
      const isLast = lane === used - 1;
      const cut = Math.ceil(room / CUT_ALIGNMENT) * CUT_ALIGNMENT;
      // Small remainders are not worth a request of their own.
      const taken = isLast || left <= cut + CUT_ALIGNMENT ? left : cut;
      (pieces[lane] as Piece[]).push({ part, offset, bytes: taken });
      offset += taken;
      before += taken;
      while (lane < used - 1 && before * used >= total * (lane + 1)) lane++;
    } while (offset < bytes);
  }
  return pieces;
}

function tableOf(source: PartTable, pieces: readonly Piece[]): PartTable {
  const table = PartTable.ofCount(pieces.length);
  for (const [at, { part, offset, bytes }] of pieces.entries()) {
    table.localOffset[at] = source.localOffset[part]! + offset;
    table.remoteOffset[at] = source.remoteOffset[part]! + offset;
    table.bytes[at] = bytes;
    table.local[at] = source.local[part]!;
    table.remote[at] = source.remote[part]!;
  }
  return table;
}
