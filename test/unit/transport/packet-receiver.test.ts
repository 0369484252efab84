// Receives of queue pairs, without a device: what is joined, what is offered again, and what becomes of a pair that has failed.
import assert from 'node:assert/strict';
import test from 'node:test';
import { completionStatus } from '#lib/native/verbs/c-structs.js';
import type { ReceiveRing } from '#lib/native/verbs/request-ring.js';
import { PacketReceiver } from '#lib/transport/io/verbs/verbs-rail.js';
import type { PathEnd } from '#lib/transport/io/verbs/path-end.js';

const PACKET = 64;
const SLOTS = 8;

interface Completion {
  readonly slot: number;
  readonly queuePair: number;
  readonly status?: number;
  readonly bytes?: number;
}

/** A ring that keeps the slots which the device has. */
function fakeRing(): { readonly ring: ReceiveRing; readonly posted: number[]; posts: number; refuses: boolean } {
  const started: number[] = [];
  let underWay = 0;
  const fake = {
    posted: [] as number[],
    posts: 0,
    refuses: false,
    ring: {
      depth: SLOTS,
      get room() {
        return SLOTS - underWay;
      },
      start: (slot: number) => {
        started.push(slot);
        underWay += 1;
        return true;
      },
      add: () => {},
      done: () => {
        underWay -= 1;
      },
      post: () => {
        fake.posts += 1;
        const slots = started.splice(0);
        if (fake.refuses) {
          underWay -= slots.length;
          throw new Error('refused');
        }
        fake.posted.push(...slots);
      },
    } as unknown as ReceiveRing,
  };
  return fake;
}

function setUp(isShared: boolean) {
  const coming: Completion[] = [];
  let taken: Completion[] = [];
  const shared = fakeRing();
  const rings = [fakeRing(), fakeRing()];
  const ends = rings.map(({ ring }, number) => ({ number, peer: number, queuePair: { receives: ring } }));
  const failures = { queuePairs: 0, unsent: 0, broken: 0, strangers: 0 };
  const flushed: number[] = [];
  const refused: ReceiveRing[] = [];
  const receiver = new PacketReceiver({
    completions: {
      poll: () => {
        taken = coming.splice(0, 16);
        return taken.length;
      },
      tagAt: (index) => taken[index]!.slot,
      statusAt: (index) => taken[index]!.status ?? completionStatus.success,
      queuePairAt: (index) => taken[index]!.queuePair,
      bytesAt: (index) => taken[index]!.bytes ?? PACKET,
      sourceAt: () => 0,
    },
    memory: {
      received: new Uint8Array(SLOTS * PACKET),
      receives: SLOTS,
      packetBytes: PACKET,
      receivedAddress: 4096,
      routingHeader: 0,
      localKey: 1,
    },
    shared: isShared ? shared.ring : undefined,
    areDatagrams: false,
    failures,
    findEnd: (queuePair) => ends[queuePair] as unknown as PathEnd | undefined,
    onEarly: () => {},
    onFlushed: ({ number }) => flushed.push(number),
    onRefused: (ring) => refused.push(ring),
  });
  const end = (number: number): PathEnd => ends[number] as unknown as PathEnd;
  return { receiver, coming, shared, rings, end, failures, flushed, refused };
}

/** What the batch holds: where, how many bytes, in packets of which size. */
function entries({ batch }: PacketReceiver): readonly (readonly number[])[] {
  return Array.from({ length: batch.count }, (_, at) => [
    batch.offset[at]!,
    batch.length[at]!,
    batch.segmentBytes[at]!,
  ]);
}

