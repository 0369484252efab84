// In the guest: the backend ucx without agents: what its device checks, in which order things arrive, and what is left behind.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { createBackend } from '#lib/agent/backends/ucx/ucx-backend.js';
import { NativeBlock } from '#lib/native/library.js';
import { hostMemory, openBackend } from '../../local/support/backend-context.ts';
import { planned } from '../../local/support/planned-transfer.ts';
import { withCode } from '../../support/with-code.ts';
import { MEMORY_BYTES, openTwo, pollAll, prepareWrite, settled, type TwoBackends } from './support/agents.ts';

async function rest(two: TwoBackends, seed: number): Promise<void> {
  const transfer = await prepareWrite(two, { bytes: 4096 });
  two.out.bytes.fill(seed, 0, 4096);
  transfer.post(Buffer.from('it goes on'));
  await settled(two, transfer);
  assert.equal(transfer.state, 'done', String(transfer.error));
  await pollAll(two.both, () => two.there.received.length > 0, 'no message came');
  assert.equal(two.there.received.pop()?.text, 'it goes on');
  assert.ok(two.into.bytes.subarray(0, 4096).every((byte) => byte === seed));
  assert.equal(two.link.state, 'open');
  await transfer.release();
}

test('ucx: writes and reads of every size are intact, and messages come behind their data, in order', async () => {
  await using two = await openTwo({}, 'ucx');
  const { link, out, into, local, remote, there, both } = two;
  const sizes = [1, 8, 64, 4099, 65_536, MEMORY_BYTES];
  for (const bytes of sizes) {
    out.bytes.set(randomBytes(bytes));
    const text = 'm'.repeat(bytes % 97);
    const write = await prepareWrite(two, { bytes });
    write.post(Buffer.from(text));
    await pollAll(both, () => there.received.length > 0, 'no message came');
    assert.equal(there.received.pop()?.text, text);
    assert.ok(Buffer.compare(out.bytes.subarray(0, bytes), into.bytes.subarray(0, bytes)) === 0, `${bytes}`);
    await settled(two, write);
    out.bytes.fill(0, 0, bytes);
    const read = await link.prepare('read', planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes }]));
    read.post(Buffer.from('read'));
    await settled(two, read);
    assert.equal(read.state, 'done', String(read.error));
    assert.ok(Buffer.compare(out.bytes.subarray(0, bytes), into.bytes.subarray(0, bytes)) === 0, `${bytes}, read`);
    await pollAll(both, () => there.received.length > 0, 'no message came');
    assert.equal(there.received.pop()?.text, 'read');
  }
});

test('ucx: additions and stores come behind the puts before them, each once', async () => {
  await using two = await openTwo({}, 'ucx');
  const { link, out, into, local, remote, both } = two;
  const channel = link.openChannel();
  const cells = new BigInt64Array(into.bytes.buffer, into.bytes.byteOffset, 2);
  for (let round = 1; round <= 40; round += 1) {
    out.bytes.fill(round, 0, 8192);
    assert.ok(channel.put({ local, localOffset: 0, remote, remoteOffset: 4096, bytes: 8192 }));
    assert.ok(round % 2 === 0 ? channel.signal(remote, 0, 3) : channel.signal(remote, 8, 1, round));
    const isSeen = (): boolean => (round % 2 === 0 ? Number(cells[0]) === 1.5 * round : Number(cells[1]) === round);
    await pollAll(both, isSeen, 'the signal does not come');
    assert.ok(into.bytes.subarray(4096, 12_288).every((byte) => byte === round));
  }
  await pollAll(both, () => channel.delivered === channel.posted, 'the channel does not end');
  await channel.close();
});

test('ucx: what is posted after the peer has unmapped the memory fails, and the link goes on', async () => {
  await using two = await openTwo({}, 'ucx');
  const { link, there, local } = two;
  for (let round = 1; round <= 3; round += 1) {
    const memory = new NativeBlock(65_536);
    const offered = await there.backend.register(hostMemory(memory.bytes));
    const remote = link.importRegion(offered.info, { kind: 'host', bytes: 65_536 });
    const bad = await prepareWrite(two, { remote, bytes: 65_536 });
    bad.post();
    await settled(two, bad);
    assert.equal(bad.state, 'done', String(bad.error));
    await offered.release();
    memory.bytes.fill(0x53);
    two.out.bytes.fill(round);
    const channel = link.openChannel();
    assert.ok(channel.put({ local, localOffset: 0, remote, remoteOffset: 0, bytes: 4096 }));
    bad.post(Buffer.from('must not come'));
    await settled(two, bad);
    withCode('WL_UNAUTHORIZED', /there has taken back/)(bad.error);
    withCode('WL_UNAUTHORIZED', /there has taken back/)(channel.error);
    assert.ok(memory.bytes.every((byte) => byte === 0x53));
    assert.throws(() => bad.post(), withCode('WL_UNAUTHORIZED'));
    assert.equal(link.isWithdrawn?.(remote), true);
    await rest(two, round);
    assert.deepEqual(there.received, []);
  }
});

test('ucx: a refusal on one link leaves the link in the other direction alone', async () => {
  await using two = await openTwo({}, 'ucx');
  const { here, there, out, into, offered } = two;
  const back = await there.backend.connect(here.peer, { timeoutMs: 120_000 });
  const mine = await here.backend.register(hostMemory(out.bytes));
  const remote = back.importRegion(mine.info, { kind: 'host', bytes: MEMORY_BYTES });
  const answer = await back.prepare(
    'write',
    planned([{ local: offered, localOffset: 0, remote, remoteOffset: 0, bytes: 64 }]),
  );
  const memory = new NativeBlock(4096);
  const gone = await there.backend.register(hostMemory(memory.bytes));
  const refused = two.link.importRegion(gone.info, { kind: 'host', bytes: 4096 });
  await gone.release();
  const bad = await prepareWrite(two, { remote: refused, bytes: 64 });
  bad.post();
  await settled(two, bad);
  withCode('WL_UNAUTHORIZED')(bad.error);
  into.bytes.fill(9, 0, 64);
  answer.post(Buffer.from('back'));
  await settled(two, answer);
  assert.equal(answer.state, 'done', String(answer.error));
  await pollAll(two.both, () => here.received.length > 0, 'no message came');
  assert.ok(out.bytes.subarray(0, 64).every((byte) => byte === 9));
  assert.equal(back.state, 'open');
});

test('ucx: more messages than the peer takes are refused, and none is lost or doubled', async () => {
  await using two = await openTwo({}, 'ucx');
  const { link, there, both } = two;
  let sent = 0;
  let isBusy = false;
  while (sent < 2000) {
    try {
      link.notify(Buffer.from(`message ${sent}`));
      sent += 1;
    } catch (error) {
      withCode('WL_BUSY')(error);
      isBusy = true;
      const before = there.received.length;
      await pollAll(both, () => there.received.length > before, 'nothing is taken');
    }
  }
  await pollAll(both, () => there.received.length === sent, 'messages are missing');
  assert.ok(isBusy);
  for (const [index, { text }] of there.received.entries()) assert.equal(text, `message ${index}`);
});

test('ucx: it is refused where UCX_TLS allows nothing that a device checks', async () => {
  const before = process.env['UCX_TLS'];
  process.env['UCX_TLS'] = 'tcp,self';
  try {
    await assert.rejects(openBackend(createBackend, 'here'), withCode('WL_UNSUPPORTED', /local.*multipath/));
  } finally {
    if (before === undefined) delete process.env['UCX_TLS'];
    else process.env['UCX_TLS'] = before;
  }
});
