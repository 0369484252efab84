import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { launch } from 'weftline/world';
import { freePort } from '../support/free-port.ts';
import { resultOf, runRanks } from './support/run-ranks.js';
import { until } from '../support/until.ts';
import { sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const worldRank = new URL('./support/world-rank.js', import.meta.url);
const printRank = fileURLToPath(new URL('./support/print-rank.js', import.meta.url));

interface Rank {
  readonly pid: number;
  readonly grandchild: number;
  readonly prefix: string;
}

/** A zombie that waits for its parent to look does not count. */
function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

const filesOf = (prefix: string) => readdirSync('/dev/shm').filter((name) => name.startsWith(prefix));

interface Started {
  readonly child: ChildProcess;
  readonly output: { text: string };
}

/** Starts a script in this environment and collects its output. */
function start(args: readonly string[], variables: Readonly<Record<string, string>> = {}): Started {
  const env = { ...process.env, ...variables, NODE_TEST_CONTEXT: undefined };
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'], env });
  const output = { text: '' };
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output.text += String(chunk)));
  return { child, output };
}

const weftline = (args: readonly string[]) => start([main, ...args]);

const exitOf = (child: ChildProcess) => new Promise<number | null>((resolve) => child.once('close', resolve));

function ranksIn(text: string): Rank[] {
  return [...text.matchAll(/\{"pid".*\}/g)].map(([json]) => JSON.parse(json) as Rank);
}

test('weftline run prefixes whole lines of each rank, the unfinished last one too', { timeout: 600_000 }, async () => {
  const { child, output } = weftline(['run', '-n', '4', printRank]);
  assert.equal(await exitOf(child), 0, output.text);
  const lines = output.text.trimEnd().split('\n');
  for (const rank of [0, 1, 2, 3]) {
    const own = lines.filter((line) => line.startsWith(`[${rank}] `)).map((line) => line.slice(4));
    const expected = Array.from({ length: 20 }, (_, line) => `${rank}.${line} `.repeat(5));
    assert.deepEqual(
      own.filter((line) => /^\d/.test(line)),
      expected,
    );
    assert.ok(own.includes(`error of ${rank}`) && own.includes(`last of ${rank} ü`), output.text);
  }
  assert.equal(lines.length, 4 * 22);
});

test("weftline run leaves a script's own options to it and needs -n", { timeout: 600_000 }, async () => {
  const echo = ['-e', 'console.log(process.argv.slice(1).join())', '--', '-n', '9', '--help'];
  const { child, output } = weftline(['run', '-n', '2', process.execPath, ...echo]);
  assert.equal(await exitOf(child), 0, output.text);
  assert.deepEqual(output.text.trim().split('\n').toSorted(), ['[0] -n,9,--help', '[1] -n,9,--help']);
  for (const args of [['run', printRank], ['run', '-n', '0', printRank], ['walk']]) {
    const wrong = weftline(args);
    assert.equal(await exitOf(wrong.child), 2);
    assert.match(wrong.output.text, /^error: /);
  }
});

test(
  'a rank that is killed takes the job down: exit code, processes, shared memory',
  { timeout: 600_000 },
  async () => {
    const { exitCode, ranks, notices, transcript } = await runRanks(3, worldRank, {
      args: ['forever', '1'],
      graceMs: 50,
    });
    assert.equal(exitCode, 137, transcript);
    assert.match(
      notices.join('\n'),
      /^the job failed: rank 1 \(process \d+ on .+\) ended with signal SIGKILL at .+Z\n {2}stopped: ranks 0, 2$/,
    );
    assert.deepEqual(
      ranks.map(({ signal, stopped }) => ({ signal, stopped })),
      [
        { signal: 'SIGTERM', stopped: true },
        { signal: 'SIGKILL', stopped: false },
        { signal: 'SIGTERM', stopped: true },
      ],
    );
    const started = ranksIn(transcript);
    assert.equal(started.length, 3);
    for (const { pid, grandchild, prefix } of started) {
      assert.ok(!isAlive(pid) && !isAlive(grandchild), `${pid} and ${grandchild} are gone`);
      assert.deepEqual(filesOf(prefix), []);
    }
  },
);

