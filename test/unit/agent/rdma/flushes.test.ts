// Memory of GPUs that does not show what a device writes in its order: whoever is told of it is told behind a flush.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { AgentMemory } from '#lib/agent/backend.js';
import type { RdmaDevice, RemoteKeys, SendQueue } from '#lib/agent/rdma/rdma-device.js';
import { Mailbox, OutMessages, RDMA_UNREAD_OFFSET } from '#lib/agent/rdma/rdma-messages.js';
import { OperationQueue } from '#lib/agent/rdma/operation-queue.js';
import { type OperationLink, RdmaChannel, RdmaTransfer } from '#lib/agent/rdma/rdma-posts.js';
import { RdmaRegion, RdmaRemoteRegion } from '#lib/agent/rdma/rdma-region.js';
import { sendFlag, sendOpcode } from '#lib/native/verbs/c-structs.js';
import { planned } from '../../../local/support/planned-transfer.ts';

const names = new Map<number, string>([
  [sendOpcode.write, 'write'],
  [sendOpcode.writeWithImmediate, 'word'],
  [sendOpcode.read, 'read'],
  [sendOpcode.fetchAdd, 'add'],
]);
const keys: RemoteKeys = { add: ([number]) => number, remove: () => {}, namesOf: () => new Map() };
const INBOX = 1 << 20;

/** "write 3 bytes of 0x1000 to 0x2000", with "fenced" in front of those that wait for reads before them. */
class Recorder implements SendQueue {
  readonly requests: string[] = [];
  room = 1024;
  unposted = 0;
  nextSequence = 0;
  signalled = -1;
  /** Requests for which there is room. */
  left = Number.POSITIVE_INFINITY;
  #own = '';

  start(opcode: number, flags: number): boolean {
    if (this.left === 0) return false;
    this.left--;
    this.requests.push(`${(flags & sendFlag.fence) === 0 ? '' : 'fenced '}${names.get(opcode)}`);
    if ((flags & sendFlag.signaled) !== 0) this.signalled = this.nextSequence;
    this.nextSequence++;
    this.unposted++;
    this.#own = '';
    return true;
  }

  add(address: number, bytes: number): void {
    this.#own = ` ${bytes} at ${address}`;
  }

  target(remote: number): void {
    this.requests.push(`${this.requests.pop()}${this.#own} and ${remote}`);
  }

  addend(remote: number): void {
    this.requests.push(`${this.requests.pop()} to ${remote}`);
  }

  order(): void {}
  immediate(): void {}
  signal(): void {}
  post(): void {
    this.unposted = 0;
  }
  doneUntil(): void {}
}

function open(flush: 'read' | 'none'): {
  readonly ring: Recorder;
  readonly queue: OperationQueue;
  readonly link: OperationLink;
  readonly mailbox: Mailbox;
  /** Memory of a GPU, of this side and as the peer knows it. */
  readonly own: RdmaRegion;
  readonly remote: RdmaRemoteRegion;
  readonly host: RdmaRegion;
  readonly remoteHost: RdmaRemoteRegion;
} {
  const device = {
    register: () => ({ localKey: 1, remoteKey: Uint8Array.of(7), close: () => {} }),
    gpuMemory: () => ({ way: 'peermem', reason: 'a test', flush }),
  } as unknown as RdmaDevice;
  const mailbox = new Mailbox(device, 1024);
  const messages = new OutMessages(mailbox, 'there');
  const queue = new OperationQueue({ mailbox, messages, chunkBytes: 4096, peer: 'there' });
  const ring = new Recorder();
  queue.resume(ring, { address: INBOX, key: 2 });
  // The wake of a new connection.
  ring.requests.splice(0);
  const link: OperationLink = {
    peer: 'there',
    error: undefined,
    queue,
    reserve: (message) => messages.reserve(message),
    flush: () => queue.flush(),
    hold: () => void queue.advance(),
    settle: async () => {},
  };
  const memory = (kind: 'host' | 'cuda', address: number): RdmaRegion => {
    const made: AgentMemory = { kind, address, bytes: 16_384, view: undefined, device: undefined, shared: undefined };
    return new RdmaRegion(device, made);
  };
  const [own, host] = [memory('cuda', 40_000), memory('host', 80_000)];
  const [remote, remoteHost] = [own, host].map(
    ({ info }) => new RdmaRemoteRegion(info, { bytes: 16_384, peer: 'there', keys }),
  ) as [RdmaRemoteRegion, RdmaRemoteRegion];
  return { ring, queue, link, mailbox, own, remote, host, remoteHost };
}

