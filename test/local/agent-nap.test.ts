// A wait of an agent without threads sleeps until packets come: if it looked on end, it would keep its processor from the
// peers whose answers it waits for, and their late answers would look like a slow network.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';
import { substituteSystemCall } from '#lib/native/system-call.js';

let sleeps = 0;
substituteSystemCall('ppoll', (real) => (...parameters) => {
  sleeps++;
  return (real as unknown as (...all: never[]) => unknown)(...parameters);
});

const ENOUGH = 20;

const agents = {
  'whose transport has no engine thread': { settings: { transportThread: false } },
  'without threads': { ownThread: false },
} as const;

for (const [name, options] of Object.entries(agents)) {
  test(`an agent ${name} sleeps between two looks of a wait`, async () => {
    await using agent = await Agent.create('sleeper', { ...options, backends: ['multipath'] });
    sleeps = 0;
    const awaited = {
      get isSettled(): boolean {
        return sleeps >= ENOUGH;
      },
      describe: () => 'The wait never slept',
    };
    await agent.until(awaited, { timeoutMs: 120_000 });
    assert.ok(sleeps >= ENOUGH);
  });
}
