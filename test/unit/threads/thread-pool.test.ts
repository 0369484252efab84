// Threads that do one work after another, and the ends of works that go wrong.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { PooledWork } from '#lib/threads/thread-pool.js';

const program = `
  import { threadId } from 'node:worker_threads';
  let works = 0;
  export async function run(what, port) {
    works += 1;
    port.postMessage({ threadId, works });
    if (what === 'later') setTimeout(() => port.postMessage('late'), 50);
    if (what === 'fail') throw new Error('broken');
    if (what === 'never') await new Promise(() => {});
    if (what === 'serve' || what instanceof Int32Array) port.on('message', () => port.close());
    // Behind the pool's own listener, which says that the work is over.
    if (what instanceof Int32Array) process.once('beforeExit', () => { Atomics.store(what, 0, 1); Atomics.notify(what, 0); });
  }`;
const entry = new URL(`data:text/javascript,${encodeURIComponent(program)}`);

interface Told {
  readonly threadId: number;
  readonly works: number;
}

/** The work, what it said first, and how it ended. */
async function carryOut(data: unknown): Promise<Told & { readonly cause: unknown; readonly said: readonly unknown[] }> {
  let cause: unknown;
  const said: unknown[] = [];
  const onMessage = (message: unknown): number => said.push(message);
  const work = new PooledWork({ entry, name: 'test', data, onMessage, onEnd: (why) => (cause = why) });
  if (data === 'serve') work.port.postMessage('enough');
  await work.over;
  return { ...(said[0] as Told), cause, said };
}

test('works of one kind take turns on one thread, whose modules stay loaded; a work is over when nothing of it goes on', async () => {
  const first = await carryOut('');
  assert.deepEqual([first.works, first.cause], [1, undefined]);
  const { threadId } = first;
  const second = await carryOut('later');
  assert.deepEqual(second.said, [{ threadId, works: 2 }, 'late']);
  assert.deepEqual((await carryOut('serve')).said, [{ threadId, works: 3 }]);
  assert.throws(() => new PooledWork({ entry, name: 'test', data: () => 0, onEnd: () => {} }), {
    name: 'DataCloneError',
  });
  const both = await Promise.all([carryOut('later'), carryOut('later')]);
  assert.deepEqual(new Set(both.map(({ works }) => works)), new Set([1, 4]));
});

test('a thread whose work failed, or was spoiled or ended from outside, is not used again', async () => {
  const seen = new Set<number>();
  for (const what of ['fail', 'never']) {
    const { threadId, cause } = await carryOut(what);
    assert.match(String(cause), what === 'fail' ? /broken/ : /cannot come/);
    seen.add(threadId);
  }
  for (const end of ['spoil', 'terminate'] as const) {
    const work = new PooledWork({ entry, name: 'test', data: 'serve', onEnd: () => {} });
    const [told] = (await once(work.port, 'message')) as [Told];
    seen.add(told.threadId);
    work[end]();
    work.port.postMessage('enough');
    await work.over;
  }
  for (let number = 0; number < 4; number++) assert.ok(!seen.has((await carryOut('')).threadId));
});

test('a thread that was ended when it had said that its work is over is not used again', async () => {
  const flag = new Int32Array(new SharedArrayBuffer(4));
  const work = new PooledWork({ entry, name: 'test', data: flag, onEnd: () => {} });
  await once(work.port, 'message');
  work.port.postMessage('enough');
  assert.notEqual(Atomics.wait(flag, 0, 0, 30_000), 'timed-out');
  work.terminate();
  await work.over;
  const busy = new PooledWork({ entry, name: 'test', data: 'serve', onEnd: () => {} });
  const told = once(busy.port, 'message');
  assert.equal(await Promise.race([told.then(() => 'begun'), busy.over.then(() => 'lost')]), 'begun');
  busy.port.postMessage('enough');
  await busy.over;
});

test('threads without work do not keep the process alive', () => {
  const pool = import.meta.resolve('#lib/threads/thread-pool.js');
  const main = `import { PooledWork } from ${JSON.stringify(pool)};
    const work = new PooledWork({ entry: new URL(${JSON.stringify(entry.href)}), name: 'test', data: '', onEnd: () => {} });
    await work.over;
    process.stdout.write('over');`;
  const ended = spawnSync(process.execPath, ['--input-type=module', '--eval', main], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.deepEqual([ended.stdout, ended.status, ended.stderr], ['over', 0, '']);
});
