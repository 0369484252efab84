// The kernel that plans from the records of all ranks what a rank receives, against the same plan made plainly.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type Tensor } from 'weftline';
import { EXCHANGE_HEADER_WORDS, exchangeFields } from '#lib/abi/exchange-record.js';
import { random } from '../../local/ranks/ep-case.ts';

const device = await CpuDevice.create();
const BOUND_WORD = exchangeFields.length + 1;

interface Records {
  readonly ranks: number;
  readonly experts: number;
  /** Words of each rank's record. */
  readonly words: readonly Int32Array[];
}

function randomRecords(next: () => number): Records {
  const ranks = 1 + Math.floor(next() * 8);
  const experts = ranks * (1 + Math.floor(next() * 5));
  const words = Array.from({ length: ranks }, () =>
    Int32Array.from({ length: EXCHANGE_HEADER_WORDS + ranks + experts }, (_, word) => {
      if (word < exchangeFields.length) return word;
      return word < EXCHANGE_HEADER_WORDS ? 0 : Math.floor(next() * 1000);
    }),
  );
  return { ranks, experts, words };
}

async function plan(
  { ranks, experts, words }: Records,
  me: number,
): Promise<Record<'prefix' | 'nextRow' | 'perLocalExpert', number[]> & { readonly outcome: number }> {
  const records = await Promise.all(words.map((record) => device.tensor('i32', [record.length], record)));
  const table = await device.tensor(
    'i32',
    [ranks],
    Int32Array.from(records, ({ address }) => address),
  );
  const made = [ranks * ranks, ranks, experts / ranks].map((length) => device.empty('i32', [length]));
  const [prefix, nextRow, perLocalExpert] = made as [Tensor<'i32'>, Tensor<'i32'>, Tensor<'i32'>];
  for (const tensor of made) tensor.view().fill(77);
  const { kernels } = device;
  const outcome = kernels.planReceive(
    table.address,
    ranks,
    experts,
    me,
    prefix.address,
    nextRow.address,
    perLocalExpert.address,
  );
  const result = {
    outcome,
    prefix: [...prefix.view()],
    nextRow: [...nextRow.view()],
    perLocalExpert: [...perLocalExpert.view()],
  };
  for (const tensor of [...records, table, ...made]) tensor.close();
  return result;
}

function each(length: number, of: (index: number) => number): number[] {
  return Array.from({ length }, (_, index) => of(index));
}

function planPlainly(
  { ranks, experts, words }: Records,
  me: number,
): Omit<Awaited<ReturnType<typeof plan>>, 'outcome'> {
  const count = (source: number, at: number): number => words[source]![EXCHANGE_HEADER_WORDS + at]!;
  const sum = (sources: number, at: number): number =>
    Array.from({ length: sources }, (_, source) => count(source, at)).reduce((total, one) => total + one, 0);
  const local = experts / ranks;
  return {
    prefix: each(ranks * ranks, (cell) => sum(Math.floor(cell / ranks) + 1, cell % ranks)),
    nextRow: each(ranks, (rank) => sum(me, rank)),
    perLocalExpert: each(local, (expert) => sum(ranks, ranks + me * local + expert)),
  };
}

test('rows, first rows and choices of the own experts are those of the records', async () => {
  const next = random(11);
  for (let round = 0; round < 50; round++) {
    const records = randomRecords(next);
    const me = Math.floor(next() * records.ranks);
    assert.deepEqual(await plan(records, me), { outcome: -1, ...planPlainly(records, me) });
  }
});

test('records that disagree in a word, and a rank that would get more rows than its bound, are found', async () => {
  const next = random(12);
  for (let round = 0; round < 20; round++) {
    const records = randomRecords(next);
    const { ranks, words } = records;
    const rank = Math.floor(next() * ranks);
    const { prefix } = planPlainly(records, 0);
    const rows = prefix[(ranks - 1) * ranks + rank]!;
    words[rank]![BOUND_WORD] = rows;
    assert.equal((await plan(records, 0)).outcome, -1);
    words[rank]![BOUND_WORD] = rows - 1;
    assert.equal((await plan(records, 0)).outcome, rows > 1 ? rank : -1);
    if (ranks === 1) continue;
    const field = Math.floor(next() * exchangeFields.length);
    words[rank]![field] = -1;
    assert.equal((await plan(records, 0)).outcome, -2);
  }
});
