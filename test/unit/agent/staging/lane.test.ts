// A lane: pieces in order, jobs that end early, and what a failure ends.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import { type DeviceCopies, MemoryTable } from '#lib/agent/staging/devices.js';
import { Job, Lane, type PieceWay } from '#lib/agent/staging/lane.js';
import { pieceKinds, plainStorage, RingMemory } from '#lib/agent/staging/ring.js';
import { PartTable } from '#lib/transport/part-table.js';

const PIECE_BYTES = 65_536;
const ring = new RingMemory({ slots: 4, pieceBytes: PIECE_BYTES }, plainStorage);

/** A device with a queue for each way, which has done what it was given if `isCopied` says so. */
function queues(isCopied: () => boolean): DeviceCopies {
  const given = { out: 0, in: 0 };
  const copy = (way: 'out' | 'in'): number => ++given[way];
  const isDone = (way: 'out' | 'in', ticket: number): boolean => isCopied() && ticket <= given[way];
  return { copy, isDone } as unknown as DeviceCopies;
}

/** Says what happened to its pieces. */
class TestJob extends Job {
  readonly #pieces: number;
  readonly #numbers: Map<number, number>;
  readonly #state: { sendError?: WeftlineError; isCopied: boolean };

  constructor(name: string, pieces: number, log: string[], isRead = false) {
    const state: { sendError?: WeftlineError; isCopied: boolean } = { isCopied: true };
    const copies = queues(() => state.isCopied);
    const memory = new MemoryTable().add({ address: 0, bytes: 2 ** 40, copies, isOffered: false });
    const parts = PartTable.ofCount(pieces);
    parts.bytes.fill(PIECE_BYTES);
    /** The number of the piece in each slot. */
    const numbers = new Map<number, number>();
    let next = 0;
    const way: PieceWay = {
      sendsFromPlace: false,
      placeOf: () => 0,
      describe: (slot) => {
        numbers.set(slot, next);
        log.push(`open ${name}${next++} in ${slot}`);
      },
      post: (slot) => {
        if (state.sendError !== undefined) throw state.sendError;
        return log.push(`send ${name}${numbers.get(slot)}`) > 0;
      },
      isBack: () => true,
      isDrained: () => true,
    };
    const onEnd = (error: WeftlineError | undefined) =>
      log.push(`${name} ${error === undefined ? 'done' : error.code}`);
    super({ way, isRead, parts, locals: [memory], remotes: [], onEnd });
    this.#pieces = pieces;
    this.#numbers = numbers;
    this.#state = state;
    this.beginAgain();
  }

  set sendError(error: WeftlineError) {
    this.#state.sendError = error;
  }

  /** Devices have done what they were given. */
  set isCopied(is: boolean) {
    this.#state.isCopied = is;
  }

