// UCX on several threads of a process, which are also those of other libraries: nothing that one does is another's business.
import assert from 'node:assert/strict';
import { execFile, spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { lazyFunction, linuxLibrary, symbolAddress, viewAt } from '#lib/native/library.js';
import { withVariables } from '#lib/native/load-environment.js';
import { whyNoUcx } from './support/ucx-side.js';

const contexts = fileURLToPath(new URL('./support/ucx-contexts.js', import.meta.url));
/** Where the names of its modules mean something. */
const root = fileURLToPath(new URL('../../..', import.meta.url));
const skip = whyNoUcx();

test('ucx: threads of a process make contexts at the same time', { skip, timeout: 60_000 }, async () => {
  const env = { ...process.env, UCX_TLS: undefined, NODE_TEST_CONTEXT: undefined };
  const { stdout } = await promisify(execFile)(process.execPath, [contexts], { env });
  assert.equal(stdout, 'done\n');
});

test('ucx: a signal that ends a program still does', { skip }, () => {
  const script = `import { openUcx } from '#lib/native/ucx.js'; openUcx(); process.kill(process.pid, 'SIGHUP'); setTimeout(() => {}, 5000);`;
  const { signal, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', script], {
    cwd: root,
    encoding: 'utf8',
  });
  assert.equal(signal, 'SIGHUP', stderr);
});

test('variables for a library are in a table of their own, and gone afterwards', () => {
  const getenv = lazyFunction(linuxLibrary, 'str getenv(str)')();
  const environ = new BigUint64Array(viewAt(symbolAddress('environ'), 8));
  const [before] = environ;
  const [first] = Object.keys(process.env);
  assert.ok(first !== undefined);
  withVariables({ WL_TEST_ONE: '1', WL_TEST_TWO: '' }, () => {
    assert.notEqual(environ[0], before);
    assert.equal(getenv('WL_TEST_ONE'), '1');
    assert.equal(getenv('WL_TEST_TWO'), '');
    assert.equal(getenv(first), process.env[first]);
  });
  assert.equal(environ[0], before);
  assert.equal(getenv('WL_TEST_ONE'), null);
  // One that is set meanwhile stays.
  withVariables({ WL_TEST_ONE: '1' }, () => (process.env['WL_TEST_THREE'] = '3'));
  assert.equal(getenv('WL_TEST_THREE'), '3');
  delete process.env['WL_TEST_THREE'];
  delete process.env['WL_TEST_ONE'];
});
