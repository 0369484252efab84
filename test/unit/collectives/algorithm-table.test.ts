// Tables of algorithms: which one a call takes, what a file or an option must be, and what measured times become.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { algorithmFor, type AlgorithmName, algorithmTable, readTableFile } from '#lib/collectives/algorithm-table.js';
import { rangesOf, type TuneReport, type TunedRow, withTable } from '#lib/programs/bench/collectives/tune.js';

const folder = mkdtempSync(join(tmpdir(), 'weftline-table-'));
test.after(() => rmSync(folder, { recursive: true }));
const shape = { ranks: 4, hosts: 2 };

function write(name: string, content: unknown): string {
  const file = join(folder, name);
  writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
  return file;
}

/** µs of one step and of shares, by size. */
function rowsOf(times: Readonly<Record<number, readonly [oneStep: number, shares: number]>>): TunedRow[] {
  return Object.entries(times).map(([bytes, [oneStep, shares]]) => ({
    kind: 'allReduce',
    bytes: Number(bytes),
    microseconds: { oneStep, shares },
    fastest: oneStep <= shares ? 'oneStep' : 'shares',
  }));
}

test('ranges count up to their limit, and the last one for everything above', () => {
  const list = [
    { upToBytes: 0, algorithm: 'chain' },
    { upToBytes: 100, algorithm: 'oneStep' },
    { algorithm: 'shares' },
  ] as const;
  const of = (bytes: number): AlgorithmName => algorithmFor(list, bytes);
  assert.deepEqual([0, 1, 100, 101, 2 ** 30].map(of), ['chain', 'oneStep', 'oneStep', 'shares', 'shares']);
});

test('an option is before a measured file, and a file counts for its ranks and hosts alone', () => {
  const allReduce = [{ algorithm: 'chain' }] as const;
  const reduce = [{ algorithm: 'oneStep' }] as const;
  const file = write('table.json', {
    schema: 'weftline.collectives.table/1',
    shapes: [{ ...shape, allReduce, reduce }],
  });
  assert.deepEqual(algorithmTable(shape, { option: undefined, file }), { allReduce, reduce });
  const option = { allReduce: [{ algorithm: 'shares' }] } as const;
  assert.deepEqual(algorithmTable(shape, { option, file }), { ...option, reduce });
  const builtIn = algorithmTable(shape, { option: undefined, file: '' });
  assert.deepEqual(algorithmTable({ ranks: 4, hosts: 1 }, { option: undefined, file }), builtIn);
});

test('what is no table is refused with a reason', () => {
  for (const [name, content, reason] of [
    ['missing.json', undefined, /missing\.json.*ENOENT/],
    ['text.json', 'no json\nof two lines', /^[^\n]*JSON[^\n]*$/],
    ['other.json', { schema: 'x', shapes: [] }, /algorithms: Invalid input: expected .*schema/],
    ['order.json', tableWith([{ upToBytes: 5, algorithm: 'shares' }]), /limits that ascend.*shapes\.0\.allReduce/],
    ['name.json', tableWith([{ algorithm: 'ring' }]), /shapes\.0\.allReduce\.0\.algorithm/],
  ] as const) {
    const file = content === undefined ? join(folder, name) : write(name, content);
    assert.throws(() => readTableFile(file), { code: 'WL_FILE', message: reason });
  }
  const option = { allReduce: [] };
  assert.throws(() => algorithmTable(shape, { option, file: '' }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /algorithms/,
  });
});

test('measured times become ranges; a gain that may be chance begins none', () => {
  assert.deepEqual(rangesOf(rowsOf({ 64: [1, 2], 1024: [3, 2.9], 16_384: [9, 5], 65_536: [20, 7] }), 'allReduce'), [
    { upToBytes: 4096, algorithm: 'oneStep' },
    { algorithm: 'shares' },
  ]);
  assert.deepEqual(rangesOf(rowsOf({ 64: [1, 2] }), 'allReduce'), [{ algorithm: 'oneStep' }]);
});

test('a table takes the place of the one for as many ranks and hosts', () => {
  const first = withTable(withTable(undefined, reportOf(4, 'oneStep')), reportOf(8, 'shares'));
  const then = withTable(first, reportOf(4, 'chain'));
  assert.deepEqual(
    then.shapes.map(({ ranks, allReduce }) => [ranks, allReduce[0]!.algorithm]),
    [
      [8, 'shares'],
      [4, 'chain'],
    ],
  );
  assert.deepEqual(readTableFile(write('written.json', then)), then);
});

function tableWith(allReduce: readonly unknown[]): unknown {
  const reduce = [{ algorithm: 'shares' }];
  return { schema: 'weftline.collectives.table/1', shapes: [{ ranks: 4, hosts: 1, allReduce, reduce }] };
}

function reportOf(ranks: number, algorithm: AlgorithmName): TuneReport {
  const table = { allReduce: [{ algorithm }], reduce: [{ algorithm }] };
  return { schema: 'weftline.bench.collectives.tune/1', ranks, hosts: 1, rounds: 1, rows: [], table };
}
