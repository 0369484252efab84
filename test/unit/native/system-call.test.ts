// System calls that fail: errno comes with the result, and waits survive every failure that may pass.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Futex, isByteLocked } from '#lib/native/libc.js';
import { bindDeclaredFunctions, NativeBlock } from '#lib/native/library.js';
import { ReadinessSet } from '#lib/native/readiness.js';
import { pooledSystemCall, substituteSystemCall, systemCall } from '#lib/native/system-call.js';
import { DatagramReceiver, RECEIVE_ARENA_BYTES } from '#lib/transport/io/udp/udp-io.js';
import { UdpPacketIo } from '#lib/transport/io/udp/udp-packet-io.js';

const errnos = {
  EPERM: 1,
  EINTR: 4,
  EIO: 5,
  EBADF: 9,
  EAGAIN: 11,
  ENOMEM: 12,
  EINVAL: 22,
  EMSGSIZE: 90,
  ENOBUFS: 105,
  ETIMEDOUT: 110,
  ECONNREFUSED: 111,
};

/** What the substituted calls return instead of being made. */
let injected: number | undefined;
let refusals = 0;
for (const name of ['syscall', 'ppoll', 'sendmmsg', 'recvmmsg', 'fcntl']) {
  substituteSystemCall(name, (real) => (...parameters) => {
    if (injected === undefined) return (real as unknown as (...all: never[]) => unknown)(...parameters);
    refusals += 1;
    return injected;
  });
}

function failing<T>(errno: number, work: () => T): T {
  injected = -errno;
  refusals = 0;
  try {
    return work();
  } finally {
    injected = undefined;
  }
}

test('a failed call returns its negative errno, whatever sets errno afterwards', async () => {
  const close = systemCall('int close(int)');
  const munmap = systemCall('int munmap(intptr_t, size_t)');
  for (let round = 0; round < 1000; round += 1) {
    assert.equal(close()(-1), -errnos.EBADF);
    assert.equal(munmap()(1, 1), -errnos.EINVAL);
  }
  assert.equal(await pooledSystemCall('int munmap(intptr_t, size_t)')(1, 1), -errnos.EINVAL);
  assert.equal(systemCall('int getpid()')()(), process.pid);
});

test('what modules declare is bound once, by its first call or for all; what the system lacks is told by its own call', () => {
  let bound = 0;
  substituteSystemCall('getppid', (real) => {
    bound += 1;
    return (...parameters) => (real as unknown as (...all: never[]) => unknown)(...parameters);
  });
  const getppid = systemCall('int getppid()');
  const missing = systemCall('int weftline_no_such_function()');
  assert.equal(bound, 0);
  bindDeclaredFunctions();
  bindDeclaredFunctions();
  assert.equal(getppid()(), process.ppid);
  assert.equal(bound, 1);
  assert.throws(() => missing(), /weftline_no_such_function/);
});

test('a futex wait says whether it slept, and never throws', async () => {
  const word = new Int32Array(new SharedArrayBuffer(4));
  const futex = new Futex(word);
  assert.equal(futex.waitBlocking(0, 1000), true);
  assert.equal(futex.waitBlocking(1, 1_000_000), true);
  for (const [name, errno] of Object.entries(errnos)) {
    const hasSlept = ['EAGAIN', 'EINTR', 'ETIMEDOUT'].includes(name);
    assert.equal(
      failing(errno, () => futex.waitBlocking(0, 1000)),
      hasSlept,
      name,
    );
    assert.equal(await failing(errno, () => futex.wait(0, 1000)), hasSlept, name);
  }
});

test('a lock that the kernel cannot look at counts as held, unless there is no such file', () => {
  for (const [name, errno] of Object.entries(errnos)) {
    const look = (): boolean => failing(errno, () => isByteLocked(0, 0));
    if (name === 'EBADF')
      assert.throws(look, { code: 'WL_NATIVE', details: { call: 'fcntl(F_OFD_GETLK)', errno, name } });
    else assert.equal(look(), true, name);
  }
});

test('a thread that sleeps until packets come outlives every refusal', () => {
  using readiness = new ReadinessSet();
  for (const errno of Object.values(errnos)) {
    failing(errno, () => readiness.sleep(100));
    assert.equal(refusals, 1);
  }
});

test('no errno of a send or a receive ends an engine', () => {
  const arena = new NativeBlock(RECEIVE_ARENA_BYTES);
  const receiver = new DatagramReceiver(arena);
  const refused: number[] = [];
  const io = new UdpPacketIo(arena, (peer) => refused.push(peer));
  const socket = { fd: -1, peer: 7, segments: 8 };
  io.setPeer(7, [socket]);
  for (const [name, errno] of Object.entries(errnos)) {
    failing(errno, () => {
      assert.equal(receiver.receive(-1, 7), false, name);
      assert.equal(receiver.batch.count, 0, name);
      assert.equal(receiver.isRefused, name === 'ECONNREFUSED');
      io.send({
        peer: 7,
        path: 0,
        urgent: false,
        count: 1,
        headerOffset: 0,
        headerBytes: 32,
        region: undefined,
        payloadOffset: 0,
        payloadBytes: 0,
        lastPayloadBytes: 0,
      });
      io.flush();
    });
  }
  assert.deepEqual(refused, [7]);
  assert.deepEqual(io.failures, { full: 2, tooLarge: 1, refused: 1, other: 7 });
});
