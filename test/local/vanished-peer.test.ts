// The peer's machine vanishes without a word: connections over TCP and everything that waits end with an error in time.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from './support/requirements.js';
import type { Outcome } from './support/vanishing-peer.ts';

const script = fileURLToPath(new URL('./support/vanishing-peer.js', import.meta.url));
const setUp = 'ip link set lo up && nft list ruleset';
const canCut = spawnSync('unshare', ['-n', 'sh', '-c', setUp]).status === 0;
const skip = skipWithout(
  'namespaces',
  canCut ? undefined : 'no network of its own here: needs root, unshare, ip and nft',
);

test('a wait for a machine that has vanished fails', { skip, timeout: 600_000 }, () => {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  const { stdout, stderr } = spawnSync('unshare', ['-n', process.execPath, script], { env, timeout: 600_000 });
  const text = stdout.toString();
  assert.match(text, /^\{/, stderr.toString());
  const outcomes = JSON.parse(text) as Readonly<Record<string, Outcome>>;
  const expected: Readonly<Record<string, RegExp>> = {
    'an idle connection': /^WL_PEER_LOST/,
    'a receive': /^WL_PEER_LOST/,
    'a transfer': /^WL_PEER_LOST/,
    'a staged transfer': /^WL_PEER_LOST/,
    'the end of the memory of a staged transfer': /^none/,
    "a listener's metadata": /^WL_TIMEOUT/,
    'a key': /^WL_TIMEOUT: .*rank 1/,
    'rank 1, seen by rank 0': /^WL_PEER_LOST: Rank 1 /,
    'rank 0, seen by rank 1': /^WL_PEER_LOST: Rank 0,/,
    'a connection, at the other end': /^WL_PEER_LOST/,
  };
  for (const [what, pattern] of Object.entries(expected)) {
    const { code, message, ms } = outcomes[what] as Outcome;
    assert.match(`${code}: ${message}`, pattern, `${what}: ${text}`);
    // Eight seconds are the setting; by itself TCP takes a quarter of an hour.
    assert.ok(ms < 60_000, `${what} took ${ms} ms`);
  }
});
