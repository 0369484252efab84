// Jobs that go on without ranks and nodes that are lost: how many must be left, what their launchers say, and who serves the store.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePort } from '../support/free-port.js';
import { runRanks } from './support/run-ranks.ts';
import { isWhole } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const script = new URL('./ranks/world-shrink.js', import.meta.url);
const timeout = 600_000;

interface Running {
  readonly child: ChildProcess;
  readonly ended: Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>;
}

function start(words: readonly string[], env: Readonly<Record<string, string>>): Running {
  const child = spawn(process.execPath, words, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, WEFTLINE_TIMEOUT_MS: '120000', NODE_TEST_CONTEXT: undefined, ...env },
  });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (chunk) => (stdout += String(chunk)));
  child.stderr.on('data', (chunk) => (stderr += String(chunk)));
  return { child, ended: once(child, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr })) };
}

/** Launchers of two nodes with two ranks each. */
async function startNodes(...words: readonly string[]): Promise<[Running, Running]> {
  const master = `127.0.0.1:${await freePort()}`;
  const node = (rank: number): Running => {
    const where = ['-n', '2', '--nnodes', '2', '--node-rank', String(rank), '--master', master, '--grace', '100'];
    return start([main, 'run', ...where, ...words], { WEFTLINE_TOKEN: 'token of this test' });
  };
  return [node(0), node(1)];
}

/** What a launcher says of a rank that it goes on without. */
function goesOn(rank: number, left: number): string {
  return `rank ${rank} ended with signal SIGKILL; the job goes on with ${left} ranks, at least 2`;
}

test('a launcher starts nothing with a wrong --min-ranks', () => {
  for (const [flags, said] of [
    [['--min-ranks', '3'], /--min-ranks 3 is more than the 2 ranks of the job/],
    [['--min-ranks', '0'], /--min-ranks <count>.* invalid/],
    [['--min-ranks', '1', '--aggregators', '1'], /--min-ranks does not go with --aggregators/],
  ] as const) {
    const command = [main, 'run', '-n', '2', ...flags, fileURLToPath(script)];
    const { status, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8', timeout });
    assert.deepEqual([status, said.test(stderr)], [2, true], stderr);
  }
});

test('the ranks that are left end well, and so does the job', async () => {
  const { exitCode, ranks, notices, transcript } = await runRanks(4, script, { args: ['0,2'], minRanks: 2 });
  assert.equal(exitCode, 0, transcript);
  for (const rank of [1, 3]) assert.equal(ranks[rank]?.stdout.at(-1), 'left 1,3', transcript);
  const orders = [0, 2].map((rank) => [goesOn(rank, 3), goesOn(2 - rank, 2)].join());
  assert.ok(orders.includes(notices.join()), transcript);
});

test('ranks that were left out and hang do not keep the launcher', { timeout }, async () => {
  const options = { args: ['1,2', 'stop'], settings: { timeoutMs: 2_000, stopMs: 100 } };
  const { exitCode, ranks, transcript } = await runRanks(4, script, options);
  assert.equal(exitCode, 0, transcript);
  for (const rank of [0, 3]) assert.equal(ranks[rank]?.stdout.at(-1), 'left 0,3', transcript);
  for (const rank of [1, 2]) assert.equal(ranks[rank]?.signal, 'SIGKILL', transcript);
});

test('a job with fewer ranks than it needs fails with the first failure', async () => {
  const { exitCode, notices, transcript } = await runRanks(4, script, { args: ['0,2'], minRanks: 3 });
  assert.equal(exitCode, 137, transcript);
  assert.match(notices.at(-1)!, /^the job failed: rank [02] .* signal SIGKILL/, transcript);
});

test('a rank that is started again is of no group that was made before', async () => {
  const options = { args: ['1', 'twice'], minRanks: 3, maxRestarts: 1 };
  const { exitCode, ranks, transcript } = await runRanks(3, script, options);
  assert.equal(exitCode, 0, transcript);
  for (const rank of [0, 2]) assert.equal(ranks[rank]?.stdout.at(-1), 'left 0,2', transcript);
  assert.equal(ranks[1]?.stdout.at(-1), 'again: WL_INACTIVE', transcript);
});

test('a rank of another node dies: all launchers go on', { timeout }, async () => {
  const nodes = await startNodes('--min-ranks', '3', fileURLToPath(script), '3');
  const [first, second] = await Promise.all(nodes.map(({ ended }) => ended));
  assert.deepEqual([first?.code, second?.code], [0, 0], `${first?.stderr}${second?.stderr}`);
  assert.match(first!.stdout, /^\[0\] left 0,1,2$/m);
  assert.match(second!.stdout, /^\[2\] left 0,1,2$/m);
  assert.equal(first?.stderr, '');
  assert.equal(
    second?.stderr,
    'weftline: rank 3 ended with signal SIGKILL; the job goes on with 3 ranks, at least 3\n',
  );
});

// It takes as long as the ranks may take to meet.
for (const stopped of isWhole ? ['2,3'] : []) {
  test('a node whose ranks were left out and hang does not keep the job', { timeout }, async () => {
    const words = ['--timeout', '15000', '--stop', '100', fileURLToPath(script), stopped, 'stop'];
    const [first, second] = await Promise.all((await startNodes(...words)).map(({ ended }) => ended));
    assert.deepEqual([first?.code, second?.code], [0, 0], `${first?.stderr}${second?.stderr}`);
    assert.match(first!.stdout, /^\[1\] left 0,1$/m);
  });
}

for (const [minRanks, code, said] of [
  [2, 0, /^weftline: node 1 is lost; the job goes on with 2 ranks, at least 2\n$/],
  [3, 1, /^weftline: WL_PEER_LOST: The launcher of node 1 was lost: its connection broke before the ranks had ended$/m],
] as const) {
  test(`a node is lost with its launcher, and ${minRanks} ranks must be left`, { timeout }, async () => {
    const [left, lost] = await startNodes('--min-ranks', String(minRanks), fileURLToPath(script), 'none');
    // All ranks have met when one of that node says so.
    await Promise.all([once(left.child.stdout!, 'data'), once(lost.child.stdout!, 'data')]);
    lost.child.kill('SIGKILL');
    const ended = await left.ended;
    assert.equal(ended.code, code, ended.stderr);
    assert.match(ended.stderr, said);
    if (code === 0) for (const rank of [0, 1]) assert.match(ended.stdout, new RegExp(`^\\[${rank}\\] left 0,1$`, 'm'));
  });
}

for (const victim of [1, 0]) {
  test(`without a launcher that serves the store, rank ${victim} dies`, { timeout }, async () => {
    const port = String(await freePort());
    const ranks = [0, 1, 2].map((rank) =>
      start([fileURLToPath(script), String(victim)], {
        WEFTLINE_RANK: `${rank}`,
        WEFTLINE_LOCAL_RANK: `${rank}`,
        WEFTLINE_WORLD_SIZE: '3',
        WEFTLINE_LOCAL_WORLD_SIZE: '3',
        WEFTLINE_MASTER_ADDR: '127.0.0.1',
        WEFTLINE_MASTER_PORT: port,
      }),
    );
    const ended = await Promise.all(ranks.map((rank) => rank.ended));
    const others = [0, 1, 2].filter((rank) => rank !== victim);
    // With the rank that serves the store no other can agree on anything.
    const said = victim === 0 ? /^Rank 0, which holds the rendezvous store at .* was lost/m : /^left 0,2$/m;
    for (const rank of others) assert.match(ended[rank]!.stdout, said, ended[rank]?.stderr);
  });
}
