import assert from 'node:assert/strict';
import test, { mock } from 'node:test';
import { readSettings } from 'weftline';
import { logRails } from '#lib/agent/agent.js';

test('at level debug an agent says which rails it has, at other levels it does not look', () => {
  const printed = mock.method(console, 'error', () => {});
  try {
    const transportRails = '=lo';
    logRails('a', readSettings({ log: 'agent:info', transportRails: 'no such rail' }, {}));
    assert.equal(printed.mock.callCount(), 0);
    logRails('a', readSettings({ log: 'agent:debug', transportRails }, {}));
    const lines = printed.mock.calls.map(({ arguments: [line] }) => String(line));
    assert.match(lines[0] ?? '', / agent debug: rails of a: lo: (127\.0\.0\.1|::1), /);
    assert.throws(() => logRails('a', readSettings({ transportRails: 'no such rail' }, {})), { code: 'WL_CONFIG' });
  } finally {
    readSettings({ log: 'off' }, {});
    printed.mock.restore();
  }
});
