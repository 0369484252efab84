// Workers and aggregators over a carrier that loses, doubles and reorders messages: the sums stay those of the reference.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, WeftlineError } from 'weftline';
import { referenceSparseSum } from 'weftline/reference';
import {
  contribution,
  type MessageKind,
  partial,
  result,
  type SlotBoard,
  type SlotShape,
  sparseMessageBytes,
} from '#lib/collectives/sparse/slot-shape.js';
import { AggregatorSlots } from '#lib/collectives/sparse/aggregator-slots.js';
import { CpuBlocks } from '#lib/collectives/sparse/cpu-blocks.js';
import {
  nodesNeeded,
  type ReductionTree,
  reductionTrees,
  type TreesOptions,
  treeOf,
} from '#lib/collectives/sparse/reduction-tree.js';
import { StagedBlocks } from '#lib/collectives/sparse/staged-blocks.js';
import { WorkerSlots } from '#lib/collectives/sparse/worker-slots.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { Storage } from '#lib/device/tensor.js';
import { PretendedBlockWork } from '../../support/pretended-block-work.ts';
import { testSeed } from '../../support/seed.ts';
import { withCode } from '../../support/with-code.ts';

const device = await CpuDevice.create();
const kinds = [contribution, result, partial] as const;
const nameOf = (rank: number): number => rank;

const treesOf = (options: Omit<TreesOptions, 'hostOf'>): readonly ReductionTree[] =>
  reductionTrees({ ...options, hostOf: () => 0 });

/** The ranks that a message of that rank is for. */
function audienceOf(trees: readonly ReductionTree[], { from, kind, slot }: Omit<Packet, 'to'>): readonly number[] {
  const { parentOf, nodeOf } = treeOf(trees, slot);
  if (kind === contribution) return [parentOf.get(from)!];
  const node = nodeOf.get(from)!;
  return kind === partial ? [node.parent!] : node.children.map(({ rank }) => rank);
}

interface Packet {
  readonly to: number;
  readonly from: number;
  readonly kind: MessageKind;
  readonly slot: number;
  readonly number: number;
  readonly bytes: Uint8Array;
}

/** Memory of one rank: its own messages, and what has come of those of others. */
class LossyBoard implements SlotBoard {
  readonly memory: Storage;
  readonly #shape: SlotShape;
  readonly #me: number;
  readonly #stride: number;
  readonly #latest = new Map<string, number>();
  readonly #lengths = new Map<string, number>();
  readonly #send: (packet: Omit<Packet, 'to'>) => void;

