// An owner takes memory back while a peer says that it is within a step: it waits for that step, and for nothing else.
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from 'weftline';
import { localConnectionInfo } from '#lib/agent/backends/local/local-region.js';
import { Block } from '#lib/abi/layout.js';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { PeerMailbox } from '#lib/agent/backends/local/peer-mailbox.js';
import { hostMemory, openBackend, type OpenBackend } from './support/backend-context.ts';

const script = fileURLToPath(new URL('support/step-holder.js', import.meta.url));

function openMailbox({ peer }: OpenBackend): PeerMailbox {
  const info = Block.over(localConnectionInfo, peer.connectionInfo);
  const [pid, fd, device, inode, bytes] = (['pid', 'fd', 'device', 'inode', 'bytes'] as const).map((name) =>
    info.get(name),
  ) as [number, number, number, number, number];
  const { name, incarnation } = peer;
  return PeerMailbox.open({ peer: name, incarnation, place: { pid, fd, device, inode, bytes }, sender: 'holder' });
}

/** True if it has ended after many turns of the event loop. */
async function hasEnded(promise: Promise<unknown>): Promise<boolean> {
  let ended = false;
  promise.then(
    () => (ended = true),
    () => (ended = true),
  );
  for (let turn = 0; turn < 500; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  return ended;
}

test('release() waits for the end of a step, and not for steps that began later', async () => {
  const owner = await openBackend(createBackend, 'owner');
  const region = await owner.backend.register(hostMemory(new Uint8Array(64)));
  const peer = openMailbox(owner);
  peer.steps.begin();
  const released = region.release();
  assert.equal(await hasEnded(released), false);
  peer.steps.end();
  peer.steps.begin();
  await released;
  peer.steps.end();
  peer[Symbol.dispose]();
  await owner.backend.close();
});

test('work on a GPU that was begun within a step is waited for as well, up to its own end only', async () => {
  const owner = await openBackend(createBackend, 'owner');
  const region = await owner.backend.register(hostMemory(new Uint8Array(64)));
  const peer = openMailbox(owner);
  const { steps, deviceWork } = peer;
  const first = deviceWork.begin();
  const second = deviceWork.begin();
  const released = region.release();
  assert.equal(await hasEnded(released), false);
  const third = deviceWork.begin();
  deviceWork.end(second);
  assert.equal(await hasEnded(released), false);
  steps.begin();
  deviceWork.end(first);
  await released;
  deviceWork.end(third);
  steps.end();
  assert.ok(deviceWork.hasEnded(third));
  peer[Symbol.dispose]();
  await owner.backend.close();
});

test('a step that does not end is WL_TIMEOUT, which names the peer, and release() may be called again', async () => {
  const owner = await openBackend(createBackend, 'owner', { timeoutMs: 50 });
  const region = await owner.backend.register(hostMemory(new Uint8Array(64)));
  const peer = openMailbox(owner);
  peer.steps.begin();
  for (let attempt = 0; attempt < 2; attempt += 1) {
    await assert.rejects(region.release(), (error: unknown) => {
      assert.ok(error instanceof WeftlineError && error.code === 'WL_TIMEOUT');
      assert.match(error.message, /agent holder .*50 ms/);
      return true;
    });
  }
  peer.steps.end();
  await region.release();
  await region.release();
  peer.steps.begin();
  await assert.rejects(owner.backend.close(), { code: 'WL_TIMEOUT' });
  peer.steps.end();
  peer[Symbol.dispose]();
});

test('a peer that died within a step, or that has left, holds nothing up, and its place serves another', async () => {
  const owner = await openBackend(createBackend, 'owner', { timeoutMs: 60_000 });
  const region = await owner.backend.register(hostMemory(new Uint8Array(64)));
  const child: ChildProcess = fork(script, { serialization: 'advanced' });
  child.send({ ...owner.peer });
  await once(child, 'message');
  const released = region.release();
  assert.equal(await hasEnded(released), false);
  child.kill('SIGKILL');
  await released;
  const next = await owner.backend.register(hostMemory(new Uint8Array(64)));
  const left = openMailbox(owner);
  left[Symbol.dispose]();
  await next.release();
  for (let polls = 0; polls < 1000; polls += 1) owner.backend.poll();
  // The owner looks for senders that left every 50 ms.
  await new Promise((resolve) => setTimeout(resolve, 60));
  for (let polls = 0; polls < 1000; polls += 1) owner.backend.poll();
  const again = openMailbox(owner);
  assert.equal(again.slot, 0);
  await (await owner.backend.register(hostMemory(new Uint8Array(64)))).release();
  again[Symbol.dispose]();
  await owner.backend.close();
});
