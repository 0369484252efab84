// In the guest: what a device refuses to make, events, channels, and what is left after close.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { openSync, readdirSync } from 'node:fs';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import { sendOpcode } from '#lib/native/verbs/c-structs.js';
import { NativeBlock } from '#lib/native/library.js';
import { ReadinessSet } from '#lib/native/readiness.js';
import {
  AsyncEvents,
  ProtectionDomain,
  VerbsContext,
  verbsDeviceNames,
  type VerbsEvent,
} from '#lib/native/verbs/context.js';
import { CompletionChannel, CompletionQueue } from '#lib/native/verbs/completion-queue.js';
import { MemoryRegion } from '#lib/native/verbs/memory-region.js';
import { QueuePair } from '#lib/native/verbs/queue-pair.js';
import { command, setLink } from './support/command.ts';
import { connectPair, doOne, Side } from './support/pair.ts';

const memoryLimitChild = new URL('support/memory-limit.js', import.meta.url).pathname;

function fails(code: string, message: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof WeftlineError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, message);
    return true;
  };
}

test('devices are listed; one that is not there is unsupported, with those that are', () => {
  assert.deepEqual(verbsDeviceNames(), ['rxe0', 'rxe1']);
  assert.throws(
    () => VerbsContext.open('mlx5_0'),
    fails('WL_UNSUPPORTED', /no RDMA device mlx5_0 .* it has rxe0, rxe1$/),
  );
});

test('a device and its port tell what ibv_devinfo tells', () => {
  using context = VerbsContext.open('rxe0');
  const { stdout } = spawnSync('ibv_devinfo', ['-v', '-d', 'rxe0'], { encoding: 'utf8' });
  const told = (name: string): string => new RegExp(`\\s${name}:\\s+(\\S+)`).exec(stdout)?.[1] ?? `no ${name}`;
  const { attributes } = context;
  const pairs: readonly (readonly [string, number | string])[] = [
    ['max_qp', attributes.maxQp],
    ['max_qp_wr', attributes.maxQpWr],
    ['max_sge', attributes.maxSge],
    ['max_cq', attributes.maxCq],
    ['max_cqe', attributes.maxCqe],
    ['max_mr', attributes.maxMr],
    ['max_pd', attributes.maxPd],
    ['max_qp_rd_atom', attributes.maxQpRdAtom],
    ['max_res_rd_atom', attributes.maxResRdAtom],
    ['max_qp_init_rd_atom', attributes.maxQpInitRdAtom],
    ['max_srq', attributes.maxSrq],
    ['max_srq_wr', attributes.maxSrqWr],
    ['max_ah', attributes.maxAh],
    ['phys_port_cnt', attributes.physPortCnt],
    ['fw_ver', attributes.fwVer],
  ];
  for (const [name, value] of pairs) assert.equal(String(value), told(name), name);
  assert.equal(attributes.nodeGuid, told('node_guid').replaceAll(':', ''));
  const port = context.queryPort(1);
  assert.equal(port.state, 'active');
  assert.equal(port.linkLayer, told('link_layer'));
  assert.equal(String(port.activeMtuBytes), told('active_mtu'));
  assert.equal(String(port.maxMtuBytes), told('max_mtu'));
  assert.equal(port.maxMsgSz, Number(told('max_msg_sz')));
  assert.equal(port.physState, 'link up');
  assert.ok(port.gigabitsPerSecond > 0);
  const gids = context.queryGids();
  assert.ok(gids.every(({ type, port: owner }) => type === 'RoCE v2' && owner === 1));
  assert.ok(gids.some(({ gid }) => gid === '0000:0000:0000:0000:0000:ffff:0a4d:0001'));
  assert.throws(
    () => context.queryPort(9),
    fails('WL_NATIVE', /ibv_query_port failed with EINVAL: reading port 9 of rxe0/),
  );
});

test('sizes beyond the device are refused with the limit and its name', () => {
  using a = new Side('rxe0');
  const { maxQpWr, maxCqe, maxSge } = a.context.attributes;
  const parts = {
    service: 'rc',
    sendCompletions: a.completions,
    receiveCompletions: a.completions,
    maxSends: 1,
  } as const;
  const many = 2 ** (Math.floor(Math.log2(maxQpWr)) + 1);
  assert.throws(
    () => new QueuePair(a.domain, { ...parts, maxSends: many }),
    fails('WL_CAPACITY', new RegExp(`${many} sends under way .* at most ${maxQpWr} \\(max_qp_wr\\)`)),
  );
  assert.throws(
    () => new QueuePair(a.domain, { ...parts, elements: maxSge + 1 }),
    fails('WL_CAPACITY', new RegExp(`at most ${maxSge} \\(max_sge\\)`)),
  );
  assert.throws(() => new CompletionQueue(a.context, maxCqe + 1), fails('WL_CAPACITY', /\(max_cqe\)/));
  assert.throws(
    () => new QueuePair(a.domain, { ...parts, maxSends: 3 }),
    fails('WL_INVALID_ARGUMENT', /power of two, got 3/),
  );
});

