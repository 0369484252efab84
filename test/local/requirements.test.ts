// What lets a test be skipped: only a machine that cannot, and only where nobody demanded that it can.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { knownBackends } from '#lib/agent/backends/create.js';
import { reasonOf } from './support/requirements.ts';

const helper = new URL('./support/requirements.js', import.meta.url).href;

/** What skipWithout gives, or how it fails, where WEFTLINE_TEST_REQUIRE is this. */
function skipIn(demanded: string, requirement: string, why: string | undefined): string {
  const text = `
    const { skipWithout } = await import('${helper}');
    console.log(String(skipWithout('${requirement}', ${JSON.stringify(why)})));
  `;
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, WEFTLINE_TEST_REQUIRE: demanded };
  const words = ['--input-type=module', '-e', text];
  const { stdout, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', env });
  return stdout.trim() || (/^Error: (.*)$/m.exec(stderr)?.[1] ?? stderr);
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
  const all = [...knownBackends(), 'etcd', 'namespaces'];
  for (const requirement of all) {
    assert.match(skipIn(all.join(', '), requirement, 'it is lacking'), new RegExp(`demands ${requirement}, .*lacking`));
  }
  assert.equal(skipIn('local,ucx', 'ucx', undefined), 'false');
  assert.equal(skipIn('local', 'ucx', 'it is lacking'), 'it is lacking');
  assert.match(skipIn('local,ucxx', 'local', undefined), /^Invalid WEFTLINE_TEST_REQUIRE: .* got ucxx$/);
});
