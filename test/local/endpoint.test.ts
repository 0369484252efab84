import assert from 'node:assert/strict';
import test from 'node:test';
import { DescriptorList, Endpoint, type EndpointConnection } from 'weftline/agent';
import { withCode } from '../support/with-code.ts';

type Backend = 'local' | 'multipath';
type Way = Backend | 'staged';

/** "staged": memory is staged as that of GPUs is. */
const ways: readonly Way[] = ['local', 'multipath', 'staged'];

interface Two extends AsyncDisposable {
  readonly server: Endpoint;
  readonly client: Endpoint;
  /** Connections of the client, and of the server. */
  readonly there: EndpointConnection;
  readonly here: EndpointConnection;
}

async function openTwo(way: Way): Promise<Two> {
  const options = { backends: [backendOf(way)], stagesHostMemory: way === 'staged' };
  const server = await Endpoint.create({ ...options, localGpuIndex: 3 });
  const client = await Endpoint.create(options);
  const accepted = server.accept();
  const there = await client.connect('127.0.0.1', server.port);
  const here = await accepted;
  return {
    server,
    client,
    there,
    here,
    [Symbol.asyncDispose]: async () => {
      await client.close();
      await server.close();
      await server.close();
    },
  };
}

function backendOf(way: Way): Backend {
  return way === 'staged' ? 'multipath' : way;
}

for (const way of ways) {
  test(`${way}: messages meet receives in order, whichever comes first; memory of either kind`, async () => {
    await using two = await openTwo(way);
    const { server, client, there, here } = two;
    assert.equal(there.backend, backendOf(way));
    assert.equal(there.gpuIndex, 3);
    assert.equal(there.ip, '127.0.0.1');
    const source = await client.register(new Uint8Array(new SharedArrayBuffer(100_000)));
    const target = await server.allocate(100_000);
    for (let index = 0; index < source.length; index += 1) source.bytes[index] = index * 7;
    const answer = await client.allocate(10);
    const back = there.recv({ region: answer });
    await here.send({ region: target, bytes: 7 }).wait();
    assert.equal(await back.wait(), 7);
    for (let round = 0; round < 3; round += 1) {
      target.bytes.fill(0);
      const first = there.send({ region: source, offset: 0, bytes: 60_000 });
      const received = here.recv({ region: target, offset: 0, bytes: 70_000 });
      const other = here.recv({ region: target, offset: 70_000 });
      const second = there.send({ region: source, offset: 60_000, bytes: 1 });
      assert.equal(await received.wait(), 60_000);
      assert.equal(await other.wait(), 1);
      assert.equal(await first.wait(), 60_000);
      assert.equal(await second.wait(), 1);
      assert.equal(first.state, 'done');
      assert.deepEqual(Buffer.from(target.bytes.subarray(0, 60_000)), Buffer.from(source.bytes.subarray(0, 60_000)));
      assert.equal(target.bytes[70_000], source.bytes[60_000]);
    }
  });

  test(`${way}: vectors that are cut differently on both sides; writes and reads`, async () => {
    await using two = await openTwo(way);
    const { server, client, there, here } = two;
    const source = await client.allocate(1000);
    const target = await server.allocate(1000, 'target');
    source.bytes.forEach((_, index) => (source.bytes[index] = index * 13));
    const received = here.recv([
      { region: target, offset: 500, bytes: 10 },
      { region: target, offset: 0, bytes: 200 },
    ]);
    const sent = there.send([
      { region: source, offset: 3, bytes: 100 },
      { region: source, offset: 900, bytes: 100 },
    ]);
    assert.equal(await received.wait(), 200);
    assert.equal(await sent.wait(), 200);
    const all = Buffer.concat([source.bytes.subarray(3, 103), source.bytes.subarray(900, 1000)]);
    const came = Buffer.concat([target.bytes.subarray(500, 510), target.bytes.subarray(0, 190)]);
    assert.deepEqual(came, all);
    const remote = await there.memory('target');
    await there
      .write(
        [
          { region: source, offset: 0, bytes: 5 },
          { region: source, offset: 5, bytes: 15 },
        ],
        DescriptorList.of(remote, 700, 20),
      )
      .wait();
    assert.deepEqual(Buffer.from(target.bytes.subarray(700, 720)), Buffer.from(source.bytes.subarray(0, 20)));
    await there.read({ region: source, offset: 40, bytes: 20 }, DescriptorList.of(remote, 700, 20)).wait();
    assert.deepEqual(Buffer.from(source.bytes.subarray(40, 60)), Buffer.from(source.bytes.subarray(0, 20)));
    assert.throws(
      () => there.write({ region: source, bytes: 3 }, DescriptorList.of(remote, 0, 4)),
      withCode('WL_INVALID_ARGUMENT'),
    );
  });

  test(`${way}: a receive that is too small fails on both sides, and the next message arrives`, async () => {
    await using two = await openTwo(way);
    const { server, client, there, here } = two;
    const source = await client.allocate(100);
    const target = await server.allocate(100);
    const small = here.recv({ region: target, bytes: 10 });
    const large = there.send({ region: source });
    await assert.rejects(large.wait(), withCode('WL_CAPACITY', '100', '10'));
    await assert.rejects(small.wait(), withCode('WL_CAPACITY', '100', '10'));
    const good = here.recv({ region: target });
    await there.send({ region: source }).wait();
    assert.equal(await good.wait(), 100);
    const late = here.recv({ region: target });
    await assert.rejects(late.wait({ timeoutMs: 20 }), withCode('WL_TIMEOUT', there.ip));
    await assert.rejects(late.wait({ signal: AbortSignal.abort(new Error('enough')) }), /enough/);
    await client.close();
    await assert.rejects(late.wait(), withCode('WL_CLOSED'));
    assert.throws(() => here.recv({ region: target }), withCode('WL_CLOSED'));
    await assert.rejects(async () => client.connect('127.0.0.1', 1), withCode('WL_CLOSED'));
  });
}

test('endpoints: strangers are refused, nobody comes, nobody is there', async () => {
  await using server = await Endpoint.create({ backends: ['local'], token: 'right' });
  await using stranger = await Endpoint.create({ backends: ['local'], token: 'wrong' });
  await assert.rejects(stranger.connect('127.0.0.1', server.port), withCode('WL_UNAUTHORIZED'));
  await assert.rejects(server.accept({ timeoutMs: 20 }), withCode('WL_TIMEOUT'));
  const reason = new Error('enough');
  await assert.rejects(server.accept({ signal: AbortSignal.abort(reason), timeoutMs: 20 }), reason);
  const { port } = server;
  await server.close();
  await assert.rejects(stranger.connect('127.0.0.1', port, { timeoutMs: 50 }), withCode('WL_TIMEOUT'));
});

test('memory that an endpoint gives up is forgotten by its peers', async () => {
  await using two = await openTwo('local');
  const { server, client, there } = two;
  const first = await server.allocate(4096, 'first');
  await server.allocate(4096, 'second');
  await there.memory('second');
  const names = (): string[] => client.agent.remoteMemory(there.peer).map(({ name }) => name);
  assert.deepEqual(names(), ['first', 'second']);
  await first.close();
  await server.allocate(4096, 'third');
  await there.memory('third');
  assert.deepEqual(names(), ['second', 'third']);
});

test('an index that no GPU can have is refused', async () => {
  for (const localGpuIndex of [-1, 0.5, Number.NaN]) {
    await assert.rejects(Endpoint.create({ localGpuIndex }), { code: 'WL_INVALID_ARGUMENT', message: /localGpuIndex/ });
  }
});
