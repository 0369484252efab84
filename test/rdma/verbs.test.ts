// Boots a guest with RDMA devices once, runs the tests of guest/ there, and reports each of them here.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from '../local/support/requirements.ts';
import { whyNoGuest } from './support/guest.ts';
import { type GuestResult, LINE_MARK } from './support/line-reporter.ts';

const rig = fileURLToPath(new URL('../../../scripts/soft-roce.mjs', import.meta.url));
const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
/** A guest on a busy machine is slow. */
const SECONDS = 540;

interface Guest {
  readonly results: readonly GuestResult[];
  readonly status: number | null;
  /** What else it said. */
  readonly said: string;
}

async function runGuest(): Promise<Guest> {
  const reporter = [`--test-reporter=${here('support/line-reporter.js')}`, '--test-reporter-destination=stdout'];
  const command = [process.execPath, ...reporter, here('guest/main.js')];
  const child = spawn(process.execPath, [rig, '--pair', '--timeout', String(SECONDS), ...command], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (part: string) => (text += part));
  const status = await new Promise<number | null>((resolve) => child.on('close', resolve));
  const lines = text.split('\n');
  const results = lines.filter((line) => line.startsWith(LINE_MARK));
  return {
    results: results.map((line) => JSON.parse(line.slice(LINE_MARK.length)) as GuestResult),
    status,
    said: lines.filter((line) => !line.startsWith(LINE_MARK)).join('\n'),
  };
}

const options = { skip: skipWithout('soft-roce', whyNoGuest()), timeout: (SECONDS + 30) * 1000 };

test('verbs over soft-RoCE, in a guest', options, async (t) => {
  const { results, status, said } = await runGuest();
  assert.ok(results.length > 0, said);
  for (const { name, isPass, skip, error, milliseconds } of results) {
    await t.test(name, { skip: skip ?? false }, (inner) => {
      inner.diagnostic(`${milliseconds} ms in the guest`);
      assert.ok(isPass, error);
    });
  }
  assert.equal(status, 0, said);
});

test('a guest that does not end in time is stopped, with its last words', options, () => {
  const words = [rig, '--timeout', '0.5', 'true'];
  const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8' });
  assert.equal(status, 125);
  assert.match(stderr, /^soft-roce: The guest failed: it was stopped after 0\.5 s, before the command began/m);
});
