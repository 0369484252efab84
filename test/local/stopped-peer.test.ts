// A peer whose process is stopped: whatever calls it ends in the time of one call.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CpuDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { Agent, DescriptorList, Endpoint, etcdMetadataStore, loadPublished, publishMetadata } from 'weftline/agent';
import { endpointHello, introduce } from '#lib/agent/endpoint/endpoint.js';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { receiveHello } from '#lib/meeting/hello.js';
import { MeetingListener } from '#lib/meeting/listener.js';
import { encodeDescs } from '#lib/device-api/host/device-side.js';
import { hostIdentity } from '#lib/world/host-identity.js';
import { host, type Target, visit } from './support/listeners.ts';

const TOKEN = 'token';
const TIMEOUT_MS = 1_000;
/** The time of a call that was given none: what takes as long has not heard of its call's time. */
const settings = { timeoutMs: 900_000 };
/** For what a busy machine does besides; far below another wait of any kind. */
const options = { timeout: 600_000 };

interface Peer {
  readonly targets: readonly Target[];
  /** Metadata of an agent with some memory. */
  readonly metadata: string;
  readonly address: number;
  readonly region: number;
  readonly etcd: number;
}

// Each of them waits for most of its time.
describe('a stopped peer', { concurrency: 4 }, () => {
  const script = fileURLToPath(new URL('./support/stopped-peer.js', import.meta.url));
  const child = spawn(process.execPath, [script, TOKEN], { stdio: ['ignore', 'pipe', 'inherit'] });
  let peer: Peer;

  before(async () => {
    const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
    peer = JSON.parse(line) as Peer;
    child.kill('SIGSTOP');
  });
  after(() => child.kill('SIGKILL'));

  const target = (name: string): Target => peer.targets.find((known) => known.name === name) as Target;

  async function caller(): Promise<Agent> {
    const agent = await Agent.create('caller', { token: TOKEN, backends: ['multipath'], settings });
    await agent.loadRemoteMetadata(Buffer.from(peer.metadata, 'base64'));
    return agent;
  }

  for (const name of ['transport', 'endpoint', 'metadata', 'multipath', 'store']) {
    test(`its ${name} listener`, options, async () => {
      await assert.rejects(visit(target(name), TOKEN, TIMEOUT_MS), { code: 'WL_TIMEOUT' });
    });
  }

  test('connect, notify and prepare of an agent', options, async () => {
    await using agent = await caller();
    const wait = { timeoutMs: TIMEOUT_MS };
    const late = { code: 'WL_TIMEOUT' };
    const memory = await agent.allocate(64);
    const remote = DescriptorList.of({ kind: 'host', address: peer.address, length: 64 });
    const transfer = { operation: 'write', peer: 'stopped', local: DescriptorList.of(memory), remote } as const;
    await Promise.all([
      assert.rejects(agent.connect('stopped', wait), late),
      assert.rejects(agent.notify('stopped', new Uint8Array(8), wait), late),
      assert.rejects(agent.prepare({ ...transfer, ...wait }), late),
    ]);
  });

  test('an endpoint whose agent does not answer after the hello', options, async () => {
    const credentials = credentialsOf(TOKEN);
    const listener = await MeetingListener.open({
      target: { host, port: 0 },
      credentials,
      settings: { maxStrangers: 16, greetingMs: 10_000, timeoutMs: 900_000 },
      serve: async (channel) => {
        const metadata = Buffer.from(peer.metadata, 'base64');
        await receiveHello(channel, endpointHello(credentials), () =>
          introduce({ gpuIndex: 0, connection: 0, metadata }),
        );
      },
    });
    try {
      await using endpoint = await Endpoint.create({ token: TOKEN, backends: ['multipath'], settings });
      await assert.rejects(endpoint.connect(host, listener.port, { timeoutMs: TIMEOUT_MS }), { code: 'WL_TIMEOUT' });
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      await assert.rejects(endpoint.connect(host, listener.port, { signal }), { name: 'TimeoutError' });
    } finally {
      listener.close();
    }
  });

  test('a request of a device host', options, async () => {
    const device = await CpuDevice.create({ addressSpaceMiB: 64 });
    const parts = { name: 'caller', device, token: TOKEN, backends: ['multipath'], direct: false } as const;
    await using deviceHost = await DeviceHost.create({ ...parts, timeoutMs: TIMEOUT_MS });
    const memory = await deviceHost.allocate(64);
    await deviceHost.addRemoteAgent(Buffer.from(peer.metadata, 'base64'));
    const ranges = [0, 8].map((offset) => ({ region: peer.region, offset, bytes: 8 }));
    const descs = encodeDescs({ agent: 'stopped', host: hostIdentity(), process: child.pid ?? 0, ranges });
    await assert.rejects(deviceHost.createWriteReq({ memory }, descs, 'stopped'), {
      code: 'WL_TIMEOUT',
      message: /agent stopped over multipath.*1000 ms/,
    });
  });

  test('metadata in etcd', options, async () => {
    await using agent = await caller();
    const endpoint = `http://${host}:${peer.etcd}`;
    const lost = { code: 'WL_PEER_LOST', message: new RegExp(`within ${TIMEOUT_MS} ms`) };
    const reader = etcdMetadataStore({ endpoint, requestMs: settings.timeoutMs });
    await assert.rejects(loadPublished(agent, reader, 'other', { timeoutMs: TIMEOUT_MS }), /no answer within \d+ ms/);
    const store = etcdMetadataStore({ endpoint, requestMs: TIMEOUT_MS });
    await Promise.all([1, 2, 3].map(() => assert.rejects(publishMetadata(agent, store), lost)));
  });
});
