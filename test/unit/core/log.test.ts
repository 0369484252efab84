import assert from 'node:assert/strict';
import test, { mock } from 'node:test';
import { readSettings } from 'weftline';
import { isLogged, log, setLogLevels } from '#lib/core/log.js';

/** What is written to stderr while `run` runs. */
function linesOf(run: () => void): string[] {
  const lines: string[] = [];
  const written = mock.method(console, 'error', (line: string) => lines.push(line));
  try {
    run();
  } finally {
    written.mock.restore();
    setLogLevels('off');
  }
  return lines;
}

test('nothing is said unless the setting asks for it', () => {
  const lines = linesOf(() => {
    readSettings({}, {});
    log('agent', 'warn', 'lost');
  });
  assert.deepEqual(lines, []);
});

test('a level shows its lines and more serious ones, of all parts or of those that are named', () => {
  const lines = linesOf(() => {
    readSettings({}, { WEFTLINE_LOG: 'warn, agent:debug' });
    log('agent', 'debug', 'one');
    log('transport', 'info', 'two');
    log('transport', 'warn', 'three');
    // Settings that say nothing of it leave it as it is.
    readSettings({}, {});
    setLogLevels('transport:off,device:info');
    log('transport', 'warn', 'four');
    assert.equal(isLogged('device', 'info'), true);
    assert.equal(isLogged('device', 'debug'), false);
  });
  const form = /^\d{4}-\d\d-\d\dT[\d:.]+Z (\d+) (.*)$/;
  assert.deepEqual(
    lines.map((line) => form.exec(line)?.[2]),
    ['agent debug: one', 'transport warn: three'],
  );
  assert.equal(form.exec(lines[0]!)?.[1], String(process.pid));
});

test('a message of several lines is one line', () => {
  const lines = linesOf(() => {
    setLogLevels('warn');
    log('agent', 'warn', 'lost\n2026 1 agent warn: found\u001b[2J');
  });
  assert.equal(lines.length, 1);
  assert.doesNotMatch(lines[0]!, /[\p{Cc}]/u);
});

test('an entry that names no level or no part is refused, and changes nothing', () => {
  for (const text of ['loud', 'agents:info', 'agent:', 'info,agent:verbose', ':info']) {
    const refused = {
      code: 'WL_CONFIG',
      message: /Invalid setting log \(WEFTLINE_LOG\): expected debug, info, warn, off, or one of them/,
    };
    assert.throws(() => readSettings({}, { WEFTLINE_LOG: text }), refused, text);
  }
  assert.equal(isLogged('agent', 'warn'), false);
});
