// In the guest: how many native calls posted writes of the agent's backend take.
import assert from 'node:assert/strict';
import test from 'node:test';
import { VerbsContext, type VerbsOperations } from '#lib/native/verbs/context.js';
import { openTwo, pollAll, prepareWrite } from './support/agents.ts';

const BATCH = 16;

/** Counts native calls of the hot paths of all contexts that are opened from now on. */
function countCalls(): { total: number } & Disposable {
  const open = VerbsContext.open.bind(VerbsContext);
  const count = { total: 0, [Symbol.dispose]: () => void (VerbsContext.open = open) };
  VerbsContext.open = (device) => {
    const context = open(device);
    const operations = context.operations as unknown as Record<keyof VerbsOperations, (...words: number[]) => number>;
    for (const [name, real] of Object.entries(operations)) {
      operations[name as keyof VerbsOperations] = (...words) => {
        count.total += 1;
        return real(...words);
      };
    }
    return context;
  };
  return count;
}

test('16 posted writes and their completions take 3 native calls at most', async () => {
  using calls = countCalls();
  await using two = await openTwo();
  const { link, local, remote, here, both, out, into } = two;
  const channel = link.openChannel();
  await pollAll(both, () => true, '');
  // The wake of the new connection is over.
  await new Promise((resolve) => setTimeout(resolve, 100));
  here.backend.poll();
  for (let round = 1; round <= 20; round += 1) {
    out.bytes.fill(round, 0, BATCH * 64);
    const before = calls.total;
    for (let index = 0; index < BATCH; index += 1) {
      assert.ok(channel.put({ local, localOffset: index * 64, remote, remoteOffset: index * 64, bytes: 64 }));
    }
    channel.send?.();
    const posted = calls.total - before;
    // Looks that find nothing are not counted: how many there are says how fast the device is.
    await new Promise((resolve) => setTimeout(resolve, 20));
    while (channel.delivered < channel.posted) {
      const polled = calls.total;
      here.backend.poll();
      if (channel.delivered < channel.posted) calls.total = polled;
    }
    assert.ok(posted <= 1, `${posted} calls to post`);
    assert.ok(calls.total - before <= 3, `${calls.total - before} calls`);
    assert.ok(into.bytes.subarray(0, BATCH * 64).every((byte) => byte === round));
  }
  await channel.close();
});

test('a message of up to 3 bytes goes with its write, behind its data, and in order with longer ones', async () => {
  await using two = await openTwo();
  const { there, both, into, out } = two;
  const texts = ['abc', 'longer', '', 'x', 'four', 'yz', 'abc'];
  const transfers = await Promise.all(
    texts.map((_, index) => prepareWrite(two, { localOffset: index * 64, remoteOffset: index * 64, bytes: 64 })),
  );
  for (const [index, text] of texts.entries()) {
    out.bytes.fill(index + 1, index * 64, (index + 1) * 64);
    transfers[index]!.post(Buffer.from(text));
  }
  await pollAll(both, () => there.received.length === texts.length, 'messages are missing');
  assert.deepEqual(
    there.received.map(({ text }) => text),
    texts,
  );
  for (let index = 0; index < texts.length; index += 1) assert.equal(into.bytes[index * 64 + 63], index + 1);
});