test('full packets of a path in neighbouring slots are one run; an empty one joins nothing and is joined by nothing', () => {
  const { receiver, coming } = setUp(true);
  coming.push({ slot: 0, queuePair: 0 }, { slot: 1, queuePair: 0 }, { slot: 2, queuePair: 0, bytes: 10 });
  assert.ok(receiver.receive());
  assert.deepEqual(entries(receiver), [[0, 2 * PACKET + 10, PACKET]]);
  receiver.release();
  coming.push({ slot: 3, queuePair: 0, bytes: 0 }, { slot: 4, queuePair: 0 }, { slot: 5, queuePair: 0, bytes: 0 });
  assert.ok(receiver.receive());
  assert.deepEqual(entries(receiver), [
    [3 * PACKET, 0, 0],
    [4 * PACKET, PACKET, 0],
    [5 * PACKET, 0, 0],
  ]);
  receiver.release();
  coming.push({ slot: 1, queuePair: 0 }, { slot: 2, queuePair: 1 }, { slot: 4, queuePair: 1 });
  assert.ok(receiver.receive());
  assert.equal(entries(receiver).length, 3, 'another path, and a slot that is no neighbour');
});

test('a slot of a shared queue is offered again, whatever became of its packet', () => {
  const { receiver, coming, shared, failures } = setUp(true);
  assert.equal(shared.posted.length, SLOTS);
  coming.push({ slot: 3, queuePair: 0, status: 9 }, { slot: 4, queuePair: 0, status: completionStatus.flushed });
  coming.push({ slot: 5, queuePair: 77 }, { slot: 6, queuePair: 1 });
  assert.ok(receiver.receive());
  receiver.release();
  assert.deepEqual(shared.posted.slice(SLOTS), [3, 4, 5, 6]);
  assert.equal(shared.ring.room, 0);
  assert.equal(failures.broken, 2);
});

test('receives of a queue pair that has failed come back once, are not posted again, and serve others', () => {
  const { receiver, coming, rings, end, flushed } = setUp(false);
  assert.ok(receiver.equip(end(0), SLOTS));
  assert.equal(receiver.equip(end(1), 1), false);
  const [failed] = rings as [(typeof rings)[number]];
  const { posts } = failed;
  for (const slot of failed.posted.slice(0, SLOTS - 2)) {
    coming.push({ slot, queuePair: 0, status: completionStatus.flushed });
  }
  assert.ok(receiver.receive());
  receiver.release();
  assert.equal(failed.posts, posts, 'nothing is posted to it');
  assert.deepEqual(new Set(flushed), new Set([0]));
  assert.equal(receiver.hasGivenBack(end(0)), false);
  assert.ok(receiver.equip(end(1), SLOTS - 2));
  for (const slot of failed.posted.slice(SLOTS - 2)) {
    coming.push({ slot, queuePair: 0, status: completionStatus.flushed });
  }
  assert.ok(receiver.receive());
  receiver.release();
  assert.ok(receiver.hasGivenBack(end(0)));
  receiver.strip(end(0));
  assert.ok(receiver.equip(end(1), 2));
  const [, other] = rings;
  assert.deepEqual(
    other!.posted.toSorted((a, b) => a - b),
    Array.from({ length: SLOTS }, (_, slot) => slot),
    'each slot once',
  );
});

test('a packet with an error of its own is counted, and its slot is offered again', () => {
  const { receiver, coming, rings, end, failures } = setUp(false);
  assert.ok(receiver.equip(end(0), 4));
  const [ring] = rings as [(typeof rings)[number]];
  const slot = ring.posted[0]!;
  coming.push({ slot, queuePair: 0, status: 1 });
  assert.ok(receiver.receive());
  receiver.release();
  assert.equal(receiver.batch.count, 0);
  assert.equal(failures.broken, 1);
  assert.equal(ring.posted.at(-1), slot);
});

test('a device that refuses receives of one queue pair does not keep those of others', () => {
  const { receiver, coming, rings, end, refused } = setUp(false);
  assert.ok(receiver.equip(end(0), 2) && receiver.equip(end(1), 2));
  const [first, second] = rings as [(typeof rings)[number], (typeof rings)[number]];
  first.refuses = true;
  coming.push({ slot: first.posted[0]!, queuePair: 0 }, { slot: second.posted[0]!, queuePair: 1 });
  assert.ok(receiver.receive());
  receiver.release();
  assert.deepEqual(refused, [first.ring]);
  assert.equal(second.posted.length, 3);
  // Once the queue pair is closed, others may have its slots.
  receiver.strip(end(0));
  assert.ok(receiver.equip(end(1), SLOTS - 2));
});
