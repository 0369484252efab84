// Notifications of an agent one after the other: as they come, of one peer alone, until a deadline, a signal or the end.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';
import { withCode } from '../support/with-code.ts';

const backends = ['local'] as const;

async function trio(): Promise<{ readonly receiver: Agent; readonly senders: readonly Agent[] }> {
  const [receiver, ...senders] = await Promise.all(
    ['receiver', 'one', 'other'].map((name) => Agent.create(name, { backends })),
  );
  for (const sender of senders) {
    await sender.loadRemoteMetadata(receiver!.localMetadata());
    await receiver!.loadRemoteMetadata(sender.localMetadata());
  }
  return { receiver: receiver!, senders };
}

test('a loop over notifications takes them as they come, and goes on where an earlier one left', async () => {
  const { receiver, senders } = await trio();
  const [one, other] = senders as [Agent, Agent];
  for (const text of ['a', 'b', 'c']) await one.notify('receiver', text);
  await other.notify('receiver', 'x');
  const seen: string[] = [];
  for await (const { peer, message } of receiver.notifications({ from: 'one' })) {
    seen.push(`${peer}: ${Buffer.from(message).toString()}`);
    if (seen.length === 2) break;
  }
  for await (const { peer, message } of receiver.notifications()) {
    seen.push(`${peer}: ${Buffer.from(message).toString()}`);
    if (seen.length === 4) break;
  }
  assert.deepEqual(seen.slice(0, 2), ['one: a', 'one: b']);
  assert.deepEqual(seen.slice(2).toSorted(), ['one: c', 'other: x']);
  await Promise.all([receiver, ...senders].map((agent) => agent.close()));
});

test('a loop over notifications ends with the deadline of a step, with the reason of a signal, and with its agent', async () => {
  const { receiver, senders } = await trio();
  const drain = async (options?: { readonly timeoutMs?: number; readonly signal?: AbortSignal }): Promise<void> => {
    for await (const { message } of receiver.notifications(options)) assert.equal(message.length, 1);
  };
  await senders[0]!.notify('receiver', '1');
  await assert.rejects(drain({ timeoutMs: 20 }), withCode('WL_TIMEOUT', /No notification came to agent receiver/));
  const ending = new AbortController();
  const aborted = assert.rejects(drain({ signal: ending.signal }), /enough/);
  ending.abort(new Error('enough'));
  await aborted;
  assert.throws(() => receiver.notifications({ form: 'one' } as never), withCode('WL_INVALID_ARGUMENT', /form/));
  const closed = assert.rejects(drain(), withCode('WL_CLOSED', /receiver/));
  await Promise.all([receiver, ...senders].map((agent) => agent.close()));
  await closed;
});

test('return() ends a step of a loop that waits, and what comes then is for others', async () => {
  const { receiver, senders } = await trio();
  const iterator = receiver.notifications();
  const waiting = iterator.next();
  assert.deepEqual(await iterator.return?.(), { done: true, value: undefined });
  await senders[0]!.notify('receiver', 'late');
  assert.deepEqual(await waiting, { done: true, value: undefined });
  assert.deepEqual(await iterator.next(), { done: true, value: undefined });
  const aborted = receiver.nextNotification({ signal: AbortSignal.abort(new Error('no more')) });
  await assert.rejects(aborted, { message: 'no more' });
  assert.equal(Buffer.from((await receiver.nextNotification()).message).toString(), 'late');
  await Promise.all([receiver, ...senders].map((agent) => agent.close()));
});