test('a launcher that is killed leaves no rank, no grandchild, no shared memory', { timeout: 600_000 }, async () => {
  const { child, output } = weftline(['run', '-n', '3', fileURLToPath(worldRank), 'forever']);
  await until(() => output.text.split('started').length === 4);
  const started = ranksIn(output.text);
  assert.equal(started.length, 3, output.text);
  // A file of each rank, and the launcher's folder.
  assert.ok(
    started.every(({ pid, grandchild, prefix }) => isAlive(pid) && isAlive(grandchild) && filesOf(prefix).length === 4),
  );
  child.kill('SIGKILL');
  await until(() => started.every(({ pid, grandchild }) => !isAlive(pid) && !isAlive(grandchild)));
  await until(() => started.every(({ prefix }) => filesOf(prefix).length === 0));
});

for (const signal of sampled(['SIGTERM', 'SIGINT', 'SIGHUP'] as const, 1)) {
  test(`${signal} of the launcher reaches every rank, which may end in order`, { timeout: 600_000 }, async () => {
    const { child, output } = weftline(['run', '-n', '2', fileURLToPath(worldRank), 'interrupted']);
    await until(() => output.text.split('ready').length === 3);
    child.kill(signal);
    assert.equal(await exitOf(child), 0, output.text);
    assert.equal(output.text.split(`{"got":"${signal}"}`).length, 3, output.text);
  });
}

test('SIGINT ends ranks that do not handle it, with exit code 130', { timeout: 600_000 }, async () => {
  const { child, output } = weftline(['run', '-n', '2', fileURLToPath(worldRank), 'forever']);
  await until(() => output.text.split('started').length === 3);
  child.kill('SIGINT');
  assert.equal(await exitOf(child), 130, output.text);
  assert.match(output.text, /^weftline: the job was stopped by SIGINT$/m);
  assert.doesNotMatch(output.text, /the job failed/);
  for (const { pid, grandchild } of ranksIn(output.text)) assert.ok(!isAlive(pid) && !isAlive(grandchild));
});

test('launch() says what cannot be started and what is not allowed', async () => {
  const cases = [
    {
      options: { command: ['/no/such/program'], ranks: 2 },
      code: 'WL_LAUNCH',
      message: /Cannot start .*no\/such\/program/,
    },
    { options: { command: ['x.js'], ranks: 0 }, code: 'WL_INVALID_ARGUMENT', message: /ranks: expected .*, got 0/ },
    { options: { command: [], ranks: 1 }, code: 'WL_INVALID_ARGUMENT', message: /command/ },
    { options: { command: ['x.js'], ranks: 1, nodeCount: 2 }, code: 'WL_INVALID_ARGUMENT', message: /master/ },
    { options: { command: ['x.js'], ranks: 1, rawRank: 1 }, code: 'WL_INVALID_ARGUMENT', message: /rawRank/ },
    {
      options: {
        command: ['x.js'],
        ranks: 1,
        nodeCount: 2,
        master: { host: 'a', port: 1 },
        env: { WEFTLINE_TOKEN: '' },
      },
      code: 'WL_CONFIG',
      message: /WEFTLINE_TOKEN/,
    },
  ];
  for (const { options, code, message } of cases) await assert.rejects(launch(options), { code, message });
});

test('an aborted launch() stops the ranks and rejects with the reason', { timeout: 600_000 }, async () => {
  const abort = new AbortController();
  const lines: string[] = [];
  const job = launch({
    command: [fileURLToPath(worldRank), 'forever'],
    ranks: 2,
    signal: abort.signal,
    onLine: ({ text }) => {
      lines.push(text);
      if (lines.filter((line) => line === 'started').length === 2) abort.abort(new Error('enough'));
    },
  });
  await assert.rejects(job, { message: 'enough' });
  for (const { pid } of ranksIn(lines.join('\n'))) assert.ok(!isAlive(pid));
});

