// Sums over windows that all ranks have mapped: the same bytes as the reference, whatever is late; calls that differ.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { referenceSparseSum } from 'weftline/reference';
import { wordOffsets } from '#lib/abi/layout.js';
import { sparseBoard } from '#lib/collectives/sparse/slot-shape.js';
import type { BlockWay, DirectWork, Piece, WorkMark } from '#lib/collectives/sparse/block-work.js';
import { DirectBoard, DirectReducer } from '#lib/collectives/sparse/direct-reducer.js';
import { noCall, type SparseCall } from '#lib/collectives/sparse/sparse-call.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { RankBells } from '#lib/windows/wait.js';
import { testSeed } from '../../support/seed.ts';
import { withCode } from '../../support/with-code.ts';

const device = await CpuDevice.create();
const BLOCK = 64;
const shape = { blockSize: BLOCK, lanes: 1, slots: 1 };
const word = wordOffsets(sparseBoard);

/** Blocks that count, as they were when they were shared, by rank and buffer. */
type Windows = (Map<number, Float32Array> | undefined)[][];

/** Done late, as somebody asks for it. */
class LateWork implements DirectWork {
  readonly pieceBytes = 4 * BLOCK * 10;
  readonly buffers = 2;
  readonly found = new Uint32Array(2);
  readonly #windows: Windows;
  readonly #me: number;
  readonly #next: () => number;
  readonly #queues: Readonly<Record<BlockWay, (() => void)[]>> = { out: [], in: [] };
  #call: SparseCall = noCall;
  #counts: [own: number, sums: number] = [0, 0];

  constructor(windows: Windows, me: number, next: () => number) {
    this.#windows = windows;
    this.#me = me;
    this.#next = next;
  }

  makeMark(way: BlockWay): WorkMark {
    let isDone = true;
    const queue = this.#queues[way];
    return {
      record: () => {
        isDone = false;
        queue.push(() => (isDone = true));
      },
      isDone: () => {
        for (let some = isDone ? 0 : Math.floor(this.#next() * 4); some > 0; some--) queue.shift()?.();
        return isDone;
      },
    };
  }

  begin(call: SparseCall): void {
    this.#call = call;
    this.#counts = [0, 0];
  }

  share(piece: Piece): void {
    const call = this.#call;
    this.#queues.out.push(() => {
      const shared = new Map<number, Float32Array>();
      for (let block = piece.first; block < piece.first + piece.blocks; block++) {
        const values = this.#view(call, call.input, block);
        if (call.isDense || values.some((value) => value !== 0)) shared.set(block, values.slice());
        else this.#view(call, call.output, block).fill(0);
      }
      this.#windows[this.#me]![piece.buffer] = shared;
    });
  }

  sum(piece: Piece, isLast: boolean): void {
    const call = this.#call;
    this.#queues.in.push(() => {
      for (let block = piece.first; block < piece.first + piece.blocks; block++) {
        const holding = this.#windows.map((of) => of[piece.buffer]?.get(block)).filter((one) => one !== undefined);
        if (holding.length === 0) continue;
        this.#counts[0] += this.#windows[this.#me]![piece.buffer]!.has(block) ? 1 : 0;
        this.#counts[1]++;
        const sum = holding[0]!.slice();
        for (const one of holding.slice(1))
          for (const [at, value] of one.entries()) sum[at] = Math.fround(sum[at]! + value);
        this.#view(call, call.output, block).set(sum);
      }
      if (isLast) this.found.set(this.#counts);
    });
  }

  tell(flag: number, parts: number): void {
    this.#queues.in.push(() => {
      const view = device.hostView('i32', flag, 1);
      view[0] = view[0]! + parts;
    });
  }

  join(): void {
    for (const queue of Object.values(this.#queues)) for (const piece of queue.splice(0)) piece();
  }

  close(): Promise<void> {
    this.join();
    return Promise.resolve();
  }

  #view({ count }: SparseCall, tensor: number, block: number): Float32Array {
    return device.hostView('f32', tensor + 4 * BLOCK * block, Math.min(BLOCK, count - block * BLOCK));
  }
}

function ranksOf(count: number, next: () => number, throwIfUnusable = (): void => {}): readonly DirectReducer[] {
  const words = new Int32Array(new SharedArrayBuffer(count * sparseBoard.size));
  const boards = Int32Array.from({ length: count }, (_, rank) => (rank * sparseBoard.size) / 4);
  const windows: Windows = Array.from({ length: count }, () => []);
  const bells = { ringAll: () => {} } as unknown as RankBells;
  assert.ok(word.ready > word.left);
  return Array.from({ length: count }, (_, me) => {
    const board = new DirectBoard(words, boards, { me, bells });
    const work = new LateWork(windows, me, next);
    return new DirectReducer({ board, work, shape, nameOf: (rank) => 70 + rank, throwIfUnusable });
  });
}

