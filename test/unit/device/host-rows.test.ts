// The kernel that lists which tokens go to a host.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type Tensor } from 'weftline';
import { random } from '../../local/ranks/ep-case.ts';

const device = await CpuDevice.create();
/** Places on this host of those of four ranks that are on it. */
const localIndex = [-1, 1, -1, 0];

function words(values: readonly number[]): Promise<Tensor<'i32'>> {
  return device.tensor('i32', [values.length], Int32Array.from(values));
}

interface Listed {
  readonly token: number;
  readonly places: readonly number[];
  readonly ranks: readonly number[];
}

/** Rows and ranks by choice; or, without ranks, rows by rank. */
function listPlainly(rows: readonly (readonly number[])[], ranks?: readonly (readonly number[])[]): Listed[] {
  return rows
    .map((row, token): Listed => {
      if (ranks === undefined) {
        const places = [0, 1].map((index) => row[localIndex.indexOf(index)]!);
        return { token, places, ranks: [] };
      }
      const index = ranks[token]!.map((rank, c) => (rank < 0 || row[c]! < 0 ? -1 : localIndex[rank]!));
      return { token, places: row.map((place, c) => (index[c]! < 0 ? -1 : place)), ranks: index };
    })
    .filter(({ places }) => places.some((place) => place >= 0));
}

for (const hasRanks of [false, true]) {
  test(`tokens of a host are listed ${hasRanks ? 'by choice' : 'by rank'}, and nothing is written behind them`, async () => {
    const next = random(8);
    const columns = hasRanks ? 3 : localIndex.length;
    const outColumns = hasRanks ? columns : 2;
    for (let round = 0; round < 20; round++) {
      const table = (most: number): number[][] =>
        Array.from({ length: 17 }, () => Array.from({ length: columns }, () => Math.floor(next() * (most + 2)) - 2));
      const rows = table(9).map((row) => row.map((place) => Math.max(place, -1)));
      const ranks = hasRanks ? table(4).map((row) => row.map((rank) => Math.max(rank, -1))) : undefined;
      const want = listPlainly(rows, ranks);
      const cells = want.length * outColumns;
      const inputs = await Promise.all([words(rows.flat()), words(ranks?.flat() ?? [0]), words(localIndex)]);
      const [rowTable, rankTable, local] = inputs;
      const outputs = [want.length, cells, cells].map((length) => device.empty('i32', [length + columns]));
      for (const output of outputs) output.view().fill(77);
      const [tokens, places, outRanks] = outputs.map(({ address }) => address) as [number, number, number];
      const count = device.kernels.listHostTokens(
        rowTable.address,
        hasRanks ? rankTable.address : 0,
        rows.length,
        columns,
        local.address,
        outColumns,
        tokens,
        places,
        hasRanks ? outRanks : 0,
      );
      assert.equal(count, want.length);
      const behind = Array<number>(columns).fill(77);
      const got = outputs.map((output) => [...output.view()]);
      assert.deepEqual(got[0], [...want.map(({ token }) => token), ...behind]);
      assert.deepEqual(got[1], [...want.flatMap((one) => one.places), ...behind]);
      if (hasRanks) assert.deepEqual(got[2], [...want.flatMap((one) => one.ranks), ...behind]);
      for (const tensor of [...inputs, ...outputs]) tensor.close();
    }
  });
}
