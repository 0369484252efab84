// Waits of an agent for what its caller looks at: they end with it, with their deadline, and with the agent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';

const options = { backends: ['local'], token: 'secret' } as const;

/** Is settled when it has been asked so often. */
class AfterLooks {
  looks = 0;
  readonly #needed: number;

  constructor(needed: number) {
    this.#needed = needed;
  }

  get isSettled(): boolean {
    this.looks += 1;
    return this.looks >= this.#needed;
  }

  describe(): string {
    return 'The thing of the test did not come';
  }
}

test('a wait for something of the caller ends when that is settled', async () => {
  await using agent = await Agent.create('alone', options);
  for (const looks of [1, 5]) {
    const awaited = new AfterLooks(looks);
    await agent.until(awaited);
    assert.equal(awaited.looks, looks);
    const blocking = new AfterLooks(looks);
    agent.untilBlocking(blocking);
    assert.equal(blocking.looks, looks);
  }
});

test('a wait for something of the caller ends at its deadline, with what it waited for', async () => {
  await using agent = await Agent.create('alone', options);
  const late = { code: 'WL_TIMEOUT', message: /^The thing of the test did not come within 20 ms/ };
  await assert.rejects(agent.until(new AfterLooks(Infinity), { timeoutMs: 20 }), late);
  assert.throws(() => agent.untilBlocking(new AfterLooks(Infinity), 20), late);
});

test('a wait for something of the caller ends with its signal, and with the agent', async () => {
  await using agent = await Agent.create('alone', options);
  const given = new AbortController();
  const aborted = agent.until(new AfterLooks(Infinity), { signal: given.signal });
  given.abort(new Error('enough'));
  await assert.rejects(aborted, /enough/);
  const waiting = agent.until(new AfterLooks(Infinity));
  await Promise.all([assert.rejects(waiting, { code: 'WL_CLOSED' }), agent.close()]);
  assert.throws(() => agent.untilBlocking(new AfterLooks(1)), { code: 'WL_CLOSED' });
});
