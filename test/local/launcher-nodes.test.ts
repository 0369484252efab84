// One job of several launchers: they meet at --master, end together, and name the failure of any node.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join as joinPath } from 'node:path';
import { createInterface } from 'node:readline';
import { PassThrough, type Readable } from 'node:stream';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { launch } from 'weftline/world';
import { freePort } from '../support/free-port.js';
import { addresses, machines, TwoMachines, whyNotTwoMachines } from '../support/two-machines.js';
import { until } from '../support/until.js';
import { skipWithout } from './support/requirements.js';
import { sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const failingRank = fileURLToPath(new URL('./support/failing-rank.js', import.meta.url));
const timeout = 600_000;
const machineOptions = { skip: skipWithout('namespaces', whyNotTwoMachines()), timeout };
const token = { WEFTLINE_TOKEN: 'token of this test' };

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

interface Launcher {
  readonly child: ChildProcess;
  readonly ended: Promise<Ended>;
}

function start(nodeRank: number, master: string, ...words: readonly string[]): Launcher {
  const command = [main, 'run', '-n', '2', '--nnodes', '2', '--node-rank', String(nodeRank), '--master', master];
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, ...token };
  const child = spawn(process.execPath, [...command, ...words], { stdio: ['ignore', 'pipe', 'pipe'], env });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk) => (stdout += String(chunk)));
  child.stderr.on('data', (chunk) => (stderr += String(chunk)));
  const ended = new Promise<Ended>((resolve) => child.once('close', (code) => resolve({ code, stdout, stderr })));
  return { child, ended };
}

async function runNodes(host: string, ...words: readonly string[]): Promise<Ended[]> {
  const master = `${host}:${await freePort(host.replaceAll(/[[\]]/g, ''))}`;
  return Promise.all([0, 1].map((nodeRank) => start(nodeRank, master, ...words).ended));
}

/** Resolves when a launcher has written something. Fails if it ends before: a wait for its output would never end. */
async function untilOutput({ child, ended }: Launcher): Promise<void> {
  const early = ended.then(({ code, stderr }) => assert.fail(`the launcher ended with exit code ${code}\n${stderr}`));
  await Promise.race([once(child.stdout!, 'data'), early]);
  // It may end badly from here on.
  early.catch(() => {});
}

const folder = mkdtempSync(joinPath(tmpdir(), 'weftline-test-'));

