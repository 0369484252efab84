// Jobs that are traced: one file with all ranks and threads, also where a rank was killed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createTraceFile, partPath, RingSink } from '#lib/tracing/trace-rings.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const traced = fileURLToPath(new URL('./ranks/traced.js', import.meta.url));

interface Event {
  readonly ph: string;
  readonly name: string;
  readonly pid: number;
  readonly args: Readonly<Record<string, unknown>>;
}

class Folder {
  readonly path = mkdtempSync(join(tmpdir(), 'weftline-trace-'));

  constructor(t: TestContext) {
    t.after(() => rmSync(this.path, { recursive: true }));
  }

  weftline(...words: readonly string[]): {
    readonly status: number | null;
    readonly stdout: string;
    readonly stderr: string;
  } {
    const env = { ...process.env, WEFTLINE_DEVICE: 'cpu', WEFTLINE_TRACE: undefined };
    return spawnSync(process.execPath, [main, ...words], { encoding: 'utf8', timeout: 600_000, cwd: this.path, env });
  }

  events(): Event[] {
    assert.deepEqual(readdirSync(this.path), ['t.json'], 'no parts are left');
    return (JSON.parse(readFileSync(join(this.path, 't.json'), 'utf8')) as { traceEvents: Event[] }).traceEvents;
  }
}

test('a rank that was killed is in the trace with all its calls, and the last of another that was in one', (t) => {
  const folder = new Folder(t);
  const { status } = folder.weftline('run', '-n', '2', '--trace', 't.json', traced);
  assert.notEqual(status, 0);
  const calls = folder.events().filter(({ name }) => name === 'Communicator.barrier');
  const endedOf = (rank: number): number => calls.filter(({ pid, ph }) => pid === rank && ph === 'X').length;
  assert.equal(endedOf(1), 3);
  // The fourth fails when the other is gone; the rank may be ended before.
  assert.ok(endedOf(0) >= 3 && calls.filter(({ pid }) => pid === 0).length === 4);
  const { stdout } = folder.weftline('trace', 't.json');
  assert.match(stdout, /^t\.json: 2 processes: rank 0, rank 1\n/);
  assert.match(stdout, /│ Communicator\.barrier │ +[67] /);
});

test('a rank that ends before it is traced is named, and the trace of the others is there', (t) => {
  const folder = new Folder(t);
  const script = join(folder.path, 'early.mjs');
  const rings = new URL('../../../dist/tracing/start-tracing.js', import.meta.url).href;
  const call = 'startTracing({ trace: process.env.WEFTLINE_TRACE }, { rank: 0, size: 2, launcherPid: process.ppid })';
  writeFileSync(
    script,
    `import { startTracing } from ${JSON.stringify(rings)}; if (process.env.WEFTLINE_RANK === '0') ${call};`,
  );
  const { status, stderr } = folder.weftline('run', '-n', '2', '--trace', 't.json', script);
  assert.deepEqual([status, stderr], [0, 'weftline: rank 1 left no trace (it ended before it joined)\n']);
  assert.ok(existsSync(join(folder.path, 't.json')));
});

test('a trace that is made twice, or of a command that was not traced, loses nothing', (t) => {
  const folder = new Folder(t);
  const file = join(folder.path, 't.json');
  const part = (pid: number, rank: number, host = hostname()): void => {
    const who = { pid, rank, size: 2, host, program: 'x', launcher: 5 };
    const made = createTraceFile(partPath(file, host, pid), who);
    RingSink.claim(made, 'main')!.begin('call', 1, 'Communicator.barrier of 0-1');
  };
  part(2 ** 22 + 1, 0);
  part(7, 1, 'another');
  for (let time = 0; time < 2; time++) {
    assert.match(folder.weftline('trace', 't.json').stdout, /2 processes: rank 0, rank 1/);
    assert.equal(readdirSync(folder.path).length, 3, 'the parts stay: of the other host nothing is known');
  }
  const env = { ...process.env, WEFTLINE_TRACE: file };
  rmSync(file);
  spawnSync(process.execPath, [main, 'why'], { env });
  assert.equal(readdirSync(folder.path).length, 2);
});

test('threads of engines are tracks of their own', (t) => {
  const folder = new Folder(t);
  const words = ['moe', '--ranks', '2', '--hosts', '2', '--iterations', '1', '--trace', 't.json'];
  const { status, stderr, stdout } = folder.weftline(...words);
  assert.equal(status, 0, stdout + stderr);
  const events = folder.events();
  const threads = events.filter(({ name }) => name === 'thread_name').map(({ args }) => String(args['name']));
  assert.ok(threads.includes('main') && threads.some((name) => name.startsWith('transport ')), threads.join());
  assert.ok(events.some(({ name, ph }) => name === 'transport.burst' && ph === 'X'));
  const ends = events.filter(({ ph, name }) => ph === 'f' && name === 'message').map(({ pid }) => pid);
  assert.deepEqual(new Set(ends), new Set([0, 1]), 'arrows of messages end at both ranks');
  assert.ok(events.some(({ ph, name }) => ph === 'f' && name === 'last to come'));
  const { stdout: text } = folder.weftline('trace', 't.json', '--json', '-');
  const { phases } = JSON.parse(text) as { phases: { phase: string; count: number }[] };
  assert.ok(phases.some(({ phase, count }) => phase === 'transport.burst' && count > 0));
});

test('a trace that is not there, or cannot be written, is an error that says so', (t) => {
  const folder = new Folder(t);
  const { status, stderr } = folder.weftline('trace', 'missing.json');
  assert.equal(status, 1);
  assert.match(stderr, /There is no missing\.json/);
  for (const [bad, why] of [
    ['no/such/folder.json', /the folder no\/such is missing/],
    ['.', /Invalid --trace: expected a file, not a folder/],
  ] as const) {
    const ended = folder.weftline('moe', '--ranks', '1', '--trace', bad);
    assert.notEqual(ended.status, 0);
    assert.match(ended.stderr, why);
  }
});
