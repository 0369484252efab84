// What lets a test be skipped: only a machine that cannot, and only where nobody demanded that it can.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { reasonOf } from './support/requirements.ts';

const helper = new URL('./support/requirements.js', import.meta.url).href;

/** What skipWithout gives for each, or how it fails, where WEFTLINE_TEST_REQUIRE is this. */
function skipsIn(demanded: string, requirements: readonly string[], why: string | undefined): string[] {
  const text = `
    const { skipWithout } = await import('${helper}');
    for (const requirement of ${JSON.stringify(requirements)}) {
      try { console.log(String(skipWithout(requirement, ${JSON.stringify(why)}))); }
      catch (error) { console.log(error.message); }
    }
  `;
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, WEFTLINE_TEST_REQUIRE: demanded };
  const words = ['--input-type=module', '-e', text];
  const { stdout, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', env });
  return stdout === '' ? [/^Error: (.*)$/m.exec(stderr)?.[1] ?? stderr] : stdout.trim().split('\n');
}

test('only WL_UNSUPPORTED is a reason to skip', () => {
  assert.equal(reasonOf(new WeftlineError('WL_UNSUPPORTED', 'no libucp')), 'no libucp');
  for (const fault of [new WeftlineError('WL_INTERNAL', 'broken'), new TypeError('x is undefined'), 'text'])
    assert.throws(
      () => reasonOf(fault),
      (thrown) => thrown === fault,
    );
});

test('what WEFTLINE_TEST_REQUIRE demands fails where it is lacking', () => {
  const all = [...backendNames, 'etcd', 'namespaces'];
  const failures = skipsIn(all.join(', '), all, 'it is lacking');
  assert.equal(failures.length, all.length);
  for (const [index, failure] of failures.entries())
    assert.match(failure, new RegExp(`demands ${all[index]}, .*: it is lacking$`));
  assert.deepEqual(skipsIn('local,ucx', ['ucx'], undefined), ['false']);
  assert.deepEqual(skipsIn('local', ['ucx'], 'it is lacking'), ['it is lacking']);
  assert.match(skipsIn('local,ucxx', ['local'], undefined)[0] ?? '', /^Invalid WEFTLINE_TEST_REQUIRE: .* got ucxx$/);
});
