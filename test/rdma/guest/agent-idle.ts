// In the guest: agents that are linked by RDMA and have nothing to do use no processor, and wake up for what comes.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { Agent, DescriptorList } from 'weftline/agent';

const IDLE_MS = 3000;
const LOOKS = 5;
const TICKS_PER_SECOND = 100;

/** Processor time of each thread of this process, in ticks. */
function ticks(): ReadonlyMap<string, number> {
  const threads = readdirSync('/proc/self/task').map((thread) => {
    const text = readFileSync(`/proc/self/task/${thread}/stat`, 'latin1');
    const [user, system] = text
      .slice(text.lastIndexOf(')') + 2)
      .split(' ')
      .slice(11, 13)
      .map(Number);
    return [thread, user! + system!] as const;
  });
  return new Map(threads);
}

/** Threads that are busy in the next seconds. A busy thread would take all of a processor. */
async function busyThreads(): Promise<string[]> {
  const before = ticks();
  const begin = performance.now();
  await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
  const elapsed = ((performance.now() - begin) / 1000) * TICKS_PER_SECOND;
  return [...ticks()]
    .map(([thread, used]) => [thread, (used - (before.get(thread) ?? used)) / elapsed] as const)
    .filter(([, share]) => share >= 0.5)
    .map(([thread, share]) => `thread ${thread} used ${share} of a processor`);
}

/** Registers the test. */
export function testIdle(backend: 'verbs' | 'ucx'): void {
  test(`${backend}: linked agents are idle when nothing happens, and a message wakes them`, async () => {
    const common = { backends: [backend], token: 'secret' } as const;
    await using a = await Agent.create('a', { ...common, settings: { rdmaDevices: 'rxe0' } });
    await using b = await Agent.create('b', { ...common, settings: { rdmaDevices: 'rxe1' } });
    const out = await a.allocate(4096);
    const into = await b.allocate(4096);
    await a.loadRemoteMetadata(b.localMetadata());
    await using transfer = await a.prepare({
      operation: 'write',
      peer: 'b',
      local: DescriptorList.of(out),
      remote: DescriptorList.of(a.remoteMemory('b')[0]!),
    });
    for (const value of [1, 2]) {
      out.bytes.fill(value);
      const next = b.nextNotification({ timeoutMs: 120_000 });
      transfer.post(String(value));
      await transfer.wait();
      assert.equal(Buffer.from((await next).message).toString(), String(value));
      assert.ok(into.bytes.every((byte) => byte === value));
      // Whoever polls on stops within a second; on a busy machine threads still start.
      await new Promise((resolve) => setTimeout(resolve, 2000));
      let busy = await busyThreads();
      // One that polls on end is busy every time; one that still compiles, or whose processor the host takes for a while, is not.
      for (let look = 1; look < LOOKS && busy.length > 0; look += 1) busy = await busyThreads();
      assert.deepEqual(busy, []);
    }
  });
}
