// The way to a link: each caller, also one that shares the attempt of another, has the deadline of its own call.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { BackendLink, ConnectOptions } from '#lib/agent/backend.js';
import type { BackendName, NamedBackend } from '#lib/agent/backends/backend-table.js';
import { chooseLink } from '#lib/agent/peer-links.js';
import { RemoteAgent } from '#lib/agent/remote-agent.js';
import { Deadline } from '#lib/core/deadline.js';
import { WeftlineError } from '#lib/core/errors.js';

const NEVER_MS = 60_000;

function fakeBackend(name: BackendName, connect: (options: ConnectOptions) => Promise<BackendLink>): NamedBackend {
  const backend: Partial<NamedBackend> = {
    name,
    whyNotPeer: () => undefined,
    whyNotMemory: () => undefined,
    whyNotRemote: () => undefined,
    connect: (_, options) => connect(options),
  };
  return backend as NamedBackend;
}

function peerOf(...backends: readonly NamedBackend[]): RemoteAgent {
  const identity = { name: 'peer', incarnation: '0123456789abcdef', host: 'here', process: 1 };
  const connections = new Map(backends.map(({ name }) => [name, new Uint8Array()]));
  const metadata = { ...identity, isWhole: true, connections, regions: [], withdrawn: [] };
  const peer = new RemoteAgent(metadata);
  peer.learn(metadata);
  return peer;
}

function wait(timeoutMs: number) {
  return { timeoutMs, deadline: new Deadline(timeoutMs) };
}

const link = { error: undefined, close: () => Promise.resolve() } as unknown as BackendLink;

test('a second backend gets what the first has left of the time', async () => {
  const seen: (Deadline | undefined)[] = [];
  const full = fakeBackend('local', ({ deadline }) => {
    seen.push(deadline);
    return Promise.reject(new WeftlineError('WL_CAPACITY', 'full'));
  });
  const other = fakeBackend('multipath', ({ deadline }) => {
    seen.push(deadline);
    return Promise.resolve(link);
  });
  const own = wait(NEVER_MS);
  const backends = [full, other];
  const peer = peerOf(...backends);
  await chooseLink({ backends, missing: new Map(), peer, memory: { locals: [], remotes: [] } }, own);
  assert.deepEqual(seen, [own.deadline, own.deadline]);
});

test('who shares a connect of a caller with less time goes on when that one gives up', async () => {
  let calls = 0;
  const backend = fakeBackend('multipath', ({ deadline, timeoutMs }) => {
    calls += 1;
    if (calls > 1) return Promise.resolve(link);
    return new Promise((_resolve, reject) => {
      setTimeout(() => reject(new WeftlineError('WL_TIMEOUT', `${timeoutMs} ms`)), deadline?.leftMs);
    });
  });
  const peer = peerOf(backend);
  const first = assert.rejects(peer.link(backend, wait(20)), { code: 'WL_TIMEOUT' });
  assert.equal(await peer.link(backend, wait(NEVER_MS)), link);
  await first;
});

test('a broken link that does not close in time does not hold a call up', { timeout: 240_000 }, async () => {
  let error: WeftlineError | undefined;
  const stuck = {
    get error() {
      return error;
    },
    close: () => new Promise(() => {}),
  } as unknown as BackendLink;
  const backend = fakeBackend('multipath', () => Promise.resolve(stuck));
  const peer = peerOf(backend);
  await peer.link(backend, wait(NEVER_MS));
  error = new WeftlineError('WL_PEER_LOST', 'gone');
  await assert.rejects(peer.link(backend, wait(50)), { code: 'WL_TIMEOUT', message: /peer over multipath.*50 ms/ });
});
