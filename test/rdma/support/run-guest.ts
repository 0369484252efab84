// Runs the tests of one program of guest/ in a guest with RDMA devices, and reports each of them here.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from '../../local/support/requirements.ts';
import { whyNoGuest } from './guest.ts';
import { type GuestResult, LINE_MARK } from './line-reporter.ts';

export const rig: string = fileURLToPath(new URL('../../../../scripts/soft-roce.mjs', import.meta.url));
export const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
/** WEFTLINE_TEST_RDMA=all: with the tests that take minutes in the guest. */
export const scope = process.env['WEFTLINE_TEST_RDMA'] === 'all' ? 'all' : 'gate';
/** A guest on a busy machine is slow. */
const SECONDS = scope === 'all' ? 3600 : 1500;

/** Options of a test that boots a guest. */
export const guestOptions = { skip: skipWithout('soft-roce', whyNoGuest()), timeout: (SECONDS + 30) * 1000 } as const;

/** `program`: of guest/, without its ending. `variables`: of its processes. */
export async function runGuest(
  t: TestContext,
  program: string,
  variables: Readonly<Record<string, string>> = {},
): Promise<void> {
  const { results, status, said } = await bootGuest(program, variables);
  assert.ok(results.length > 0, said);
  for (const { name, isPass, skip, error, milliseconds } of results) {
    await t.test(name, { skip: skip ?? false }, (inner) => {
      inner.diagnostic(`${milliseconds} ms in the guest`);
      assert.ok(isPass, error);
    });
  }
  assert.equal(status, 0, said);
}

interface Guest {
  readonly results: readonly GuestResult[];
  readonly status: number | null;
  /** What else it said. */
  readonly said: string;
}

async function bootGuest(program: string, variables: Readonly<Record<string, string>>): Promise<Guest> {
  const reporter = [`--test-reporter=${here('line-reporter.js')}`, '--test-reporter-destination=stdout'];
  const names = Object.entries(variables).map(([name, value]) => `${name}=${value}`);
  const command = ['env', ...names, process.execPath, ...reporter, here(`../guest/${program}.js`), scope];
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
