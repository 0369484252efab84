// Ranges of a caller's table as one scattered write carries them: joined where they are neighbours, cut where packets end.
// Hot path: memory grows to what was needed at most, and is used again.
import type { PartTable } from '../../abi/part-table.ts';
import { MAX_SCATTER_ENTRIES, SCATTER_ENTRY_BYTES } from '../../abi/transport-packet.ts';
import { invalidArgument } from '../../core/errors.ts';
import { RangeList } from './range-list.ts';

/** Cuts are made at multiples of so many bytes of a range, so that copies stay aligned. */
const CUT_BYTES = 64;
const FIRST_CAPACITY = 256;

/** What the ranges are to go into. */
export interface PackingLimits {
  /** Of the region of this side. */
  readonly regionBytes: number;
  /** Of a full packet. */
  readonly payloadBytes: number;
}

export class PackedRanges {
  /** What was packed last. Means nothing if that was no byte. */
  readonly list: RangeList;
  #columns = columnsOf(FIRST_CAPACITY);

  constructor() {
    this.list = new RangeList(this.#columns);
  }

  /**
   * Packs parts `first` to before `end`. The table is not needed afterwards. Returns how many ranges that makes, 0 if there
   * are no bytes. Fails with WL_INVALID_ARGUMENT for ranges outside of the region of this side.
   */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  pack(table: PartTable, first: number, end: number, { regionBytes, payloadBytes }: PackingLimits): number {
    const { localOffset, remoteOffset, bytes } = table;
    let count = 0;
    let [room, entries] = [payloadBytes, 0];
    for (let index = first; index < end;) {
      let source = localOffset[index]!;
      let target = remoteOffset[index]!;
      let left = 0;
      do {
        const length = bytes[index]!;
        if (!(isWhole(length) && isWhole(source) && source + left + length <= regionBytes)) {
          throw invalidArgument(
            `range ${index}`,
            [localOffset[index], length],
            `inside of the region of ${regionBytes} bytes`,
          );
        }
        left += length;
        index++;
      } while (index < end && localOffset[index] === source + left && remoteOffset[index] === target + left);
      while (left > 0) {
        const fitting = room - SCATTER_ENTRY_BYTES;
        const taken = left <= fitting ? left : fitting - (fitting % CUT_BYTES);
        if (taken <= 0 || entries === MAX_SCATTER_ENTRIES) {
          [room, entries] = [payloadBytes, 0];
          continue;
        }
        if (count === this.#columns.lengths.length) this.#grow();
        const { sources, targets, lengths } = this.#columns;
        sources[count] = source;
        targets[count] = target;
        lengths[count] = taken;
        count++;
        entries++;
        room -= SCATTER_ENTRY_BYTES + taken;
        source += taken;
        target += taken;
        left -= taken;
      }
    }
    if (count > 0) this.list.fill(this.#columns, 0, count);
    return count;
  }

  #grow(): void {
    const { sources, targets, lengths } = this.#columns;
    const grown = columnsOf(lengths.length * 2);
    grown.sources.set(sources);
    grown.targets.set(targets);
    grown.lengths.set(lengths);
    this.#columns = grown;
  }
}

function columnsOf(capacity: number): { sources: Float64Array; targets: Float64Array; lengths: Float64Array } {
  const column = (): Float64Array => new Float64Array(capacity);
  return { sources: column(), targets: column(), lengths: column() };
}

function isWhole(number: number): boolean {
  return Number.isSafeInteger(number) && number >= 0;
}
