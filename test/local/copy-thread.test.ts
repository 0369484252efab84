// The thread that copies and its lanes: what both threads rely on, without agents.
import { CLAIM_FIELDS, CopyLane, CopyRows, JOB_WORDS, LANE_WORDS } from '#lib/agent/backends/local/copy-lane.js';
import assert from 'node:assert/strict';
import test from 'node:test';
import { mailboxBytes, mailboxHeader, ringOf } from '#lib/agent/backends/local/mailbox-layout.js';
import { Block } from '#lib/abi/layout.js';
import { CopyThread } from '#lib/agent/backends/local/copy-thread.js';
import { PeerSteps, RecordSender, RegionGrants } from '#lib/agent/backends/local/peer-mailbox.js';
import { SharedLock, WakeWord } from '#lib/threads/wake-word.js';
import { addressOf } from '#lib/native/library.js';
import { planned } from './support/planned-transfer.ts';

const SLOT = 0;

function makeMailbox(): ArrayBuffer {
  const mailbox = new ArrayBuffer(mailboxBytes(1));
  new Block(mailboxHeader, mailbox, 0).set('senders', 1);
  return mailbox;
}

/** A lane with one job of one step and a message, as this thread sees it. */
function openLane(sender: () => RecordSender): {
  readonly lane: CopyLane;
  readonly rings: () => number;
  readonly free: () => boolean;
} {
  const lockWord = new SharedArrayBuffer(4);
  const memory = new Uint8Array(new SharedArrayBuffer(16));
  const address = Number(addressOf(memory));
  const { parts } = planned([{ local: 0, localOffset: 0, remote: 0, remoteOffset: 8, bytes: 8 }]);
  const rows = CopyRows.of({ parts, isRead: false, locals: [address], remotes: [{ process: 0, address }] });
  const words = new Int32Array(new SharedArrayBuffer(JOB_WORDS * 4));
  const grants = RegionGrants.of([]);
  const steps = new PeerSteps(makeMailbox(), SLOT, 'agentStep');
  const claim = new Float64Array(CLAIM_FIELDS);
  const job = { id: 1, words, claim, rows, grants, message: Buffer.alloc(100) };
  let rings = 0;
  const lane = new CopyLane({
    words: new Int32Array(new SharedArrayBuffer(LANE_WORDS * 4)),
    lock: new SharedLock(lockWord, 0),
    sender,
    steps: () => steps,
    jobs: () => job,
    wake: new WakeWord(),
    onWork: () => (rings += 1),
  });
  lane.add(job, true);
  return { lane, rings: () => rings, free: () => new Int32Array(lockWord)[0] === 0 };
}

test("a message for which there is no room yet is the other thread's to send as well", () => {
  const mailbox = makeMailbox();
  const sender = new RecordSender(mailbox, SLOT);
  const reader = ringOf(mailbox, SLOT);
  while (sender.push(Buffer.alloc(1000)));
  const { lane, rings } = openLane(() => sender);
  const before = rings();
  assert.equal(lane.step(), 'moved');
  assert.ok(rings() > before);
  assert.equal(lane.step(), 'blocked');
  while (reader.hasRecord) reader.take();
  assert.equal(lane.step(), 'moved');
  assert.equal(reader.take()?.length, 100);
  assert.equal(lane.step(), 'nothing');
});

test('a thread that fails releases the lock, and the other one goes on alone', () => {
  const sender = new RecordSender(makeMailbox(), SLOT);
  let failures = 0;
  const { lane, free } = openLane(() => {
    if (failures++ === 0) throw new Error('no memory');
    return sender;
  });
  assert.throws(() => lane.step(), /no memory/);
  assert.ok(free());
  assert.equal(lane.step(), 'moved');
  assert.equal(lane.step(), 'nothing');
});

test('a thread that is told to stop at any moment ends', async () => {
  for (let round = 0; round < 15; round += 1) {
    const thread = new CopyThread({ wake: new WakeWord(), ownThread: true });
    const end = performance.now() + 60_000;
    while (!thread.isRunning && performance.now() < end);
    for (let turn = 0; turn < round * 20; turn += 1);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`round ${round}: it sleeps on`)), 30_000);
    });
    await Promise.race([thread.close(), late]);
    clearTimeout(timer);
  }
});
