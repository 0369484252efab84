// EpLowLatency against its reference: random cases on real ranks, bit for bit; and what its ranks see when one fails.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test, { before, describe } from 'node:test';
import { resultOf, runRanks, type RunRanksOptions } from './support/run-ranks.ts';
import { environmentOf, topologies } from './support/topologies.ts';
import { isWhole, sampled } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';

const property = new URL('./ranks/low-latency-property.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run; the seed stands in every failure's output. */
const seed = String(testSeed());

for (const [ranks, runs] of [
  [1, 15],
  ...(isWhole ? ([[2, 15]] as const) : []),
  [3, 10],
  ...(isWhole ? ([[4, 10]] as const) : []),
] as const) {
  const cases = isWhole ? 8 * runs : runs;
  test(`${cases} random cases on ${ranks} ranks agree with the reference`, async () => {
    const args = [String(cases), seed];
    const { exitCode, transcript } = await runRanks(ranks, property, { args, timeoutMs: 600_000 });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
    assert.deepEqual(
      readdirSync('/dev/shm').filter((name) => name.includes(jobId)),
      [],
    );
  });
}

for (const topology of sampled([...topologies.slice(2, 5), ...topologies.slice(1, 2), ...topologies.slice(5)], 3)) {
  const cases = isWhole ? 60 : 8;
  test(`${cases} random cases on ${topology.name} agree with the reference`, async () => {
    const args = [String(cases), seed];
    const env = environmentOf(topology);
    const { exitCode, transcript } = await runRanks(topology.ranks, property, { args, env, timeoutMs: 600_000 });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

interface Failure {
  readonly code: string;
  readonly message: string;
}

const failing = new URL('./ranks/low-latency-failure.js', import.meta.url);

async function failures(scenario: string, ranks: number, options: RunRanksOptions = {}) {
  const run = await runRanks(ranks, failing, { graceMs: 60_000, ...options, args: [scenario] });
  return { ...run, failures: run.ranks.map((rank) => resultOf(rank) as Failure) };
}

for (const [scenario, hosts] of [
  ['killed between send and receive', '1'],
  ['killed before its rows', '1'],
  ['killed between send and receive', '2+1'],
  ['killed before its rows', '1+2'],
] as const) {
  test(`a rank that is ${scenario} ends the calls of the others, which name it, hosts ${hosts}`, async () => {
    const { failures: got, ranks, transcript } = await failures(scenario, 3, { env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(ranks[1]?.signal, 'SIGKILL', transcript);
    for (const rank of [0, 2]) {
      assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(got[rank]?.code ?? ''), transcript);
      assert.match(got[rank]?.message ?? '', /[Rr]ank 1\b/, transcript);
    }
  });
}

for (const hosts of ['1', '3']) {
  const name =
    'a rank that never comes is named, with the call and what is waited for, and hears that the others gave up';
  test(`${name}, hosts ${hosts}`, () => checkAbsent(hosts));
}

async function checkAbsent(hosts: string): Promise<void> {
  const { failures: got, transcript } = await failures('absent', 3, { env: { WEFTLINE_HOSTS: hosts } });
  const told = [got[0]!, got[2]!];
  for (const { message } of told) {
    // On a busy machine another one may be as late.
    const late = /Ranks? (\d, )*1\b[\d, ]* did not arrive within 400 ms; this rank waits in dispatch 1, for rows/;
    assert.match(message, late, transcript);
  }
  assert.ok(
    told.some(({ code }) => code === 'WL_TIMEOUT'),
    transcript,
  );
  assert.equal(got[1]?.code, 'WL_PEER_FAILED', transcript);
}

test('a rank of another host is not to blame for the rank that passes its rows on', async () => {
  const { failures: got, transcript } = await failures('absent between hosts', 3, { env: { WEFTLINE_HOSTS: '1+2' } });
  assert.equal(got[2]?.code, 'WL_TIMEOUT', transcript);
  assert.match(got[2].message, /^Rank 1 did not arrive within 400 ms/, transcript);
});

test('a rank hears that the one that passes rows of another host on gave up', async () => {
  const scenario = 'absent behind another rank';
  const { failures: got, transcript } = await failures(scenario, 3, { env: { WEFTLINE_HOSTS: '2+1' } });
  assert.equal(got[0]?.code, 'WL_TIMEOUT', transcript);
  assert.equal(got[1]?.code, 'WL_PEER_FAILED', transcript);
});

test('a rank may leave before its rows are passed on within another host', async () => {
  const scenario = 'left before its rows were passed on';
  const { failures: got, transcript } = await failures(scenario, 3, { env: { WEFTLINE_HOSTS: '1+2' } });
  for (const { code } of got) assert.equal(code, 'none', transcript);
});

describe('every rank hears what is wrong with a message of another host', () => {
  const forgeries = [
    ['too many tokens', /came with 9 tokens, expected 0 to 8/],
    ['a negative number of tokens', /came with -1 tokens, expected 0 to 8/],
    ['too many choices', /came with 3 choices for each token, expected 1 to 2/],
    ['an expert that is not there', /came with a choice at topkIdx\[0, 1\], expected an expert from 0 to 5/],
  ] as const;
  let told: readonly (readonly Failure[])[] = [];
  let all = '';

  before(async () => {
    const { ranks, transcript } = await runRanks(3, failing, {
      args: forgeries.map(([scenario]) => scenario),
      env: { WEFTLINE_HOSTS: '1+2' },
    });
    told = ranks.map(({ stdout }) => stdout.map((line) => JSON.parse(line) as Failure));
    all = transcript;
  });

  for (const [index, [scenario, message]] of forgeries.entries()) {
    test(scenario, () => {
      assert.equal(told[1]![index]?.code, 'WL_PROTOCOL', all);
      for (const rank of told) assert.match(rank[index]?.message ?? '', message, all);
      for (const rank of told) assert.match(rank[index]?.message ?? '', /Dispatch 1 of rank 0, on another host/, all);
    });
  }
});

const mistakes = [
  ['overflow', 'WL_CAPACITY', /Expert [02] got 4 rows in dispatch 1, more than its 3 \(maxTokensPerExpert\)/],
  ['overflow of one rank', 'WL_CAPACITY', /Expert 0 got 4 rows in dispatch 1, more than its 3 \(maxTokensPerExpert\)/],
  ['other format', 'WL_CONFIG_MISMATCH', /bf16 rows.*fp8 rows|fp8 rows.*bf16 rows/],
  ['other handle', 'WL_CONFIG_MISMATCH', /combine of dispatch 1.*combine of dispatch 2|dispatch 2.*dispatch 1/],
  [
    'bad choice',
    'WL_INVALID_ARGUMENT',
    /Invalid topkIdx\[1, 1\]( of rank 1)?: expected an expert from 0 to 3, or -1 for none(, got|;)/,
  ],
  ['other config', 'WL_CONFIG_MISMATCH', /different hidden: 16 on rank 0, 24 on rank 1/],
  ['wrong config', 'WL_INVALID_ARGUMENT', /Invalid maxTopk: expected 1 to 32, got 33/],
  ['big integer', 'WL_INVALID_ARGUMENT', /Invalid maxTokensPerRank: expected a whole number of at least 1, got/],
] as const;

// The ranks live on: one job has all of them.
for (const hosts of ['1', '2']) describe(`every rank hears why, hosts ${hosts}`, () => testMistakes(hosts));

function testMistakes(hosts: string): void {
  let told: readonly (readonly Failure[])[] = [];
  let all = '';

  before(async () => {
    const { exitCode, ranks, transcript } = await runRanks(2, failing, {
      args: mistakes.map(([scenario]) => scenario),
      env: { WEFTLINE_HOSTS: hosts },
    });
    assert.equal(exitCode, 0, transcript);
    told = ranks.map(({ stdout }) => stdout.map((line) => JSON.parse(line) as Failure));
    all = transcript;
  });

  for (const [index, [scenario, code, message]] of mistakes.entries()) {
    test(scenario, () => {
      const got = told.map((rank) => rank[index]!);
      assert.ok(
        got.some((one) => one.code === code),
        all,
      );
      for (const one of got) {
        assert.ok([code, 'WL_PEER_FAILED'].includes(one.code), all);
        assert.match(one.message, message, all);
      }
    });
  }
}

const overlapped = new URL('./ranks/low-latency-overlapped.js', import.meta.url);

for (const hosts of ['1', '2']) {
  const env = { WEFTLINE_HOSTS: hosts };

  test(`combines of one result do not wait for the hook of a combine of another, hosts ${hosts}`, async () => {
    const { exitCode, transcript } = await runRanks(2, overlapped, { args: ['hooks'], env });
    assert.equal(exitCode, 0, transcript);
  });

  test(`ranks may call the hooks of a combine and of the next dispatch in any order, hosts ${hosts}`, async () => {
    const { exitCode, transcript } = await runRanks(hosts === '1' ? 2 : 4, overlapped, { args: ['opposite'], env });
    assert.equal(exitCode, 0, transcript);
  });

  test(`a rank may ask alone for the memory of its next combine, hosts ${hosts}`, async () => {
    const alone = new URL('./ranks/low-latency-alone.js', import.meta.url);
    const { exitCode, transcript } = await runRanks(hosts === '1' ? 3 : 4, alone, { env });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const hosts of ['2', '1+3', '4']) {
  test(`a call is one message to each other host, with one row per token, hosts ${hosts}`, async () => {
    const messages = new URL('./ranks/low-latency-messages.js', import.meta.url);
    const { exitCode, transcript } = await runRanks(4, messages, { env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(exitCode, 0, transcript);
  });
}

test('an engine that cannot be made leaves nothing open to other hosts', async () => {
  // Links that are open keep the process alive.
  const { failures: got, transcript } = await failures('no engine', 2, {
    env: { WEFTLINE_HOSTS: '2' },
    timeoutMs: 120_000,
  });
  for (const { message } of got) assert.equal(message, 'no engine', transcript);
});

test('arguments that cannot be are refused at once, and later calls work', async () => {
  const { failures: got, transcript } = await failures('arguments', 2);
  assert.deepEqual(got, ['refused', 'refused'], transcript);
});
