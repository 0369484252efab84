// Hosts of kernels in two processes, over each backend: random puts and words, and a peer that is killed.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { CpuDevice, WeftlineError } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import type { DeviceHostPeer } from './support/device-host-peer.ts';
import { whyMissing } from './support/missing-backend.ts';
import { runRanks } from './support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { until } from '../support/until.ts';
import { isWhole } from '../support/extent.ts';

const property = new URL('./ranks/device-api-property.js', import.meta.url);
const peerModule = fileURLToPath(new URL('./support/device-host-peer.js', import.meta.url));
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const rounds = isWhole ? '3' : '1';
const decode = (text: string): Uint8Array => Buffer.from(text, 'base64');

test('random puts, signals and words arrive as they are where memory is staged', { timeout: 600_000 }, async () => {
  const { exitCode, transcript } = await runRanks(2, property, { args: ['staged', seed, rounds], timeoutMs: 600_000 });
  assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
});

for (const backend of backendNames) {
  const missing = await whyMissing(backend);
  const options = { skip: missing ?? false, timeout: 600_000 };

  // Staged memory goes over multipath as well.
  const isStagedToo = backend === 'multipath' && !isWhole;
  const random = { ...options, skip: options.skip || (isStagedToo && 'left to the nightly run') };
  test(`${backend}: random puts, signals and words arrive as they are`, random, async () => {
    const { exitCode, transcript } = await runRanks(2, property, { args: [backend, seed, rounds], timeoutMs: 600_000 });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    assert.match(transcript, new RegExp(`queue, then ${backend}:`));
  });

  test(`${backend}: a peer to which nothing goes is watched too: its death ends waits for it`, options, async () => {
    const victim = fork(peerModule, [backend]);
    const [said] = (await once(victim, 'message')) as [DeviceHostPeer];
    const device = await CpuDevice.create({ addressSpaceMiB: 64 });
    await using host = await DeviceHost.create({ name: 'here', device, backends: [backend], timeoutMs: 60_000 });
    const answer = await host.allocate(64);
    await host.addRemoteAgent(decode(said.metadata));
    const word = new BigUint64Array(host.view(answer).buffer, host.view(answer).byteOffset, 1);
    const lost = assert.rejects(host.kernelApi.wait(word, 1), { code: 'WL_PEER_LOST', message: /victim/ });
    victim.kill('SIGKILL');
    await lost;
    assert.throws(() => host.throwIfFailed(), { code: 'WL_PEER_LOST' });
    host.throwIfFailed();
  });

  test(
    `${backend}: a silent peer holds up nobody who adds it, and its death is noticed all the same`,
    options,
    async () => {
      const victim = fork(peerModule, [backend]);
      const [said] = (await once(victim, 'message')) as [DeviceHostPeer];
      const device = await CpuDevice.create({ addressSpaceMiB: 64 });
      await using host = await DeviceHost.create({ name: 'here', device, backends: [backend], timeoutMs: 60_000 });
      const answer = await host.allocate(64);
      victim.kill('SIGSTOP');
      // Until the deadline of the link nothing would come, and then nobody would watch.
      await host.addRemoteAgent(decode(said.metadata));
      const word = new BigUint64Array(host.view(answer).buffer, host.view(answer).byteOffset, 1);
      const lost = assert.rejects(host.kernelApi.wait(word, 1), { code: 'WL_PEER_LOST', message: /victim/ });
      victim.kill('SIGKILL');
      await lost;
    },
  );

  test(`${backend}: a peer that is killed ends waits and commands under way, by name`, options, async () => {
    const victim = fork(peerModule, [backend]);
    const [said] = (await once(victim, 'message')) as [DeviceHostPeer];
    const device = await CpuDevice.create({ addressSpaceMiB: 64 });
    await using host = await DeviceHost.create({ name: 'here', device, backends: [backend], timeoutMs: 60_000 });
    const source = await host.allocate(1 << 20);
    const answer = await host.allocate(64);
    const peer = await host.addRemoteAgent(decode(said.metadata));
    const put = await host.createGpuReq(await host.createWriteReq({ memory: source }, decode(said.data), peer));
    const tell = await host.createGpuReq(await host.createWriteReq({ memory: source }, decode(said.counter), peer));
    const { kernelApi } = host;
    const send = (): void =>
      kernelApi.putWithSignal(
        { request: put, target: 0, source: 0, bytes: 1 << 20 },
        { request: tell, target: 0, add: 1 },
      );
    send();
    await kernelApi.flush(put);
    // So that nothing is acknowledged any more, if the backend needs that.
    victim.kill('SIGSTOP');
    for (let turn = 0; turn < 3; turn += 1) send();
    const gone = once(victim, 'exit');
    victim.kill('SIGKILL');
    await gone;
    // What the victim was to answer with.
    const word = new BigUint64Array(host.view(answer).buffer, host.view(answer).byteOffset, 1);
    const error = await kernelApi.wait(word, 1).then(
      () => assert.fail('a dead peer answered'),
      (reason: WeftlineError) => reason,
    );
    // Not WL_TIMEOUT: the death ended the wait before its deadline.
    assert.equal(error.code, 'WL_PEER_LOST', error.message);
    assert.match(error.message, /victim/);
    assert.throws(() => host.throwIfFailed(), { code: 'WL_PEER_LOST' });
    // And what comes after fails too, whichever way it is noticed.
    let later: unknown;
    await until(async () => {
      try {
        send();
        await kernelApi.flush(put);
      } catch (failure) {
        later = failure;
      }
      return later !== undefined;
    }, 'a failure of what is sent to the dead peer');
    assert.ok(later instanceof WeftlineError, String(later));
  });
}
