// Tests which failure a job is said to have ended of, and how much is printed of it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { launch } from 'weftline/world';
import { runRanks } from './support/run-ranks.js';
import { isWhole, sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const script = new URL('./support/failing-rank.js', import.meta.url);

function run(ranks: number, ...words: readonly string[]) {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  const command = [main, 'run', '-n', String(ranks), fileURLToPath(script), ...words];
  return spawnSync(process.execPath, command, { encoding: 'utf8', env, timeout: 600_000 });
}

for (const { way, code, how } of [
  { way: 'throw', code: 1, how: 'exit code 1' },
  { way: 'exit', code: 3, how: 'exit code 3' },
  { way: 'kill', code: 137, how: 'signal SIGKILL' },
] as const) {
  test(
    `the exit code and the rank that is named are those of the first failure: ${way}`,
    { timeout: 600_000 },
    async () => {
      for (const round of sampled([1, 0, 2, 3], 1)) {
        const failing = round % 3;
        const { exitCode, notices, transcript } = await runRanks(3, script, { args: [way, String(failing)] });
        assert.equal(exitCode, code, transcript);
        assert.ok(notices[0]?.startsWith(`the job failed: rank ${failing} (process `), transcript);
        assert.ok(notices[0]?.includes(` ended with ${how} at `), transcript);
        assert.equal(notices.length, 1, transcript);
      }
    },
  );
}

test('one bad argument on 8 ranks prints one stack and a summary', { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = run(8, 'argument');
  assert.equal(status, 1, stderr);
  assert.equal(stdout, '');
  assert.match(stderr, /^\[\d\] weftline: rank \d: WL_INVALID_ARGUMENT: .*hidden/m);
  assert.match(stderr, /^weftline: the job failed: rank \d .* ended with exit code 1 at /m);
  assert.match(stderr, /^ {2}first error: WL_INVALID_ARGUMENT: .*hidden/m);
  assert.doesNotMatch(stderr, /undefined/);
  assert.equal(stderr.match(/failing-rank\.js/g)?.length, 1, stderr);
  assert.ok(stderr.split('\n').length <= 20, stderr);
});

test('ranks that throw before join() print one stack and a summary', { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = run(4, 'early');
  assert.equal(status, 1, stderr);
  assert.equal(stdout, '');
  assert.match(stderr, /^\[(\d)\] TypeError: on purpose, before join\(\)\n\[\1\] +at .*failing-rank/m);
  assert.match(stderr, /^weftline: the job failed: rank \d .* ended with exit code 1 at /m);
  assert.match(stderr, /^ {2}first error: TypeError: on purpose, before join\(\)$/m);
  assert.doesNotMatch(stderr, /undefined/);
  assert.equal(stderr.match(/^\[\d\] TypeError/gm)?.length, 1, stderr);
  assert.ok(stderr.split('\n').length <= 20, stderr);
});

test('ranks behind a program that passes on no descriptors meet', { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = run(3, 'wrapped');
  assert.equal(status, 0, stderr);
  assert.deepEqual(stdout.trim().split('\n').toSorted(), ['[0] met 0,1,2', '[1] met 0,1,2', '[2] met 0,1,2']);
});

test('ranks that have all closed their worlds may join again: each time a new world', { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = run(3, 'lives');
  assert.deepEqual([status, stderr], [0, '']);
  const worlds = new Set(
    stdout
      .trim()
      .split('\n')
      .map((line) => line.slice('[0] '.length)),
  );
  assert.equal(worlds.size, 4, stdout);
  const ids = [...worlds].map((line) => line.split(' ')[1]);
  assert.equal(new Set(ids).size, 4, stdout);
});

test('a rank starts a job of its own by the variables', { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = run(1, 'inner');
  assert.deepEqual([status, stderr], [0, '']);
  assert.deepEqual(stdout, '[0] met 0,1\n[0] met 0,1\n');
});

for (const way of ['unclosed', 'exits']) {
  test(`ranks that end without world.close() end well: ${way}`, { timeout: 600_000 }, () => {
    for (let round = 0; round < (isWhole ? 2 : 1); round += 1) {
      const { status, stdout, stderr } = run(4, way);
      assert.deepEqual([status, stdout, stderr], [0, '', '']);
    }
  });
}

/** Ranks that never end; `interrupt` is called with the first line that a rank prints. */
async function interrupted(code: string, interrupt: () => void) {
  const notices: string[] = [];
  let isFirst = true;
  const { exitCode, ranks } = await launch({
    command: [process.execPath, '-e', code],
    ranks: 2,
    env: { NODE_TEST_CONTEXT: undefined },
    settings: { stopMs: 600_000 },
    onLine: () => {
      if (isFirst) setImmediate(interrupt);
      isFirst = false;
    },
    onNotice: (text) => void notices.push(text),
  });
  return { exitCode, ranks: ranks.length, notices };
}

test(
  'a second SIGINT kills ranks that ignore the first one, and both say who stopped the job',
  { timeout: 600_000 },
  async () => {
    const deaf = "process.on('SIGINT', () => console.log('no')); console.log('deaf'); setInterval(() => {}, 1000)";
    const { exitCode, notices } = await interrupted(deaf, () => {
      process.emit('SIGINT', 'SIGINT');
      process.emit('SIGINT', 'SIGINT');
    });
    assert.equal(exitCode, 130);
    assert.match(notices.join('\n'), /^the job was stopped by SIGINT\n {2}killed at the second SIGINT: ranks? [01]/);
  },
);

test('a signal while ranks are being started stops the job with 128 and its number', { timeout: 600_000 }, async () => {
  const notices: string[] = [];
  const ended = launch({
    command: [process.execPath, '-e', 'setInterval(() => {}, 1000)'],
    ranks: 2,
    onNotice: (text) => void notices.push(text),
  });
  // The launcher listens for signals by now, and serves its store before it starts a rank.
  process.emit('SIGTERM', 'SIGTERM');
  const { exitCode, ranks } = await ended;
  assert.deepEqual([exitCode, ranks.length, notices], [143, 0, ['the job was stopped by SIGTERM']]);
});

test('an interrupt in the pause before a restart ends the job', { timeout: 600_000 }, async () => {
  let starts = 0;
  const { exitCode } = await launch({
    command: [process.execPath, '-e', 'console.log("start"); process.exit(3)'],
    ranks: 1,
    env: { NODE_TEST_CONTEXT: undefined },
    maxRestarts: 20,
    onLine: () => (starts += 1),
    // As the handler of the signal, while no rank runs; the pause is 400 ms by now.
    onNotice: (text) => text.includes('(5 of 20)') && setImmediate(() => process.emit('SIGINT', 'SIGINT')),
  });
  assert.deepEqual([exitCode, starts], [3, 5]);
});
