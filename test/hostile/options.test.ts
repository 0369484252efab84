// A long run whose options are mistyped says so, instead of testing nothing and passing.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const cases: readonly (readonly [string, string, string])[] = [
  ['soak', '--minutes', 'abc'],
  ['soak', '--kind', 'nothing'],
  ['fuzz', '--count', 'abc'],
  ['fuzz', '--seed', '0x'],
  ['fuzz', '--decoder', 'nothing'],
  ['chaos', '--kills', '-1'],
  ['chaos', '--kind', 'nothing'],
];

for (const [run, option, value] of cases) {
  test(`${run} refuses ${option} ${value}`, () => {
    const script = fileURLToPath(new URL(`./${run}/main.js`, import.meta.url));
    const { status, stderr } = spawnSync(process.execPath, [script, `${option}=${value}`], { encoding: 'utf8' });
    assert.equal(status, 2, stderr);
    assert.ok(stderr.includes(`Invalid ${option}: expected `) && stderr.includes(JSON.stringify(value)), stderr);
  });
}
