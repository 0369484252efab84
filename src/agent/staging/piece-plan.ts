// Cuts the parts of a transfer into pieces that fit a slot. Made once per transfer, in linear time.
import type { PartTable } from '../../transport/part-table.ts';
import { MAX_PIECE_FRAGMENTS } from './wire-layout.ts';

/** Fragments begin at multiples of it, so that copies are of whole words. */
const FRAGMENT_ALIGNMENT = 16;
/** A small transfer is cut into so many pieces, so that copies and the network overlap, */
const FEW_PIECES = 4;
/** of sizes between these; */
const MIN_PIECE_BYTES = 128 << 10;
const MIDDLE_PIECE_BYTES = 512 << 10;
/** a large one into so many or more: each piece costs the network two signals, whatever its size. */
const MANY_PIECES = 16;
const PAGE_BYTES = 4096;

interface PiecePlanOptions {
  /** Most bytes of a piece. */
  readonly pieceBytes: number;
  /** By local region: fragments of one piece belong to one device. */
  readonly deviceOf: readonly unknown[];
}

/** Columns of fragments in the order of the transfer's parts; piece i has those from `first[i]` to before `first[i + 1]`. */
export class PiecePlan {
  readonly count: number;
  readonly first: Uint32Array;
  /** By piece: its bytes in the slot. */
  readonly pieceBytes: Uint32Array;
  readonly local: Uint32Array;
  readonly localOffset: Float64Array;
  readonly remote: Uint32Array;
  readonly remoteOffset: Float64Array;
  readonly bytes: Uint32Array;
  readonly slotOffset: Uint32Array;

  constructor(parts: PartTable, options: PiecePlanOptions) {
    const { deviceOf } = options;
    let total = 0;
    for (let part = 0; part < parts.count; part++) total += parts.bytes[part]!;
    const capacity = capacityFor(total, options.pieceBytes);
    let fragments = 0;
    for (let part = 0; part < parts.count; part++) fragments += Math.ceil(parts.bytes[part]! / capacity);
    this.local = new Uint32Array(fragments);
    this.localOffset = new Float64Array(fragments);
    this.remote = new Uint32Array(fragments);
    this.remoteOffset = new Float64Array(fragments);
    this.bytes = new Uint32Array(fragments);
    this.slotOffset = new Uint32Array(fragments);
    const first = new Uint32Array(fragments + 1);
    const pieceBytes = new Uint32Array(fragments);
    let pieces = 0;
    let used = 0;
    let next = 0;
    let [device, remote]: [unknown, number] = [undefined, -1];
    for (let part = 0; part < parts.count; part++) {
      const local = parts.local[part]!;
      const whole = parts.bytes[part]!;
      for (let done = 0; done < whole;) {
        const bytes = Math.min(capacity, whole - done);
        const isOther = deviceOf[local] !== device || parts.remote[part]! !== remote;
        const start = pieces === 0 ? 0 : first[pieces - 1]!;
        if (pieces === 0 || isOther || used + bytes > capacity || next - start === MAX_PIECE_FRAGMENTS) {
          first[pieces++] = next;
          used = 0;
          device = deviceOf[local];
          remote = parts.remote[part]!;
        }
        this.local[next] = local;
        this.localOffset[next] = parts.localOffset[part]! + done;
        this.remote[next] = remote;
        this.remoteOffset[next] = parts.remoteOffset[part]! + done;
        this.bytes[next] = bytes;
        this.slotOffset[next] = used;
        pieceBytes[pieces - 1] = used + bytes;
        used += Math.ceil(bytes / FRAGMENT_ALIGNMENT) * FRAGMENT_ALIGNMENT;
        next++;
        done += bytes;
      }
    }
    first[pieces] = next;
    this.count = pieces;
    this.first = first.slice(0, pieces + 1);
    this.pieceBytes = pieceBytes.slice(0, pieces);
  }
}

/** Bytes of the pieces of a transfer of so many: at most `pieceBytes`. */
export function capacityFor(total: number, pieceBytes: number): number {
  const small = Math.min(total / FEW_PIECES, MIDDLE_PIECE_BYTES);
  const fair = Math.ceil(Math.max(small, total / MANY_PIECES) / PAGE_BYTES) * PAGE_BYTES;
  return Math.min(pieceBytes, Math.max(fair, MIN_PIECE_BYTES));
}
