// A process that ends while a thread binds native functions ends well: koffi would abort it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';

const guard = import.meta.resolve('#lib/native/library.js');
const library = import.meta.resolve('#lib/native/library.js');
const starter = import.meta.resolve('#lib/threads/start-worker.js');

/** Runs a program that starts a thread; the program has `start(code)` and `sleep(ms)`, the thread `sleep` and `say(text)`. */
function run(program: string) {
  const script = `
    import { getEnvironmentData } from 'node:worker_threads';
    import { startWorker } from ${JSON.stringify(starter)};
    const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
    const start = (code, workerData) => {
      const entry = 'import { workerData } from "node:worker_threads"; import { writeSync } from "node:fs";'
        + 'const say = (text) => writeSync(1, text);'
        + 'const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);' + code;
      return startWorker(new URL('data:text/javascript,' + encodeURIComponent(entry)), { name: 'test', workerData });
    };
    ${program}`;
  return spawnSync(process.execPath, ['--input-type=module', '--eval', script], { encoding: 'utf8', timeout: 60_000 });
}

const binding = `import { bindGuarded } from ${JSON.stringify(guard)};`;

test('a process that ends waits for a thread that is binding', () => {
  const { status, stdout, stderr } = run(`
    const word = new Int32Array(new SharedArrayBuffer(8));
    start(${JSON.stringify(`${binding} const begun = () => Atomics.store(workerData, 0, 1) + Atomics.notify(workerData, 0);
      bindGuarded(() => { begun(); Atomics.wait(workerData, 1, 0); say('bound'); }); sleep(60_000);`)}, word);
    process.prependListener('exit', () => { Atomics.store(word, 1, 1); Atomics.notify(word, 1); });
    await Atomics.waitAsync(word, 0, 0).value;
    process.exit(0);`);
  assert.equal(stdout, 'bound', stderr);
  assert.equal(status, 0);
});

test('a thread that was stopped while it was binding holds up nobody', () => {
  const { status, stderr } = run(`
    const word = new Int32Array(new SharedArrayBuffer(4));
    const worker = start(${JSON.stringify(`${binding}
      bindGuarded(() => { Atomics.store(workerData, 0, 1); Atomics.notify(workerData, 0); sleep(60_000); });`)}, word);
    await Atomics.waitAsync(word, 0, 0).value;
    await worker.terminate();
    const words = getEnvironmentData('weftline-binding-threads/1');
    process.exit(words.some((count) => count !== 0) ? 3 : 0);`);
  assert.equal(status, 0, stderr);
});

test('a thread binds nothing once the process has begun to end', () => {
  const { status, stdout, stderr } = run(`
    const word = new Int32Array(new SharedArrayBuffer(4));
    start(${JSON.stringify(`${binding} say('ready'); Atomics.store(workerData, 0, 1); Atomics.notify(workerData, 0);
      Atomics.wait(workerData, 0, 1); bindGuarded(() => say('late')); say('later');`)}, word);
    await Atomics.waitAsync(word, 0, 0).value;
    process.on('exit', () => { Atomics.store(word, 0, 2); Atomics.notify(word, 0); sleep(300); });
    process.exit(0);`);
  assert.equal(stdout, 'ready', stderr);
  assert.equal(status, 0);
});

test('processes that end at once, while a thread loads and binds what the system offers, end well', () => {
  const udp = import.meta.resolve('#lib/transport/io/udp/udp-io.js');
  const lazy = `import { bindLazily } from ${JSON.stringify(library)};
    const names = ['getpid', 'getppid', 'getuid', 'getgid', 'geteuid', 'getegid', 'getpgrp', 'sched_yield'];
    const calls = bindLazily(() => 'libc.so.6', Object.fromEntries(names.map((name) => [name, 'int ' + name + '()'])));
    for (const name of names) calls[name]();`;
  for (let ms = 0; ms < 16; ms++) {
    const { status, signal, stderr } = run(`
      const word = new Int32Array(new SharedArrayBuffer(4));
      start(${JSON.stringify(`import ${JSON.stringify(udp)}; import { bindDeclaredFunctions } from ${JSON.stringify(library)};
        Atomics.store(workerData, 0, 1); Atomics.notify(workerData, 0);`)} + (${ms} % 2 === 0
          ? 'bindDeclaredFunctions(); sleep(60_000);' : ${JSON.stringify(`${lazy} sleep(60_000);`)}), word);
      await Atomics.waitAsync(word, 0, 0).value;
      sleep(${ms});
      process.exit(0);`);
    assert.deepEqual([status, signal], [0, null], `after ${ms} ms\n${stderr}`);
  }
});