for (const [flags, expected] of [
  [['--nnodes', '2'], /--nnodes 2 needs --master HOST:PORT/],
  [['--nnodes', '2', '--node-rank', '2', '--master', '127.0.0.1:29500'], /--node-rank 2 is not below --nnodes, 2/],
  [['--max-restarts', '2'], /--max-restarts needs --elastic/],
  [['--node-rank', '1'], /--node-rank 1 is not below --nnodes, 1/],
] as const) {
  test(`a launcher starts nothing with ${flags.join(' ')}`, () => {
    const command = [main, 'run', '-n', '1', ...flags, failingRank, 'meet'];
    const { status, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8', timeout });
    assert.deepEqual([status, expected.test(stderr)], [2, true], stderr);
  });
}

for (const host of ['127.0.0.1', '[::1]']) {
  test(`two launchers form one world at ${host}`, { timeout }, async () => {
    const ended = await runNodes(host, failingRank, 'meet');
    assert.deepEqual(
      ended.map(({ code, stdout, stderr }) => [code, stdout.trim().split('\n').toSorted(), stderr]),
      [
        [0, ['[0] met 0,1,2,3', '[1] met 0,1,2,3'], ''],
        [0, ['[2] met 0,1,2,3', '[3] met 0,1,2,3'], ''],
      ],
    );
  });
}

for (const failing of sampled([3, 1], 1)) {
  test(`a failure of rank ${failing} ends both nodes with its exit code`, { timeout }, async () => {
    for (const { code, stderr } of await runNodes(
      '127.0.0.1',
      '--grace',
      '300',
      failingRank,
      'alone',
      String(failing),
    )) {
      assert.equal(code, 3, stderr);
      assert.match(stderr, new RegExp(`^weftline: the job failed: rank ${failing} .* ended with exit code 3 at `, 'm'));
      assert.doesNotMatch(stderr, /undefined/);
    }
  });
  test(`ranks that fail because of rank ${failing} of another node do not hide it`, { timeout }, async () => {
    for (const { code, stderr } of await runNodes(
      '127.0.0.1',
      '--grace',
      '30000',
      failingRank,
      'exit',
      String(failing),
    )) {
      assert.equal(code, 3, stderr);
      assert.match(stderr, new RegExp(`^weftline: the job failed: rank ${failing} .* ended with exit code 3 at `, 'm'));
    }
  });
}

test('a node whose ranks have ended well waits for the others, and fails with them', { timeout }, async () => {
  const file = joinPath(folder, 'pid');
  // Rank 3 fails once rank 0 has ended.
  const script = `case $WEFTLINE_RANK in
    0) echo $$ > ${file}.draft; mv ${file}.draft ${file} ;;
    3) until [ -e ${file} ]; do sleep 0.05; done; while kill -0 $(cat ${file}) 2> /dev/null; do sleep 0.05; done; exit 4 ;;
  esac`;
  for (const { code, stderr } of await runNodes('127.0.0.1', '/bin/sh', '-c', script)) {
    assert.equal(code, 4, stderr);
    assert.match(stderr, /^weftline: the job failed: rank 3 .* ended with exit code 4 at /);
  }
});

for (const killed of sampled([0, 1], 1)) {
  test(`the launcher of node ${killed} that is killed ends the other one`, { timeout }, async () => {
    const master = `127.0.0.1:${await freePort()}`;
    const words = ['--timeout', '60000', '--grace', '100', failingRank, 'stay'];
    const launchers = [0, 1].map((nodeRank) => start(nodeRank, master, ...words));
    // The launchers meet while their ranks start.
    await Promise.all(launchers.map(untilOutput));
    launchers[killed]?.child.kill('SIGKILL');
    const left = await launchers[1 - killed]?.ended;
    assert.equal(left?.code, 1, left?.stderr);
    assert.match(left.stderr, /^weftline: WL_(PEER_LOST|TIMEOUT): .*launcher .*node/m);
  });
}

test('a launcher whose ranks have ended passes a signal on to the other node, which ends', { timeout }, async () => {
  const master = `127.0.0.1:${await freePort()}`;
  const words = ['--timeout', '120000', '--grace', '100', failingRank, 'half'];
  const [first, second] = [start(0, master, ...words), start(1, master, ...words)];
  const output = new PassThrough();
  first.child.stdout?.pipe(output);
  await untilGone(await processes(output));
  first.child.kill('SIGINT');
  const [stopped, left] = await Promise.all([first.ended, second.ended]);
  for (const { code, stderr } of [stopped, left]) {
    assert.equal(code, 130, stderr);
    assert.match(stderr, /^weftline: the job was stopped by SIGINT$/m);
  }
});

test('launch() that waits for another node rejects when it is aborted', { timeout }, async () => {
  const port = await freePort();
  const other = start(1, `127.0.0.1:${port}`, '--timeout', '120000', '--grace', '100', failingRank, 'half');
  const output = new PassThrough();
  const abort = new AbortController();
  Object.assign(process.env, token);
  const launched = launch({
    command: [process.execPath, failingRank, 'half'],
    ranks: 2,
    nodeCount: 2,
    nodeRank: 0,
    master: { host: '127.0.0.1', port },
    env: { NODE_TEST_CONTEXT: undefined },
    settings: { graceMs: 100 },
    forwardSignals: false,
    signal: abort.signal,
    onLine: ({ text }) => void output.write(`${text}\n`),
  });
  const rejected = assert.rejects(launched, { message: 'enough' });
  // One that fails before writes nothing more, and says why below.
  void rejected.catch(() => {}).finally(() => output.end());
  await untilGone(await processes(output));
  abort.abort(new Error('enough'));
  await rejected;
  assert.equal((await other.ended).code, 1);
});

/** The process numbers that both ranks of a node print; fewer if the output ends before. */
async function processes(output: Readable): Promise<number[]> {
  const found: number[] = [];
  for await (const line of createInterface({ input: output })) {
    if (found.push(Number(/process (\d+)$/.exec(line)?.[1])) === 2) break;
  }
  return found;
}

async function untilGone(pids: readonly number[]): Promise<void> {
  for (const pid of pids) await until(() => !isRunning(pid), `the end of process ${pid}`);
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

test('a launcher with a taken --node-rank is told of it', { timeout }, async () => {
  const master = `127.0.0.1:${await freePort()}`;
  const words = ['--grace', '100', failingRank, 'stay'];
  const launchers = [0, 1].map((nodeRank) => start(nodeRank, master, ...words));
  await Promise.all(launchers.map(untilOutput));
  const second = await start(1, master, ...words).ended;
  assert.equal(second.code, 1, second.stderr);
  const holder = launchers[1]?.child.pid;
  assert.match(
    second.stderr,
    new RegExp(
      `^weftline: WL_RANK_TAKEN: Node 1 of this job is used by .*${holder} on .*: give each launcher its own --node-rank$`,
      'm',
    ),
  );
  assert.doesNotMatch(second.stderr, /the job failed: rank/);
  for (const { child } of launchers) child.kill('SIGTERM');
  await Promise.all(launchers.map(({ ended }) => ended));
});

test('a node that never comes is named', { timeout }, async () => {
  const master = `127.0.0.1:${await freePort()}`;
  const words = ['--timeout', '3000', '/bin/true'];
  const [first, second] = [await start(0, master, ...words).ended, await start(1, master, ...words).ended];
  assert.deepEqual([first.code, second.code], [1, 1]);
  assert.match(
    first.stderr,
    /^weftline: WL_TIMEOUT: No launcher came for node 1 within 3000 ms: start weftline run on each/,
  );
  assert.match(
    second.stderr,
    /^weftline: WL_TIMEOUT: The launcher of node 1 could not reach the launcher of node 0 at /,
  );
});

test('two machines form one world, and a failure on one ends both', machineOptions, async () => {
  using two = await TwoMachines.create();
  const run = (...words: readonly string[]) =>
    Promise.all(
      machines.map((machine, nodeRank) => {
        const node = ['-n', '2', '--nnodes', '2', '--node-rank', String(nodeRank), '--master', `${addresses.a}:29500`];
        return two.start(machine, [main, 'run', ...node, ...words], token).ended;
      }),
    );
  const met = await run(failingRank, 'meet');
  assert.deepEqual(
    met.map(({ code, stdout, stderr }) => [code, stdout.trim().split('\n').toSorted(), stderr]),
    [
      [0, ['[0] met 0,1,2,3', '[1] met 0,1,2,3'], ''],
      [0, ['[2] met 0,1,2,3', '[3] met 0,1,2,3'], ''],
    ],
  );
  for (const { code, stderr } of await run('--grace', '100', failingRank, 'alone', '2')) {
    assert.equal(code, 3, stderr);
    assert.match(stderr, /^weftline: the job failed: rank 2 .* ended with exit code 3 at /m);
  }
});

test('hosts link where the name of the master is a loopback address on its own host', machineOptions, async () => {
  using two = await TwoMachines.create();
  for (const [machine, address] of [
    ['a', '127.0.1.1'],
    ['b', addresses.a],
  ] as const) {
    const hosts = joinPath(folder, `hosts-${machine}`);
    writeFileSync(hosts, `127.0.0.1 localhost\n${address} node-a\n`);
    two.run(machine, `mount --bind ${hosts} /etc/hosts`);
  }
  const ended = await Promise.all(
    machines.map((machine, nodeRank) => {
      const node = ['-n', '1', '--nnodes', '2', '--node-rank', String(nodeRank), '--master', 'node-a:29500'];
      return two.start(machine, [main, 'run', ...node, failingRank, 'buffer'], token).ended;
    }),
  );
  assert.deepEqual(
    ended.map(({ code, stdout, stderr }) => [code, stdout, stderr]),
    [
      [0, '[0] linked\n', ''],
      [0, '[1] linked\n', ''],
    ],
  );
});