test('memory beyond the limit of locked memory is refused with the limit and how to raise it', () => {
  const words = ['--bounding-set', '-ipc_lock', '--inh-caps', '-ipc_lock', '--', 'sh', '-c'];
  const limited = `ulimit -l 1024; exec '${process.execPath}' '${memoryLimitChild}'`;
  const { stdout, stderr } = spawnSync('setpriv', [...words, limited], { encoding: 'utf8' });
  assert.match(
    stdout,
    /^WL_CAPACITY ibv_reg_mr failed with ENOMEM: registering 4 MiB on rxe0: the limit of locked memory \(RLIMIT_MEMLOCK\) is 1 MiB, .* raise it with "ulimit -l unlimited"/,
    stderr,
  );
});

test('memory of other devices, which rxe does not register, is refused by name', () => {
  using a = new Side('rxe0');
  const descriptor = openSync('/dev/zero', 'r');
  assert.throws(
    () => MemoryRegion.dmabuf(a.domain, { descriptor, offset: 0, bytes: 4096, address: 0 }),
    fails('WL_UNSUPPORTED', /^rxe0 cannot register memory of other devices: .*ibv_reg_dmabuf_mr/),
  );
});

test('relaxed ordering is accepted, also by devices without it', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const memory = new NativeBlock(4096);
  const region = MemoryRegion.host(b.domain, memory.address, 4096, { remoteWrite: true, relaxedOrdering: true });
  const [one] = connectPair('rc', [a, b]);
  assert.equal(doOne(one, a, { bytes: 100, remoteAddress: memory.address, remoteKey: region.remoteKey }), 0);
});

test('a channel wakes a thread that sleeps, once for each arming', () => {
  using a = new Side('rxe0');
  using b = new Side('rxe1');
  const channel = new CompletionChannel(b.context);
  const queue = new CompletionQueue(b.context, 64, channel);
  using set = new ReadinessSet();
  set.add(channel.descriptor, 5);
  const [one, other] = [a.queuePair('rc'), b.queuePair('rc', { receiveCompletions: queue })];
  one.connect({ number: other.number, firstSequence: 0, path: a.pathTo(b) }, { mtu: 1024 });
  other.connect({ number: one.number, firstSequence: 0, path: b.pathTo(a) }, { mtu: 1024 });
  for (let round = 0; round < 3; round += 1) {
    b.receive(other, 0, 64, round);
    queue.arm();
    assert.equal(queue.poll(), 0);
    assert.equal(set.poll(), 0);
    assert.equal(doOne(one, a, { opcode: sendOpcode.send, bytes: 10 }), 0);
    set.sleep(5e6);
    assert.equal(set.poll(), 1);
    assert.equal(set.numberAt(0), 5);
    assert.equal(channel.takeEvents(), 1);
    assert.equal(set.poll(), 0);
    assert.equal(queue.poll(), 1);
    assert.equal(queue.tagAt(0), round);
  }
});

test('a port that goes down and comes up is told by events', () => {
  command('ip', 'link', 'add', 'dummy9', 'type', 'dummy');
  setLink('dummy9', 'up');
  command('rdma', 'link', 'add', 'rxe9', 'type', 'rxe', 'netdev', 'dummy9');
  try {
    using context = VerbsContext.open('rxe9');
    const events = new AsyncEvents(context);
    assert.equal(events.take()?.name, undefined);
    using set = new ReadinessSet();
    set.add(events.descriptor, 1);
    const next = (name: string): VerbsEvent => {
      const until = Date.now() + 120_000;
      for (;;) {
        const event = events.take();
        if (event?.name === name) return event;
        if (event === undefined) set.sleep(1e6);
        assert.ok(Date.now() < until, `no ${name} came`);
      }
    };
    setLink('dummy9', 'down');
    const down = next('IBV_EVENT_PORT_ERR');
    assert.equal(down.port, 1);
    assert.equal(down.meaning, 'rxe9 port 1: a port went down');
    assert.notEqual(context.queryPort(1).state, 'active');
    setLink('dummy9', 'up');
    assert.equal(next('IBV_EVENT_PORT_ACTIVE').meaning, 'rxe9 port 1: a port came up');
  } finally {
    command('rdma', 'link', 'delete', 'rxe9');
    command('ip', 'link', 'delete', 'dummy9');
  }
});

test('nothing is left after close, and a closed device says so', () => {
  const descriptors = readdirSync('/proc/self/fd').length;
  const { stdout: before } = spawnSync('rdma', ['resource', 'show'], { encoding: 'utf8' });
  for (let round = 0; round < 3; round += 1) {
    using a = new Side('rxe0');
    using b = new Side('rxe1');
    connectPair('rc', [a, b]);
    const queue = new CompletionQueue(a.context, 8, new CompletionChannel(a.context));
    assert.equal(queue.poll(), 0);
  }
  const { stdout: after } = spawnSync('rdma', ['resource', 'show'], { encoding: 'utf8' });
  assert.equal(after, before);
  assert.equal(readdirSync('/proc/self/fd').length, descriptors);
  const closed = VerbsContext.open('rxe0');
  const domain = new ProtectionDomain(closed);
  closed.close();
  closed.close();
  assert.throws(() => new ProtectionDomain(closed), fails('WL_CLOSED', /rxe0 was closed/));
  const memory = new NativeBlock(64);
  assert.throws(() => MemoryRegion.host(domain, memory.address, 64), fails('WL_CLOSED', /rxe0/));
  assert.throws(() => closed.queryPort(1), fails('WL_CLOSED', /rxe0/));
});
