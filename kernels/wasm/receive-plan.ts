// Finds out from the records of all ranks, which CountExchange describes, where this rank's rows begin at each rank, and what it
// receives. A function for the processor's caches rather than for its speed: a few words of each record are all it reads.
import { EXCHANGE_RECORD_AGREED, EXCHANGE_RECORD_COUNTS, EXCHANGE_RECORD_ROW_BOUND } from 'abi';

/** Records disagree on what must be equal. */
const DISAGREE: i32 = -2;
const GOOD: i32 = -1;

/**
 * `records` u32 [ranks]: addresses. Written: `prefix` i32 [ranks, ranks], rows that ranks 0..s together send to d;
 * `nextRow` i32 [ranks], the first row of rank `me` at each rank; `perLocalExpert` i32 [experts / ranks], choices of the
 * experts of `me`. Returns -1, -2 if the records disagree, or the first rank that would get more rows than its bound.
 */
export function planReceive(
  records: usize,
  ranks: i32,
  experts: i32,
  me: i32,
  prefix: usize,
  nextRow: usize,
  perLocalExpert: usize,
): i32 {
  const first = recordOf(records, 0);
  for (let s = 1; s < ranks; s++) {
    const record = recordOf(records, s);
    for (let word: usize = 0; word < <usize>EXCHANGE_RECORD_AGREED; word++) {
      if (load<i32>(record + (word << 2)) != load<i32>(first + (word << 2))) return DISAGREE;
    }
  }
  memory.fill(nextRow, 0, <usize>ranks << 2);
  const rowBytes = <usize>ranks << 2;
  let above: usize = 0;
  for (let s = 0; s < ranks; s++) {
    const perRank = recordOf(records, s) + <usize>(EXCHANGE_RECORD_COUNTS << 2);
    const row = prefix + <usize>s * rowBytes;
    for (let d: usize = 0; d < rowBytes; d += 4) {
      store<i32>(row + d, load<i32>(perRank + d) + (s == 0 ? 0 : load<i32>(above + d)));
    }
    if (s + 1 == me) memory.copy(nextRow, row, rowBytes);
    above = row;
  }
  for (let d = 0; d < ranks; d++) {
    const bound = load<i32>(recordOf(records, d) + <usize>(EXCHANGE_RECORD_ROW_BOUND << 2));
    if (bound != 0 && load<i32>(above + (<usize>d << 2)) > bound) return d;
  }
  const localExperts = experts / ranks;
  const from = <usize>(EXCHANGE_RECORD_COUNTS + ranks + me * localExperts) << 2;
  const bytes = <usize>localExperts << 2;
  memory.fill(perLocalExpert, 0, bytes);
  for (let s = 0; s < ranks; s++) {
    const counts = recordOf(records, s) + from;
    for (let e: usize = 0; e < bytes; e += 4) {
      store<i32>(perLocalExpert + e, load<i32>(perLocalExpert + e) + load<i32>(counts + e));
    }
  }
  return GOOD;
}

@inline
function recordOf(records: usize, rank: i32): usize {
  return <usize>load<u32>(records + (<usize>rank << 2));
}
