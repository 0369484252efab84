// In the guest: what goes wrong between two agents over RDMA, and how each finds out.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readdirSync, readlinkSync } from 'node:fs';
import { connect } from 'node:net';
import test from 'node:test';
import { rdmaRegionInfo } from '#lib/agent/rdma/rdma-messages.js';
import { createBackend } from '#lib/agent/backends/verbs/verbs-backend.js';
import { decodeRdmaInfo } from '#lib/agent/rdma/rdma-meeting.js';
import { hostMemory, openBackend } from '../../local/support/backend-context.ts';
import { withCode } from '../../support/with-code.ts';
import { MEMORY_BYTES, openTwo, pollAll, prepareWrite, settled, type TwoBackends } from './support/agents.ts';
import { setLink } from './support/command.ts';

async function rest(two: TwoBackends): Promise<void> {
  const transfer = await prepareWrite(two, { bytes: 4096 });
  two.out.bytes.fill(0x5a, 0, 4096);
  transfer.post(Buffer.from('it goes on'));
  await settled(two, transfer);
  assert.equal(transfer.state, 'done', String(transfer.error));
  await pollAll(two.both, () => two.there.received.length > 0, 'no message came');
  assert.equal(two.there.received.pop()?.text, 'it goes on');
  assert.ok(two.into.bytes.subarray(0, 4096).every((byte) => byte === 0x5a));
  assert.equal(two.link.state, 'open');
}

test('a wrong key fails its own transfer with the status in words; what is behind it is carried out', async () => {
  await using two = await openTwo();
  const { link, offered, there } = two;
  const info = offered.info.slice();
  info[rdmaRegionInfo.size]! ^= 0x55;
  const wrong = link.importRegion(info, { kind: 'host', bytes: MEMORY_BYTES });
  const bad = await prepareWrite(two, { remote: wrong, bytes: 64 });
  const good = await prepareWrite(two, { bytes: 64 });
  bad.post(Buffer.from('must not come'));
  good.post(Buffer.from('comes'));
  await settled(two, bad);
  withCode('WL_UNAUTHORIZED', /there .*IBV_WC_REM_ACCESS_ERR/)(bad.error);
  await settled(two, good);
  assert.equal(good.state, 'done', String(good.error));
  await pollAll(two.both, () => there.received.length > 0, 'no message came');
  assert.deepEqual(there.received.splice(0), [{ peer: 'here', text: 'comes' }]);
  await rest(two);
  assert.throws(() => bad.post(), withCode('WL_UNAUTHORIZED', /there/));
});

test('a range beyond the region is refused by the device', async () => {
  await using two = await openTwo();
  const { link, offered } = two;
  const longer = link.importRegion(offered.info, { kind: 'host', bytes: 2 * MEMORY_BYTES });
  const bad = await prepareWrite(two, { remote: longer, remoteOffset: MEMORY_BYTES - 32, bytes: 64 });
  bad.post();
  await settled(two, bad);
  withCode('WL_UNAUTHORIZED', /there/)(bad.error);
  await rest(two);
});

test('a channel whose put fails ends; the operations of others behind it are carried out once', async () => {
  await using two = await openTwo();
  const { link, offered, local, remote, into } = two;
  const info = offered.info.slice();
  info[rdmaRegionInfo.size]! ^= 0x55;
  const wrong = link.importRegion(info, { kind: 'host', bytes: MEMORY_BYTES });
  const [bad, good] = [link.openChannel(), link.openChannel()];
  for (let round = 0; round < 10; round += 1) assert.ok(good.signal(remote, 0, 1));
  assert.ok(bad.put({ local, localOffset: 0, remote: wrong, remoteOffset: 0, bytes: 8 }));
  assert.ok(bad.signal(remote, 8, 1));
  for (let round = 0; round < 10; round += 1) assert.ok(good.signal(remote, 0, 1));
  await pollAll(two.both, () => good.delivered === 20 && bad.error !== undefined, 'the channels do not end');
  withCode('WL_UNAUTHORIZED', /there/)(bad.error);
  assert.deepEqual([bad.delivered, good.error], [0, undefined]);
  const cells = new BigInt64Array(into.bytes.buffer, into.bytes.byteOffset, 2);
  assert.deepEqual([...cells], [20n, 0n]);
  await Promise.all([bad.close(), good.close()]);
});

test('strangers who send random bytes to the meeting get nothing, and the others go on', async () => {
  await using two = await openTwo();
  const address = decodeRdmaInfo(two.there.peer.connectionInfo);
  assert.ok(address);
  for (let caller = 0; caller < 5; caller += 1) {
    const socket = connect(address.port, address.host);
    const ended = new Promise((resolve) => socket.once('close', resolve));
    socket.on('error', () => {});
    socket.resume();
    socket.write(randomBytes(1 + caller * 3000));
    socket.setTimeout(2000, () => socket.destroy());
    await ended;
  }
  await rest(two);
});

test('a port that stays down ends its links, and the error names the event', async () => {
  const two = await openTwo();
  try {
    setLink('veth0', 'down');
    await pollAll(two.both, () => two.link.state === 'dead', 'the link stays open');
    withCode('WL_PEER_LOST', /rxe0 port 1: a port went down \(IBV_EVENT_PORT_ERR\)/)(two.link.error);
  } finally {
    setLink('veth0', 'up');
    await two[Symbol.asyncDispose]();
  }
});

function deviceFiles(): string[] {
  return readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).includes('infiniband');
    } catch {
      return false;
    }
  });
}

test('a backend that is closed while it connects leaves nothing behind', async () => {
  const before = deviceFiles().length;
  const here = await openBackend(createBackend, 'here', { rdmaDevices: 'rxe0' });
  const there = await openBackend(createBackend, 'there', { rdmaDevices: 'rxe1' });
  // At once, and in the midst of the meeting.
  for (const turns of [0, 3]) {
    const mine = turns === 0 ? here : await openBackend(createBackend, 'again', { rdmaDevices: 'rxe0' });
    const refused = assert.rejects(mine.backend.connect(there.peer, { timeoutMs: 60_000 }), withCode('WL_CLOSED'));
    for (let turn = 0; turn < turns; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    await mine.backend.close();
    await refused;
  }
  await there.backend.close();
  assert.equal(deviceFiles().length, before);
});

test('puts that wait for company need a call, and none once they are with the device', async () => {
  await using two = await openTwo();
  const { link, local, remote, both } = two;
  const channel = link.openChannel();
  assert.ok(channel.put({ local, localOffset: 0, remote, remoteOffset: 0, bytes: 64 }));
  assert.equal(channel.needsCalls, true);
  two.here.backend.poll();
  assert.equal(channel.needsCalls, false);
  await pollAll(both, () => channel.delivered === channel.posted, 'the put does not end');
  await channel.close();
});

test('nothing is registered after close', async () => {
  const before = deviceFiles().length;
  const two = await openTwo();
  await rest(two);
  await two[Symbol.asyncDispose]();
  assert.equal(deviceFiles().length, before);
  await assert.rejects(two.here.backend.register(hostMemory(two.out.bytes)), withCode('WL_CLOSED'));
});
