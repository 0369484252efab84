// Rows that travel between hosts: which tokens go to a host, and where they belong there.
//
// A token crosses the network once per host. `localIndex` i32 [ranks] is the position of a rank on the host in question,
// -1 for ranks of other hosts. Tables are those of rows.ts.

/**
 * perHost[h] = tokens that some rank of host h receives. `membership` u8 [tokens, ranks]; `hostOf` i32 [ranks];
 * `lastToken` i32 [hosts] is scratch.
 */
export function countHostTokens(
  membership: usize,
  tokens: i32,
  ranks: i32,
  hostOf: usize,
  hosts: i32,
  perHost: usize,
  lastToken: usize,
): void {
  memory.fill(perHost, 0, <usize>hosts << 2);
  memory.fill(lastToken, 0xff, <usize>hosts << 2);
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    for (let r: usize = 0; r < <usize>ranks; r++, cell++) {
      if (load<u8>(membership + cell) == 0) continue;
      const host = <usize>load<i32>(hostOf + (r << 2)) << 2;
      if (load<i32>(lastToken + host) == t) continue;
      store<i32>(lastToken + host, t);
      store<i32>(perHost + host, load<i32>(perHost + host) + 1);
    }
  }
}

/**
 * Lists the tokens that go to one host, in order, and returns how many. outTokens i32 [count]; outPlaces i32
 * [count, outColumns]: the row at each rank of the host (compact layout, rankTable 0) or of each choice, -1 for none;
 * outRanks likewise holds the position of each choice's rank on the host (expanded layout only).
 */
export function listHostTokens(
  rowTable: usize,
  rankTable: usize,
  tokens: i32,
  columns: i32,
  localIndex: usize,
  outColumns: i32,
  outTokens: usize,
  outPlaces: usize,
  outRanks: usize,
): i32 {
  let count = 0;
  for (let t = 0; t < tokens; t++) {
    const firstCell = <usize>t * <usize>columns;
    // The lists have room for the tokens that go to the host, and no more.
    if (!goesToHost(rowTable, rankTable, firstCell, columns, localIndex)) continue;
    const places = outPlaces + (<usize>(count * outColumns) << 2);
    const ranks = outRanks + (<usize>(count * outColumns) << 2);
    for (let c = 0; c < columns; c++) {
      const cell = firstCell + <usize>c;
      const place = load<i32>(rowTable + (cell << 2));
      const index = indexAt(rankTable, cell, c, localIndex);
      if (rankTable == 0) {
        if (index >= 0) store<i32>(places + (<usize>index << 2), place);
        continue;
      }
      const here = index >= 0 && place >= 0;
      store<i32>(places + (<usize>c << 2), here ? place : -1);
      store<i32>(ranks + (<usize>c << 2), here ? index : -1);
    }
    store<i32>(outTokens + (<usize>count << 2), t);
    count++;
  }
  return count;
}

@inline
function goesToHost(rowTable: usize, rankTable: usize, firstCell: usize, columns: i32, localIndex: usize): bool {
  for (let c = 0; c < columns; c++) {
    const cell = firstCell + <usize>c;
    if (load<i32>(rowTable + (cell << 2)) >= 0 && indexAt(rankTable, cell, c, localIndex) >= 0) return true;
  }
  return false;
}

/** Position on the host of the rank that a cell stands for, -1 if that rank is of another host. */
@inline
function indexAt(rankTable: usize, cell: usize, column: i32, localIndex: usize): i32 {
  const rank = rankTable == 0 ? column : load<i32>(rankTable + (cell << 2));
  return rank < 0 ? -1 : load<i32>(localIndex + (<usize>rank << 2));
}

/** destination[i] = source[list[i]], rows of `rowBytes`. */
export function gatherRows(destination: usize, source: usize, rowBytes: usize, list: usize, count: i32): void {
  for (let i = 0; i < count; i++) {
    memory.copy(
      destination + <usize>i * rowBytes,
      source + <usize>load<i32>(list + (<usize>i << 2)) * rowBytes,
      rowBytes,
    );
  }
}

/** Copies each token's row from its first place to its other ones. `ranks` 0: the rank is the column. */
export function spreadRows(
  rowBytes: usize,
  tokens: i32,
  columns: i32,
  places: usize,
  ranks: usize,
  bases: usize,
): void {
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    let first: usize = 0;
    for (let c = 0; c < columns; c++, cell++) {
      const place = load<i32>(places + (cell << 2));
      if (place < 0) continue;
      const rank = ranks == 0 ? c : load<i32>(ranks + (cell << 2));
      const row = <usize>load<u32>(bases + (<usize>rank << 2)) + <usize>place * rowBytes;
      if (first == 0) first = row;
      else memory.copy(row, first, rowBytes);
    }
  }
}
