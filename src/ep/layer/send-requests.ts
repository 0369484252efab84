// Send requests as Triton-distributed has them: ranges of consecutive tokens that go to a node.

/** A range does not reach beyond its tile. */
const TILE_TOKENS = 256;

/**
 * [nodes, 2, maxTokensPerRank]: ranges of this rank's tokens that chose an expert of each other node; -1 behind them and for the
 * own node.
 * @param ids [T, K]; what is no expert is left out.
 * @param hostOf Of each expert.
 * @param of The own node, how many there are, choices of a token and the most tokens.
 */
export function sendRequests(
  ids: Int32Array | BigInt64Array,
  hostOf: readonly number[],
  of: { readonly host: number; readonly hosts: number; readonly maxTopk: number; readonly maxTokensPerRank: number },
): Int32Array {
  const { host, hosts, maxTopk, maxTokensPerRank } = of;
  const requests = new Int32Array(hosts * 2 * maxTokensPerRank).fill(-1);
  for (let node = 0; node < hosts; node++) {
    if (node === host) continue;
    const tokens: number[] = [];
    for (let token = 0; token < ids.length / maxTopk; token++) {
      const choices = ids.subarray(token * maxTopk, (token + 1) * maxTopk);
      if (choices.some((expert: number | bigint) => hostOf[Number(expert)] === node)) tokens.push(token);
    }
    fillSendRequests(
      requests.subarray(node * 2 * maxTokensPerRank, (node + 1) * 2 * maxTokensPerRank),
      Int32Array.from(tokens),
    );
  }
  return requests;
}

/**
 * Puts the ranges of the tokens, which ascend, to the first of `cells`: [2, maxTokensPerRank], the starts and then the ends, each
 * end exclusive. The rest stays as it is.
 */
export function fillSendRequests(cells: Int32Array, tokens: Int32Array): void {
  const ends = cells.length / 2;
  let ranges = 0;
  for (const [i, token] of tokens.entries()) {
    const follows = i > 0 && tokens[i - 1] === token - 1 && token % TILE_TOKENS !== 0;
    if (!follows) cells[ranges++] = token;
    cells[ends + ranges - 1] = token + 1;
  }
}
