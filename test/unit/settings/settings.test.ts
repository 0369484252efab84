import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings, type Settings, WeftlineError } from 'weftline';
import { settingsTable } from '#lib/settings/settings.js';

test('an override wins over the environment, which wins over the default', () => {
  assert.equal(readSettings({}, {}).timeoutMs, settingsTable.timeoutMs.default);
  assert.equal(readSettings({}, { WEFTLINE_TIMEOUT_MS: '250' }).timeoutMs, 250);
  assert.equal(readSettings({ timeoutMs: 90 }, { WEFTLINE_TIMEOUT_MS: '250' }).timeoutMs, 90);
  assert.equal(readSettings({ reserveSharedMemory: false }, { WEFTLINE_RESERVE_SHM: '1' }).reserveSharedMemory, false);
});

test('an empty variable counts as unset, blanks around a value are ignored', () => {
  assert.equal(readSettings({}, { WEFTLINE_TIMEOUT_MS: '' }).timeoutMs, settingsTable.timeoutMs.default);
  assert.equal(readSettings({}, { WEFTLINE_TIMEOUT_MS: ' 40 ' }).timeoutMs, 40);
});

test('each default lies in its own range, and each variable and flag is used once', () => {
  const environment: Record<string, string> = {};
  for (const setting of Object.values(settingsTable)) environment[setting.env] = String(setting.default);
  assert.deepEqual({ ...readSettings({}, environment) }, { ...readSettings({}, {}) });
  const rows = Object.values(settingsTable);
  assert.equal(new Set(rows.map((row) => row.env)).size, rows.length);
  assert.equal(new Set(rows.map((row) => row.flag)).size, rows.length);
  for (const row of rows) assert.match(row.env, /^WEFTLINE_[A-Z0-9_]+$/);
});

test('the ends of each range are allowed, the values beyond are not, from the environment and from overrides', () => {
  for (const [name, setting] of Object.entries(settingsTable)) {
    if (setting.kind !== 'number') continue;
    for (const allowed of [setting.min, setting.max]) {
      assert.equal(readSettings({ [name]: allowed }, {})[name as keyof Settings], allowed);
    }
    for (const beyond of [setting.min - 1, setting.max + 1, Number.NaN, '5' as unknown as number]) {
      assert.throws(() => readSettings({ [name]: beyond }, {}), configError(name));
    }
    assert.throws(() => readSettings({}, { [setting.env]: String(setting.max + 1) }), configError(setting.env));
  }
});

test('counts and sizes are whole numbers, times and rates may be fractions', () => {
  for (const [name, value] of [
    ['localSenders', 1.5],
    ['transportPaths', 2.5],
    ['notificationBytes', 4096.5],
  ] as const) {
    assert.throws(() => readSettings({ [name]: value }, {}), { code: 'WL_CONFIG', message: /whole number/ });
    const { env } = settingsTable[name];
    assert.throws(() => readSettings({}, { [env]: String(value) }), { code: 'WL_CONFIG', message: /whole number/ });
  }
  assert.equal(readSettings({ timeoutMs: 1.5 }, {}).timeoutMs, 1.5);
  assert.equal(readSettings({ transportLinkGbps: 0.5 }, {}).transportLinkGbps, 0.5);
});

test('text that is no number names the variable, the text and the range', () => {
  for (const text of ['soon', '-5', '1e3', '0x10', '12ms', 'Infinity', '1,5', '.']) {
    assert.throws(
      () => readSettings({}, { WEFTLINE_TIMEOUT_MS: text }),
      (error: unknown) => {
        assert.ok(configError('WEFTLINE_TIMEOUT_MS')(error));
        assert.ok((error as Error).message.includes(JSON.stringify(text)), (error as Error).message);
        assert.match((error as Error).message, /from 1 to 86400000/);
        return true;
      },
    );
  }
});

function read(text: string): boolean {
  return readSettings({}, { WEFTLINE_RESERVE_SHM: text }).reserveSharedMemory;
}

test('a switch takes the usual words in any case and nothing else', () => {
  for (const text of ['1', 'true', 'YES', 'On']) assert.equal(read(text), true);
  for (const text of ['0', 'false', 'No', 'OFF']) assert.equal(read(text), false);
  for (const text of ['2', 'maybe', 'null']) assert.throws(() => read(text), configError('WEFTLINE_RESERVE_SHM'));
});

test('a choice takes its words and nothing else, and the error lists them', () => {
  assert.equal(readSettings({}, { WEFTLINE_DEVICE: ' cuda ' }).device, 'cuda');
  assert.equal(readSettings({ device: 'cpu' }, { WEFTLINE_DEVICE: 'cuda' }).device, 'cpu');
  assert.throws(() => readSettings({}, { WEFTLINE_DEVICE: 'gpu' }), configError('WEFTLINE_DEVICE'));
  assert.throws(() => readSettings({ device: 'tpu' as 'cpu' }, {}), {
    message: /expected auto, cpu, cuda, got "tpu"$/,
  });
});

test('a text that can be wrong on every machine is refused where it is read', () => {
  for (const [name, env, right, wrong] of [
    ['rdmaGidIndex', 'WEFTLINE_RDMA_GID_INDEX', ['', '0', ' 3 ', '65535'], ['v2', '-1', '1.5', '3,4', '1e3', '999999']],
    ['transportPinCore', 'WEFTLINE_TRANSPORT_PIN', ['', '0', '4,6,8-11', ' 1 , 2-3 '], ['x', '1,', '-1', '1-', '1;2']],
  ] as const) {
    for (const text of right) assert.equal(typeof readSettings({ [name]: text }, {})[name], 'string');
    for (const text of wrong) {
      assert.throws(() => readSettings({ [name]: text }, {}), configError(name));
      assert.throws(() => readSettings({}, { [env]: text }), configError(env));
    }
  }
});

test('the settings are frozen', () => {
  assert.ok(Object.isFrozen(readSettings({}, {})));
});

function configError(source: string): (error: unknown) => boolean {
  return (error) =>
    error instanceof WeftlineError && error.code === 'WL_CONFIG' && error.message.includes(`setting ${source}:`);
}