const callOf = (count: number, address: number, more: Partial<SparseCall> = {}): SparseCall => ({
  ...noCall,
  count,
  input: address,
  output: address,
  timeoutMs: 60_000,
  ...more,
});

test('sums of 1 to 8 ranks are those of the reference, one call after another', async () => {
  const next = seededRandom(testSeed());
  for (let ranks = 1; ranks <= 8; ranks++) {
    const reducers = ranksOf(ranks, next);
    for (const count of [0, 1, 640, 641, 5000, 12_345]) {
      const isDense = next() < 0.3;
      const inputs = reducers.map(() =>
        Float32Array.from({ length: count }, (_, at) => ((at >> 6) % 5 === Math.floor(next() * 5) ? next() - 0.5 : 0)),
      );
      const tensors = inputs.map((input) => {
        const tensor = device.empty('f32', [count]);
        tensor.view().set(input);
        return tensor;
      });
      const begun = reducers.map(() => false);
      const over = reducers.map(() => false);
      for (let turn = 0; !over.every(Boolean); turn++) {
        assert.ok(turn < 100_000, 'the call does not end');
        const rank = Math.floor(next() * ranks);
        if (!begun[rank]) reducers[rank]!.begin(callOf(count, tensors[rank]!.address, { isDense }));
        begun[rank] = true;
        over[rank] = reducers[rank]!.advance();
        // Ranks that are done wait for the others until all have taken everything.
        if (over[rank]) assert.ok(begun.every(Boolean));
      }
      const expected = referenceSparseSum('f32', inputs, { blockSize: BLOCK, dense: isDense });
      for (const [rank, tensor] of tensors.entries()) {
        assert.deepEqual(Buffer.from(tensor.view().slice().buffer), Buffer.from(expected.buffer));
        const { blocks, ownBlocks, sumBlocks } = reducers[rank]!.traffic;
        assert.equal(blocks, Math.ceil(count / BLOCK));
        assert.equal(reducers[rank]!.finalBlocks, blocks);
        assert.ok(ownBlocks <= sumBlocks && sumBlocks <= blocks && (!isDense || sumBlocks === blocks));
        tensor.close();
      }
    }
    for (const one of reducers) await one.close();
  }
});

test('calls that differ are told on all ranks with the first one and another, and who is late is named', () => {
  const reducers = ranksOf(3, () => 0.9);
  using tensor = device.empty('f32', [100]);
  reducers[0]!.begin(callOf(100, tensor.address));
  for (let turn = 0; turn < 10; turn++) assert.equal(reducers[0]!.advance(), false);
  assert.deepEqual(reducers[0]!.awaited(), [1, 2]);
  reducers[2]!.begin(callOf(100, tensor.address));
  for (let turn = 0; turn < 10; turn++) assert.equal(reducers[2]!.advance(), false);
  assert.deepEqual(reducers[0]!.awaited(), [1]);
  reducers[1]!.begin(callOf(50, tensor.address, { dtype: 'i32', elementBytes: 4 }));
  for (const one of reducers) {
    assert.throws(() => one.advance(), withCode('WL_CONFIG_MISMATCH'));
    assert.throws(() => one.advance(), {
      message: /allReduce of 100 f32 on rank 70, but allReduce of 50 i32 on rank 71/,
    });
  }
});

test('a rank that stood still until others gave up does not read their memory any more', (t) => {
  let reason: Error | undefined;
  const [first, stopped] = ranksOf(
    2,
    () => 0.9,
    () => {
      if (reason !== undefined) throw reason;
    },
  ) as [DirectReducer, DirectReducer];
  using tensor = device.empty('f32', [100]);
  const sum = t.mock.method(LateWork.prototype, 'sum');
  for (const one of [stopped, first]) one.begin(callOf(100, tensor.address));
  // Its own piece is on its way, while the other one's is there.
  assert.equal(stopped.advance(), false);
  for (let turn = 0; turn < 3; turn++) assert.equal(first.advance(), false);
  const before = sum.mock.callCount();
  reason = new Error('rank 70 gave up');
  assert.throws(() => {
    for (let turn = 0; turn < 10; turn++) stopped.advance();
  }, reason);
  assert.equal(sum.mock.callCount(), before);
});