  constructor(shape: SlotShape, me: number, ranks: number, send: (packet: Omit<Packet, 'to'>) => void) {
    this.#shape = shape;
    this.#me = me;
    this.#send = send;
    this.#stride = sparseMessageBytes(shape.lanes, shape.blockSize * 4);
    this.memory = device.allocate(ranks * kinds.length * shape.slots * 2 * this.#stride);
  }

  address(kind: MessageKind, rank: number, slot: number, number: number): number {
    const place = ((rank * kinds.length + kind) * this.#shape.slots + slot) * 2 + (number & 1);
    return this.memory.address + place * this.#stride;
  }

  latest(kind: MessageKind, rank: number, slot: number): number {
    return this.#latest.get(`${kind} ${rank} ${slot}`) ?? 0;
  }

  post(kind: MessageKind, slot: number, number: number, bytes: number): void {
    this.#latest.set(`${kind} ${this.#me} ${slot}`, number);
    this.#lengths.set(`${kind} ${slot}`, bytes);
    this.#carry(kind, slot);
  }

  /** As after a time in which nothing came. */
  repeat(): void {
    for (const kind of kinds) for (let slot = 0; slot < this.#shape.slots; slot++) this.#carry(kind, slot);
  }

  take({ from, kind, slot, number, bytes }: Packet): void {
    if (((number - this.latest(kind, from, slot)) | 0) <= 0) return;
    device.hostView('u8', this.address(kind, from, slot, number), bytes.length).set(bytes);
    this.#latest.set(`${kind} ${from} ${slot}`, number);
  }

  #carry(kind: MessageKind, slot: number): void {
    const length = this.#lengths.get(`${kind} ${slot}`);
    if (length === undefined) return;
    const number = this.latest(kind, this.#me, slot);
    const bytes = device.hostView('u8', this.address(kind, this.#me, slot, number), length).slice();
    this.#send({ from: this.#me, kind, slot, number, bytes });
  }
}

for (const [loss, memory] of [
  [0, 'the host'],
  [0.3, 'the host'],
  [0, 'a device'],
  [0.3, 'a device'],
] as const) {
  test(`sums of tensors in memory of ${memory} are right where ${loss * 100} % of messages are lost, some come twice, and all in any order`, async () => {
    const next = seededRandom(testSeed());
    for (let round = 0; round < 20; round++) {
      const workers = Array.from({ length: 1 + Math.floor(next() * 7) }, (_, rank) => rank);
      const fanIn = 2 + Math.floor(next() * 4);
      const needed = nodesNeeded(workers.length, fanIn);
      // Every other time all aggregators, or some, are workers as well.
      const firstAggregator = next() < 0.5 || needed > workers.length ? workers.length : workers.length - needed;
      const aggregators = Array.from(
        { length: needed + Math.floor(next() * 2) },
        (_, index) => firstAggregator + index,
      );
      const trees = treesOf({ workers, aggregators, fanIn });
      const shape = { blockSize: 64, lanes: 1 + Math.floor(next() * 40), slots: 1 + Math.floor(next() * 4) };
      const ranks = Math.max(...workers, ...aggregators) + 1;
      const flying: Packet[] = [];
      const send = (packet: Omit<Packet, 'to'>): void => {
        for (const one of audienceOf(trees, packet)) {
          for (let copies = next() < 0.2 ? 2 : 1; copies > 0; copies--) {
            if (next() >= loss) flying.push({ ...packet, to: one });
          }
        }
      };
      const boards = Array.from({ length: ranks }, (_, rank) => new LossyBoard(shape, rank, ranks, send));
      const summing = aggregators.map(
        (me) => new AggregatorSlots(device, { board: boards[me]!, shape, trees, me, nameOf }),
      );
      const isStaged = memory === 'a device';
      const blocksOf = (board: LossyBoard): CpuBlocks | StagedBlocks => {
        if (!isStaged) return new CpuBlocks(device, shape);
        const work = new PretendedBlockWork(device, shape, next);
        return new StagedBlocks(work, { shape, host: device, messages: board.memory, maxElementBytes: 4 });
      };
      const tensorsOf = workers.map((me) => blocksOf(boards[me]!));
      const sending = workers.map(
        (me, index) => new WorkerSlots(device, { board: boards[me]!, blocks: tensorsOf[index]!, shape, trees, me }),
      );
      const repeatIfQuiet = (): void => {
        if (flying.length === 0) for (const board of boards) board.repeat();
      };
      for (let call = 0; call < 3; call++) {
        const count = Math.floor(next() * 20_000);
        const inputs = workers.map(() =>
          Float32Array.from({ length: count }, () => (next() < 0.002 ? next() - 0.5 : 0)),
        );
        const tensors = inputs.map((input) => {
          const tensor = device.empty('f32', [count]);
          tensor.view().set(input);
          return tensor;
        });
        const expected = referenceSparseSum('f32', inputs, { blockSize: 64, fanIn });
        for (const [worker, tensor] of tensors.entries()) {
          const { address } = tensor;
          const shared = { dtype: 'f32', elementBytes: 4, threshold: 0, isDense: false, timeoutMs: 60_000 } as const;
          await sending[worker]!.reserve(count);
          sending[worker]!.begin({ ...shared, count, input: address, output: address });
        }
        let isDone = false;
        const finals = workers.map(() => 0);
        for (let turn = 0; !isDone; turn++) {
          assert.ok(turn < 100_000, 'the call does not end');
          for (let some = 0; some < 8 && flying.length > 0; some++) {
            const [packet] = flying.splice(Math.floor(next() * flying.length), 1);
            boards[packet!.to]!.take(packet!);
          }
          for (const one of summing) one.advance();
          isDone = sending.map((worker) => worker.advance()).every(Boolean) && summing.every((one) => one.isIdle);
          for (const [worker, { finalBlocks }] of sending.entries()) {
            assert.ok(finalBlocks >= finals[worker]!, 'what is final stays so');
            // These have their sums, on a device once its work is done.
            const end = isStaged ? 0 : Math.min(count, finalBlocks * 64);
            const from = Math.min(end, finals[worker]! * 64);
            const got = tensors[worker]!.view().slice(from, end);
            assert.deepEqual(Buffer.from(got.buffer), Buffer.from(expected.slice(from, end).buffer));
            finals[worker] = finalBlocks;
          }
          repeatIfQuiet();
        }
        for (const tensor of tensors) {
          assert.deepEqual(Buffer.from(tensor.view().slice().buffer), Buffer.from(expected.buffer));
          tensor.close();
        }
        assert.ok(summing.every((one) => one.isIdle && one.missing().length === 0));
      }
      for (const one of tensorsOf) await one.close();
      for (const one of [...summing, ...boards.map((board) => board.memory)]) one[Symbol.dispose]();
    }
  });
}

test('a message that is no part of the protocol is refused, with the rank that sent it', () => {
  const shape = { blockSize: 64, lanes: 4, slots: 1 };
  const board = new LossyBoard(shape, 1, 2, () => {});
  const trees = treesOf({ workers: [0], aggregators: [1], fanIn: 2 });
  const options = { board, shape, trees, me: 1, nameOf: () => 7 };
  using aggregator = new AggregatorSlots(device, options);
  const words = Uint32Array.of(1, 3, 1000, 2, 0, 0, 0, 0);
  board.take({ to: 1, from: 0, kind: contribution, slot: 0, number: 1, bytes: new Uint8Array(words.buffer) });
  assert.throws(() => aggregator.advance(), {
    code: 'WL_PROTOCOL',
    message: /rank 7 sent 0 lanes of round 3 in slot 0/,
  });
});

test('without memory for its marks a call has not begun: the marks of former calls stay, and numbers of calls too', async () => {
  const shape = { blockSize: 64, lanes: 4, slots: 1 };
  const board = new LossyBoard(shape, 0, 2, () => {});
  let isFull = false;
  const limited = {
    memory: device.memory,
    kernels: device.kernels,
    hostView: device.hostView.bind(device),
    allocating: <T>(allocate: () => T): T => allocate(),
    allocate: (bytes: number): Storage => {
      if (isFull) throw new WeftlineError('WL_MEMORY', 'full');
      return device.allocate(bytes);
    },
  } as unknown as CpuDevice;
  const blocks = new CpuBlocks(limited, shape);
  const worker = new WorkerSlots(limited, {
    board,
    blocks,
    shape,
    me: 0,
    trees: treesOf({ workers: [0], aggregators: [1], fanIn: 2 }),
  });
  using tensor = device.empty('f32', [64]);
  tensor.view().fill(1);
  const call = { dtype: 'f32', elementBytes: 4, threshold: 0, isDense: false, timeoutMs: 60_000, count: 64 } as const;
  for (const number of [1, 2]) {
    await worker.reserve(call.count);
    worker.begin({ ...call, input: tensor.address, output: tensor.address });
    assert.equal(device.hostView('i32', board.address(contribution, 0, 0, number), 1)[0], number);
    isFull = true;
    assert.throws(() => worker.reserve(1e6), withCode('WL_MEMORY'));
  }
  assert.equal(worker.traffic.ownBlocks, 1);
  blocks.close();
  board.memory[Symbol.dispose]();
});
