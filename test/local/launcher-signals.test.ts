// Signals to a launcher end the ranks of all nodes whatever they do: first as they are, after a time or a second one as SIGKILL.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { folderUntilExit } from '../support/folder-until-exit.js';
import { freePort } from '../support/free-port.js';
import { until } from '../support/until.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const copies = fileURLToPath(new URL('./support/with-ranks-rank.js', import.meta.url));
const timeout = 600_000;
const folder = folderUntilExit('weftline-test-');

/** Says its process number; "busy" handles the signal but never gets to it, "polite" counts signals and ends at a file. */
const script = `${folder}/rank.mjs`;
writeFileSync(
  script,
  `import { existsSync } from 'node:fs';
const [, , how, file] = process.argv;
let signals = 0;
process.on('SIGTERM', () => console.log('signals', ++signals));
console.log('process', process.pid);
if (how === 'busy') for (;;);
setInterval(() => how === 'polite' && existsSync(file) && process.exit(0), 5);
`,
);

interface Launcher {
  readonly child: ChildProcess;
  readonly ended: Promise<number | null>;
  readonly text: string;
  readonly ranks: readonly number[];
}

function start(words: readonly string[], env: Readonly<Record<string, string>> = {}): Launcher {
  const child = spawn(process.execPath, words, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, WEFTLINE_TOKEN: 'token of this test', ...env },
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (text += String(chunk)));
  return {
    child,
    ended: new Promise((resolve) => child.once('close', resolve)),
    get text() {
      return text;
    },
    get ranks() {
      return [...text.matchAll(/process (\d+)\n/g)].map(([, pid]) => Number(pid));
    },
  };
}

/** The exit code of a launcher that was told to end: of the signal that it got, not of the one that ended its ranks. */
const BY_SIGTERM = 128 + constants.signals.SIGTERM;

/** One launcher with two ranks, or two with one rank each; resolves when both ranks run. */
async function startNodes(nodes: 1 | 2, ...words: readonly string[]): Promise<Launcher[]> {
  const master = `127.0.0.1:${await freePort()}`;
  const launchers = Array.from({ length: nodes }, (_, node) => {
    const several = ['--nnodes', '2', '--node-rank', String(node), '--master', master];
    return start([main, 'run', '-n', String(2 / nodes), ...(nodes === 1 ? [] : several), ...words]);
  });
  await ranksOf(launchers);
  return launchers;
}

async function ranksOf(launchers: readonly Launcher[], count = 2): Promise<number[]> {
  const ranks = (): number[] => launchers.flatMap((launcher) => launcher.ranks);
  await until(() => ranks().length === count, 'the start of all ranks');
  return ranks();
}

/** The exit codes, once the launchers have ended; no rank may be left then. */
async function endOf(launchers: readonly Launcher[]): Promise<(number | null)[]> {
  const codes = await Promise.all(launchers.map(({ ended }) => ended));
  for (const pid of launchers.flatMap(({ ranks }) => ranks)) {
    assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' }, `rank ${pid} lives`);
  }
  return codes;
}

for (const nodes of [1, 2] as const) {
  for (const state of ['busy', 'stopped'] as const) {
    test(
      `${state} ranks of ${nodes} nodes are killed some time after one SIGTERM to one launcher`,
      { timeout },
      async () => {
        const launchers = await startNodes(nodes, '--stop', '300', script, state);
        if (state === 'stopped') for (const pid of await ranksOf(launchers)) process.kill(pid, 'SIGSTOP');
        launchers.at(-1)?.child.kill('SIGTERM');
        const codes = await endOf(launchers);
        const text = launchers.map((launcher) => launcher.text).join('');
        assert.deepEqual(
          codes,
          Array.from({ length: nodes }, () => BY_SIGTERM),
          text,
        );
        assert.match(text, /^weftline: not ended within 300 ms of SIGTERM \(setting stopMs\), and killed: rank/m);
      },
    );
  }
}

test(
  'the first signal goes once to the ranks of both nodes, a second one to one launcher kills all',
  { timeout },
  async () => {
    const file = `${folder}/end`;
    const launchers = await startNodes(2, '--stop', '600000', script, 'polite', file);
    const told = (count: number): boolean => launchers.every(({ text }) => text.includes(`signals ${count}\n`));
    launchers[1]?.child.kill('SIGTERM');
    // The launchers have met by then: else they would not wait for each other at the end.
    await until(() => told(1), 'the first signal at both ranks');
    // As where a terminal sends it to both: the first of this launcher, and the same one to the ranks.
    launchers[0]?.child.kill('SIGTERM');
    writeFileSync(file, '');
    const codes = await endOf(launchers);
    assert.deepEqual([codes, told(2)], [[0, 0], false], launchers.map(({ text }) => text).join(''));

    rmSync(file);
    const others = await startNodes(2, '--stop', '600000', script, 'polite', file);
    others[1]?.child.kill('SIGTERM');
    await until(() => others.every(({ text }) => text.includes('signals 1\n')), 'the first signal at both ranks');
    others[1]?.child.kill('SIGTERM');
    assert.deepEqual(await endOf(others), [BY_SIGTERM, BY_SIGTERM], others.map(({ text }) => text).join(''));
  },
);

test('commands that start their own ranks kill them after the time of WEFTLINE_STOP_MS', { timeout }, async () => {
  const launcher = start([copies, 'busy'], { WEFTLINE_STOP_MS: '300' });
  await ranksOf([launcher], 3);
  launcher.child.kill('SIGTERM');
  assert.deepEqual(await endOf([launcher]), [BY_SIGTERM], launcher.text);
});

test('a wrong --stop starts nothing', () => {
  const command = [main, 'run', '-n', '1', '--stop', '600001', script, 'busy'];
  const { status, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8', timeout });
  assert.deepEqual([status, /stop.*600000/.test(stderr)], [2, true], stderr);
});