  beginAgain(): void {
    this.#numbers.clear();
    this.begin(0, this.#pieces, PIECE_BYTES);
  }
}

function openLane(count = 1) {
  const carrier = {
    count,
    back: 0,
    /** By channel, in place of `back`. */
    backOf: new Map<number, number>(),
    returned: (channel: number) => carrier.backOf.get(channel) ?? carrier.back,
    skipped: [] as number[],
    skip: (slot: number) => carrier.skipped.push(slot) > 0,
  };
  return { carrier, lane: new Lane(ring, carrier) };
}

test('jobs go through the slots in order, as many pieces at a time as there are slots', () => {
  const { lane, carrier } = openLane();
  const log: string[] = [];
  lane.enqueue(new TestJob('a', 3, log));
  lane.enqueue(new TestJob('b', 3, log));
  lane.step();
  assert.deepEqual(log.splice(0), [
    'open a0 in 0',
    'open a1 in 1',
    'send a0',
    'send a1',
    'open a2 in 2',
    'open b0 in 3',
    'send a2',
    'send b0',
  ]);
  carrier.back = 3;
  while (lane.step());
  assert.deepEqual(log.splice(0), ['a done', 'open b1 in 0', 'open b2 in 1', 'send b1', 'send b2']);
  carrier.back = 6;
  while (lane.step());
  assert.deepEqual(log, ['b done']);
  assert.ok(lane.isIdle);
});

test('a job that is ended gives its places up: what was not sent is passed over, the next job goes on', () => {
  const { lane, carrier } = openLane();
  const log: string[] = [];
  const first = new TestJob('a', 6, log);
  const closed = new WeftlineError('WL_CLOSED', 'cancelled');
  first.sendError = new WeftlineError('WL_UNAUTHORIZED', 'taken back');
  lane.enqueue(first);
  const second = new TestJob('b', 2, log);
  lane.enqueue(second);
  lane.step();
  assert.deepEqual(carrier.skipped, [0, 1]);
  carrier.back = 4;
  while (lane.step());
  assert.ok(log.includes('a WL_UNAUTHORIZED') && log.includes('b done'), log.join());
  const third = new TestJob('c', 9, log);
  lane.enqueue(third);
  lane.step();
  lane.end(third, closed);
  third.beginAgain();
  lane.enqueue(third);
  for (let returned = 5; returned <= 40; returned += 1) {
    carrier.back = returned;
    while (lane.step());
  }
  assert.deepEqual(
    log.filter((line) => line.startsWith('c ')),
    ['c WL_CLOSED', 'c done'],
  );
});

test('a lane that fails ends all its jobs once, and those that come later', () => {
  const { lane } = openLane();
  const log: string[] = [];
  lane.enqueue(new TestJob('a', 9, log));
  lane.enqueue(new TestJob('b', 1, log));
  lane.step();
  lane.fail(new WeftlineError('WL_PEER_LOST', 'gone'));
  lane.fail(new WeftlineError('WL_CLOSED', 'closed'));
  lane.enqueue(new TestJob('c', 1, log));
  assert.deepEqual(
    log.filter((line) => line.includes('WL_')),
    ['a WL_PEER_LOST', 'b WL_PEER_LOST', 'c WL_PEER_LOST'],
  );
});

test('a slot of a job that was ended is used again when its device has written to it, not before', () => {
  const { lane, carrier } = openLane();
  const log: string[] = [];
  const first = new TestJob('a', 2, log);
  first.isCopied = false;
  lane.enqueue(first);
  lane.step();
  lane.end(first, new WeftlineError('WL_CLOSED', 'cancelled'));
  lane.enqueue(new TestJob('b', 4, log));
  while (lane.step());
  assert.deepEqual(carrier.skipped, []);
  assert.ok(!log.includes('open b2 in 0'), log.join());
  first.isCopied = true;
  lane.step();
  assert.deepEqual(carrier.skipped, [0, 1]);
  carrier.back = 6;
  while (lane.step());
  assert.ok(log.includes('b done'), log.join());
});

test('a slot of a job that was ended is used again when its device has read it, not before', () => {
  const { lane, carrier } = openLane();
  const log: string[] = [];
  const first = new TestJob('a', 4, log, true);
  first.isCopied = false;
  lane.enqueue(first);
  lane.step();
  carrier.back = 4;
  while (lane.step());
  lane.end(first, new WeftlineError('WL_CLOSED', 'cancelled'));
  lane.enqueue(new TestJob('b', 1, log));
  while (lane.step());
  assert.ok(!log.includes('open b0 in 0'), log.join());
  first.isCopied = true;
  while (lane.step());
  assert.ok(log.includes('open b0 in 0'), log.join());
  carrier.back = 5;
  while (lane.step());
  assert.deepEqual(
    log.filter((line) => line.endsWith('done')),
    ['b done'],
  );
});

test('a job without pieces is over at once, and holds up none', () => {
  const { lane } = openLane();
  const log: string[] = [];
  lane.enqueue(new TestJob('a', 0, log));
  assert.deepEqual(log.splice(0), ['a done']);
  assert.ok(lane.isIdle);
  lane.enqueue(new TestJob('b', 1, log));
  lane.step();
  assert.deepEqual(log, ['open b0 in 0', 'send b0']);
});

test('a piece takes the channel with the fewest pieces on their way, and its slots in turn', () => {
  const { lane, carrier } = openLane(2);
  const log: string[] = [];
  lane.enqueue(new TestJob('a', 8, log));
  const opened = (): string[] => log.splice(0).filter((line) => line.startsWith('open'));
  lane.step();
  assert.deepEqual(opened(), ['open a0 in 0', 'open a1 in 1', 'open a2 in 2', 'open a3 in 3']);
  // The second channel is quicker: its pieces come back, and it gets the next ones.
  carrier.backOf.set(1, 2);
  while (lane.step());
  assert.deepEqual(opened(), ['open a4 in 1', 'open a5 in 3']);
  carrier.backOf.set(1, 3);
  carrier.backOf.set(0, 1);
  while (lane.step());
  assert.deepEqual(opened().toSorted(), ['open a6 in 0', 'open a7 in 1']);
  carrier.backOf.set(1, 5);
  carrier.backOf.set(0, 3);
  while (lane.step());
  assert.deepEqual(log, ['a done']);
});

test('a channel whose pieces do not come back holds up its own slots alone', () => {
  const { lane, carrier } = openLane(4);
  const log: string[] = [];
  lane.enqueue(new TestJob('a', 40, log));
  lane.step();
  for (let back = 1; back <= 20; back++) {
    for (const channel of [1, 2, 3]) carrier.backOf.set(channel, back);
    while (lane.step());
  }
  assert.equal(log.filter((line) => line.endsWith('in 0')).length, 1);
  assert.equal(log.filter((line) => line.startsWith('open')).length, 40);
  assert.ok(!log.includes('a done'));
  carrier.backOf.set(0, 1);
  while (lane.step());
  assert.equal(log.at(-1), 'a done');
});

test('what was sent of a job that was ended comes before the next job, whichever channels they take', () => {
  const { lane, carrier } = openLane(2);
  const log: string[] = [];
  const first = new TestJob('a', 1, log);
  lane.enqueue(first);
  lane.step();
  lane.end(first, new WeftlineError('WL_CLOSED', 'cancelled'));
  const isBack = lane.fence();
  lane.enqueue(new TestJob('b', 1, log));
  while (lane.step());
  assert.deepEqual(log.splice(0), ['open a0 in 0', 'send a0', 'a WL_CLOSED']);
  assert.equal(isBack(), false);
  carrier.backOf.set(0, 1);
  while (lane.step());
  assert.deepEqual(log, ['open b0 in 1', 'send b0']);
  assert.equal(isBack(), true);
  const never = lane.fence();
  assert.equal(never(), false);
  lane.fail(new WeftlineError('WL_PEER_LOST', 'gone'));
  assert.equal(never(), true);
});

test('a signal in the slot of a put that a device copied waits for no device', () => {
  const lane = new Lane(new RingMemory({ slots: 1, pieceBytes: PIECE_BYTES }, plainStorage));
  const memory = new MemoryTable().add({ address: 0, bytes: 2 ** 40, copies: queues(() => true), isOffered: false });
  const parts = PartTable.ofCount(3);
  parts.bytes.set([100, 0, 100]);
  const sent: number[] = [];
  const way: PieceWay = {
    sendsFromPlace: false,
    placeOf: () => 0,
    post: (_slot, { kind }) => sent.push(kind) > 0,
    isBack: () => true,
    isDrained: () => true,
  };
  const ends: unknown[] = [];
  const options = { way, isRead: false, parts, locals: [memory], remotes: [] };
  for (let row = 0; row < 3; row++) {
    const job = new Job({ ...options, onEnd: (error) => ends.push(error) });
    job.begin(row, 1, PIECE_BYTES);
    lane.enqueue(job);
  }
  while (lane.step());
  assert.deepEqual(sent, [pieceKinds.write, pieceKinds.signal, pieceKinds.write]);
  assert.deepEqual(ends, [undefined, undefined, undefined]);
});
