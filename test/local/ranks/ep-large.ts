// Rows that cross in many chunks per channel: every rank checks each row that came, and each sum, several times in a row.
// Arguments: tokens of the first rank (others have fewer), hidden, rounds.
import assert from 'node:assert/strict';
import { fromBf16, toBf16 } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { testGroup, openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const [most = 0, hidden = 0, rounds = 0] = process.argv.slice(2).map(Number);
const [topk, perRank] = [3, 2];
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
const numExperts = perRank * group.size;
await using buffer = await EpBuffer.create(group, device, {
  maxTokensPerRank: most,
  hidden,
  numExperts,
  maxTopk: topk,
});

function tokensOf(rank: number): number {
  return most - 13 * rank;
}

/** What all columns of a row hold but the last, which tells the round; sums of some of them are exact in bf16. */
function valueOf(rank: number, token: number, round: number): number {
  return 1 + ((rank * 7 + token + round) % 30);
}

/** Choices of one rank in one round: of different experts, some of them none. */
function choicesOf(rank: number, round: number): number[][] {
  const next = random(rank * 1000 + round);
  return Array.from({ length: tokensOf(rank) }, () => {
    const first = Math.floor(next() * numExperts);
    return Array.from({ length: topk }, (_, k) => (next() < 0.2 ? -1 : (first + k) % numExperts));
  });
}

function ranksOf(choices: readonly number[]): Set<number> {
  return new Set(choices.filter((expert) => expert >= 0).map((expert) => Math.floor(expert / perRank)));
}

/** A row's columns are all alike: compared whole, and quickly. */
function requireRows(bits: Uint16Array, values: readonly number[], what: string): void {
  assert.equal(bits.length, values.length * hidden, what);
  for (const [row, value] of values.entries()) {
    const expected = toBf16(value);
    const wrong = bits.subarray(row * hidden, (row + 1) * hidden).findIndex((one) => one !== expected);
    if (wrong === -1) continue;
    const got = fromBf16(bits[row * hidden + wrong]!);
    assert.fail(`${what}, row ${row}, column ${wrong}: ${got} instead of ${value}`);
  }
}

for (let round = 0; round < rounds; round++) {
  const mine = choicesOf(group.rank, round);
  const bits = new Uint16Array(mine.length * hidden);
  for (const token of mine.keys())
    bits.fill(toBf16(valueOf(group.rank, token, round)), token * hidden, (token + 1) * hidden);
  const x = await device.tensor('bf16', [mine.length, hidden], bits);
  const topkIdx = await device.tensor('i32', [mine.length, topk], Int32Array.from(mine.flat()));
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  const expected = Array.from({ length: group.size }, (_, rank) =>
    choicesOf(rank, round).flatMap((choices, token) =>
      ranksOf(choices).has(group.rank) ? [valueOf(rank, token, round)] : [],
    ),
  ).flat();
  requireRows(await recvX.toHost(), expected, `round ${round}, dispatch`);
  const again = await buffer.dispatch({ x, handle });
  requireRows(await again.recvX.toHost(), expected, `round ${round}, cached dispatch`);
  const { combinedX } = await buffer.combine({ x: recvX, handle });
  const sums = mine.map((choices, token) => ranksOf(choices).size * valueOf(group.rank, token, round));
  requireRows(await combinedX.toHost(), sums, `round ${round}, combine`);
  for (const one of [x, topkIdx, handle, combinedX]) one.close();
}
console.log(`rank ${world.rank}: ${rounds} rounds`);
