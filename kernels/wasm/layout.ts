// The ranks that every token goes to: counts and stable row numbers, from the top-k choices of this rank.
//
// Top-k ids are i32 or i64 (`indexBytes` 4 or 8); -1 means "no expert". A token may choose an expert more than once.
import { expertAt } from './topk';

/**
 * Counts tokens per rank and choices per expert, and marks which rank receives which token.
 * membership u8 [tokens, ranks], perRank i32 [ranks], perExpert i32 [experts]; all written.
 * `dropped` is a further id that means "no expert" (the all-to-all layer's `experts`), or -1. Returns the flat index of the
 * first choice that is out of range, or -1 when all are good.
 */
export function countChoices(
  topk: usize,
  indexBytes: i32,
  tokens: i32,
  k: i32,
  ranks: i32,
  experts: i32,
  dropped: i32,
  membership: usize,
  perRank: usize,
  perExpert: usize,
): i32 {
  const wide = indexBytes == 8;
  const expertsPerRank = experts / ranks;
  memory.fill(membership, 0, <usize>tokens * <usize>ranks);
  memory.fill(perRank, 0, <usize>ranks << 2);
  memory.fill(perExpert, 0, <usize>experts << 2);
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    const marks = membership + <usize>t * <usize>ranks;
    for (let j = 0; j < k; j++, cell++) {
      const expert = expertAt(topk, wide, cell);
      if (expert == -1 || (dropped >= 0 && expert == dropped)) continue;
      if (expert < 0 || expert >= experts) return <i32>cell;
      const counter = perExpert + (<usize>expert << 2);
      store<i32>(counter, load<i32>(counter) + 1);
      const rank = expert / expertsPerRank;
      if (load<u8>(marks + <usize>rank) != 0) continue;
      store<u8>(marks + <usize>rank, 1);
      const rankCounter = perRank + (<usize>rank << 2);
      store<i32>(rankCounter, load<i32>(rankCounter) + 1);
    }
  }
  return -1;
}

/**
 * Compact layout: rowTable[t, r] = nextRow[r]++ for every token that rank r receives, -1 elsewhere.
 * `nextRow` holds the first row of this source at each rank and is advanced past the last one.
 */
export function compactRows(membership: usize, tokens: i32, ranks: i32, nextRow: usize, rowTable: usize): void {
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    for (let r: usize = 0; r < <usize>ranks; r++, cell++) {
      let row = -1;
      if (load<u8>(membership + cell) != 0) {
        row = load<i32>(nextRow + (r << 2));
        store<i32>(nextRow + (r << 2), row + 1);
      }
      store<i32>(rowTable + (cell << 2), row);
    }
  }
}

/**
 * Expanded layout: rowTable[t, j] = nextRow[expert]++ and rankTable[t, j] = the expert's rank, -1 for no expert.
 * `nextRow` i32 [experts] holds the first row of (expert, this source) at the expert's rank.
 */
export function expandedRows(
  topk: usize,
  indexBytes: i32,
  tokens: i32,
  k: i32,
  experts: i32,
  expertsPerRank: i32,
  nextRow: usize,
  rowTable: usize,
  rankTable: usize,
): void {
  const wide = indexBytes == 8;
  const cells = <usize>tokens * <usize>k;
  for (let cell: usize = 0; cell < cells; cell++) {
    const expert = expertAt(topk, wide, cell);
    const none = expert < 0 || expert >= experts;
    let row = -1;
    if (!none) {
      const counter = nextRow + (<usize>expert << 2);
      row = load<i32>(counter);
      store<i32>(counter, row + 1);
    }
    store<i32>(rowTable + (cell << 2), row);
    store<i32>(rankTable + (cell << 2), none ? -1 : expert / expertsPerRank);
  }
}