function place(local: RdmaRegion, remote: RdmaRemoteRegion, bytes: number): Parameters<RdmaChannel['put']>[0] {
  return { local, localOffset: 0, remote, remoteOffset: 0, bytes };
}

test('a write ends with a read of where it wrote, which its end waits for', () => {
  const { ring, link, mailbox, remote, host } = open('read');
  const transfer = new RdmaTransfer(link, 'write', planned([place(host, remote, 5000)]));
  transfer.post();
  assert.deepEqual(ring.requests, [
    'write 4096 at 80000 and 40000',
    'write 904 at 84096 and 44096',
    `read 1 at ${mailbox.oldValueAddress} and 40000`,
  ]);
  assert.equal(ring.signalled, ring.nextSequence - 1);
  link.queue.done(ring.nextSequence - 2);
  assert.equal(transfer.state, 'pending');
  link.queue.done(ring.nextSequence - 1);
  assert.equal(transfer.state, 'done');
});

test('the message of a write, short or long, waits for that read', () => {
  for (const message of ['abc', 'a longer message']) {
    const { ring, link, remote, host } = open('read');
    new RdmaTransfer(link, 'write', planned([place(host, remote, 64)])).post(Buffer.from(message));
    const [write, read, told, ...more] = ring.requests;
    assert.match(write ?? '', /^write 64 /);
    assert.match(read ?? '', /^read 1 /);
    assert.match(told ?? '', /^fenced word/);
    assert.deepEqual(more, []);
  }
});

test('a read into such memory ends when the device has read there itself', () => {
  const { ring, link, own, remoteHost } = open('read');
  const transfer = new RdmaTransfer(link, 'read', planned([place(own, remoteHost, 64)]));
  transfer.post();
  assert.deepEqual(ring.requests, [
    'read 64 at 40000 and 80000',
    `fenced write 1 at 40000 and ${INBOX + RDMA_UNREAD_OFFSET}`,
  ]);
  link.queue.done(ring.nextSequence - 2);
  assert.equal(transfer.state, 'pending');
});

test('what is read from such memory, or written to other memory, needs no flush', () => {
  const { ring, link, own, remote, host, remoteHost } = open('read');
  new RdmaTransfer(link, 'read', planned([place(host, remote, 64)])).post();
  new RdmaTransfer(link, 'write', planned([place(own, remoteHost, 64)])).post();
  assert.deepEqual(ring.requests, ['read 64 at 80000 and 40000', 'write 64 at 40000 and 80000']);
});

test('a signal behind a put waits for its flush, wherever its cell lies; the next one waits for nothing', () => {
  const { ring, link, remote, host, remoteHost } = open('read');
  const channel = new RdmaChannel(link, { hasAtomics: true, onClose: () => {} });
  channel.put(place(host, remote, 64));
  channel.signal(remoteHost, 8, 1);
  channel.signal(remoteHost, 8, 1);
  channel.put(place(host, remote, 64));
  channel.store(remote, 16, 1, 0);
  const kinds = ring.requests.map((request) => request.replace(/ \d+ at.*| to.*| and.*/, ''));
  assert.deepEqual(kinds, ['write', 'read', 'fenced add', 'word', 'add', 'word', 'write', 'read', 'fenced word']);
  link.queue.done(ring.nextSequence - 3);
  assert.equal(channel.delivered, 3, 'a put is delivered when its flush is');
  link.queue.done(ring.nextSequence - 2);
  assert.equal(channel.delivered, 4);
});

test('a flush for which there is no room follows', () => {
  const { ring, link, remote, host } = open('read');
  ring.left = 1;
  const transfer = new RdmaTransfer(link, 'write', planned([place(host, remote, 64)]));
  transfer.post(Buffer.from('told'));
  assert.equal(ring.requests.length, 1);
  for (let more = 0; more < 2; more++) {
    ring.left = 1;
    link.flush();
  }
  assert.deepEqual(
    ring.requests.map((request) => request.replace(/ \d.*/, '').replace(/ and.*/, '')),
    ['write', 'read', 'fenced word'],
  );
});

test('memory of a GPU that shows writes in order is moved as memory of the host is', () => {
  const { ring, link, own, remote, host } = open('none');
  new RdmaTransfer(link, 'write', planned([place(host, remote, 64)])).post(Buffer.from('abc'));
  new RdmaTransfer(link, 'read', planned([place(own, remote, 64)])).post();
  const channel = new RdmaChannel(link, { hasAtomics: true, onClose: () => {} });
  channel.put(place(host, remote, 64));
  channel.signal(remote, 8, 1);
  const kinds = ring.requests.map((request) => request.replace(/ \d+ at.*| to.*| and.*/, ''));
  assert.deepEqual(kinds, ['word', 'read', 'write', 'add', 'word']);
});