test('two launchers form one world over --master', { timeout: 600_000 }, async () => {
  const port = await freePort();
  const node = (nodeRank: number) =>
    launch({
      command: [fileURLToPath(worldRank), 'all'],
      ranks: 2,
      nodeCount: 2,
      nodeRank,
      master: { host: '127.0.0.1', port },
      env: { WEFTLINE_TOKEN: 'shared secret' },
      onLine: ({ rank, stream, text }) => stream === 'stdout' && output.set(rank, text),
    });
  const output = new Map<number, string>();
  const results = await Promise.all([node(0), node(1)]);
  assert.deepEqual(
    results.map(({ exitCode }) => exitCode),
    [0, 0],
  );
  const jobs = [0, 1, 2, 3].map((rank) => {
    const { facts } = JSON.parse(output.get(rank) ?? '') as { readonly facts: Readonly<Record<string, unknown>> };
    assert.equal(facts['rank'], rank);
    return facts['jobId'];
  });
  assert.equal(new Set(jobs).size, 1);
});

test('withRanks() starts copies of its own command line, rank 0 without prefix', { timeout: 600_000 }, async () => {
  const { child, output } = start([fileURLToPath(new URL('./support/with-ranks-rank.js', import.meta.url))]);
  assert.equal(await exitOf(child), 0, output.text);
  assert.deepEqual(output.text.trim().split('\n').toSorted(), [
    '[1] rank 1 sees 0,1,2, terminal 1',
    '[2] rank 2 sees 0,1,2, terminal 2',
    'rank 0 sees 0,1,2, terminal 0',
  ]);
});

test(
  'withRanks() prints an error once, at the rank where it began, and ends all ranks',
  { timeout: 600_000 },
  async () => {
    const script = fileURLToPath(new URL('./support/with-ranks-rank.js', import.meta.url));
    const { child, output } = start([script, 'fail']);
    assert.equal(await exitOf(child), 1, output.text);
    assert.match(output.text, /^\[1\] weftline: Error: on purpose$/m);
    // The launcher's summary would only repeat it.
    assert.equal(output.text.match(/on purpose/g)?.length, 1, output.text);
    assert.doesNotMatch(output.text, /the job failed/);
  },
);

test('ranks of torchrun meet, a second process with a used number is refused', { timeout: 600_000 }, async () => {
  const port = await freePort('localhost');
  const of = (rank: number) => ({ RANK: `${rank}`, WORLD_SIZE: '2', MASTER_ADDR: 'localhost', MASTER_PORT: `${port}` });
  const ranks = [0, 1].map((rank) => start([fileURLToPath(worldRank), 'interrupted'], of(rank)));
  await until(() => ranks.every(({ output }) => output.text.includes('ready')));
  for (const rank of [0, 1]) {
    const second = start([fileURLToPath(worldRank), 'all'], of(rank));
    assert.equal(await exitOf(second.child), 1);
    const holder = ranks[rank]?.child.pid;
    assert.match(second.output.text, new RegExp(`Rank ${rank} of this job is used by process ${holder} on `));
    assert.match(second.output.text, /code: 'WL_RANK_TAKEN'/);
  }
  const ends = ranks.map(({ child }) => exitOf(child));
  for (const { child } of ranks) child.kill('SIGTERM');
  assert.deepEqual(await Promise.all(ends), [0, 0]);
});

test('a rank may be any program, and sees its number', { timeout: 600_000 }, async () => {
  const lines: string[] = [];
  const { exitCode } = await launch({
    command: ['/bin/sh', '-c', 'echo $WEFTLINE_RANK of $WEFTLINE_WORLD_SIZE; exit $WEFTLINE_RANK'],
    ranks: 2,
    onLine: ({ text }) => lines.push(text),
    onNotice: () => {},
  });
  assert.deepEqual(lines.toSorted(), ['0 of 2', '1 of 2']);
  assert.equal(exitCode, 1);
  assert.equal(resultOf(undefined), null);
});
