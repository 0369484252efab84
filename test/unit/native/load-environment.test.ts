// Variables for a library that is being loaded: they are gone afterwards, and what anybody else changed meanwhile stays.
import assert from 'node:assert/strict';
import test from 'node:test';
import { withVariables } from '#lib/native/ucx.js';

function inTurn(run: () => void): void {
  for (const name of ['WEFTLINE_TEST_KEPT', 'WEFTLINE_TEST_CHANGED', 'WEFTLINE_TEST_DELETED'])
    process.env[name] = 'old';
  delete process.env['WEFTLINE_TEST_NEW'];
  withVariables({ WEFTLINE_TEST_ADDED: 'one', WEFTLINE_TEST_ALSO: 'two' }, () => {
    assert.deepEqual([process.env['WEFTLINE_TEST_ADDED'], process.env['WEFTLINE_TEST_ALSO']], ['one', 'two']);
    run();
  });
  assert.deepEqual([process.env['WEFTLINE_TEST_ADDED'], process.env['WEFTLINE_TEST_ALSO']], [undefined, undefined]);
  assert.equal(process.env['WEFTLINE_TEST_KEPT'], 'old');
}

test('variables that were added are gone afterwards', () => {
  inTurn(() => {});
  assert.equal(process.env['WEFTLINE_TEST_CHANGED'], 'old');
});

test('a variable that is changed meanwhile stays changed', () => {
  inTurn(() => (process.env['WEFTLINE_TEST_CHANGED'] = 'another value'));
  assert.equal(process.env['WEFTLINE_TEST_CHANGED'], 'another value');
});

test('a variable that is deleted meanwhile stays deleted', () => {
  inTurn(() => delete process.env['WEFTLINE_TEST_DELETED']);
  assert.equal(process.env['WEFTLINE_TEST_DELETED'], undefined);
});

test('a variable that is new stays', () => {
  inTurn(() => (process.env['WEFTLINE_TEST_NEW'] = 'new'));
  assert.equal(process.env['WEFTLINE_TEST_NEW'], 'new');
});

test('two that load at once leave nothing behind', () => {
  inTurn(() => withVariables({ WEFTLINE_TEST_INNER: 'inner' }, () => {}));
  assert.equal(process.env['WEFTLINE_TEST_INNER'], undefined);
});
