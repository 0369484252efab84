// Ranks whose experts move between them. Argument: "traffic", "refusals", or "killed" with the rank and the point of its death.
import assert from 'node:assert/strict';
import { CpuDevice, fromBf16, toBf16, WeftlineError } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { type ExpertPlan, ExpertLoads, ExpertMover, expertPlan, rebalanceExperts } from 'weftline/ep/placement';
import { join } from 'weftline/world';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { ExpertToLoad } from '#lib/ep/placement/expert-mover.js';

const [, , mode = '', victim = '', point = ''] = process.argv;
const [layers, experts, physical, topk, tokens, hidden] = [2, 8, 12, 2, 48, 32];
/** More than one slice of what is copied and summed at a time. */
const expertBytes = (1 << 20) + 4096;
const world = await join();
const device = await CpuDevice.create();
const { rank, size: ranks } = world;
const shape = { layers, experts, ranks };

/** What an expert multiplies by, in the first bytes of its weights; the others tell experts and layers apart. */
function factorOf(layer: number, expert: number): number {
  return layer * experts + expert + 1;
}

function fillExpert({ layer, expert, bytes }: ExpertToLoad): void {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  for (let at = 0; at < words.length; at++) words[at] = Math.imul(at + 1, 0x9e37_79b9) ^ factorOf(layer, expert);
  words[0] = factorOf(layer, expert);
}

function slotBytes(mover: ExpertMover, layer: number, slot: number): Uint8Array {
  const first = (layer * mover.placement.slots + slot) * expertBytes;
  return mover.weights.view().subarray(first, first + expertBytes);
}

/** Every slot in force holds the weights of the expert that the plan in force says. */
function checkWeights(mover: ExpertMover): void {
  const expected = new Uint8Array(expertBytes);
  for (let layer = 0; layer < layers; layer++) {
    for (const [slot, expert] of mover.placement.localExperts(layer).entries()) {
      fillExpert({ layer, expert, bytes: expected });
      assert.equal(Buffer.compare(slotBytes(mover, layer, slot), expected), 0, `layer ${layer}, slot ${slot}`);
    }
  }
}

/** Each expert e on the rank of e + shift, and copies of the first ones. */
function shiftedPlan(shift: number): ExpertPlan {
  const physicalToLogical = Array.from({ length: layers * physical }, (_, at) => ((at % physical) + shift) % experts);
  return expertPlan({ ...shape, physicalToLogical });
}

const openMover = (plan = shiftedPlan(0)): Promise<ExpertMover> =>
  ExpertMover.create(world, device, { plan, expertBytes, load: fillExpert });

async function traffic(): Promise<void> {
  const even = Array.from({ length: layers }, () => new Float64Array(experts));
  await using mover = await openMover(rebalanceExperts(even, { replicas: physical, ranks }));
  const config = { maxTokensPerRank: tokens, hidden, numExperts: physical, maxTopk: topk };
  await using buffer = await EpBuffer.create(world, device, config);
  const random = seededRandom(rank + 1);
  const chosen = new ExpertLoads({ layers, experts, window: 4 });
  const received = new ExpertLoads({ layers, experts, window: 4 });
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(toBf16(1)));
  const ids = device.empty('i32', [tokens, topk]);
  let steps = 0;

  const step = async (): Promise<void> => {
    const layer = steps++ % layers;
    const { placement } = mover;
    const choices = Int32Array.from({ length: tokens * topk }, (_, at) => {
      // The first experts are chosen most; the two of a token differ.
      const low = Math.floor(random() * random() * (experts / 2));
      return at % 2 === 0 ? low : low + experts / 2;
    });
    placement.route(choices, { layer, out: ids.view() });
    const { recvX, recvTopkIdx, numRecvTokensPerExpert, handle } = await buffer.dispatch({
      x,
      topkIdx: ids,
      topkWeights: await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(1)),
    });
    chosen.addChoices(layer, choices);
    received.addReceived(layer, numRecvTokensPerExpert, placement);
    const y = buffer.combineInput(handle);
    const local = recvTopkIdx.view();
    const rows = recvX.view();
    y.view().set(
      rows.map((bits, at) => {
        let factor = 0;
        for (let k = 0; k < topk; k++) {
          const slot = local[Math.floor(at / hidden) * topk + k]!;
          if (slot < 0) continue;
          const bytes = slotBytes(mover, layer, slot);
          factor += new Uint32Array(bytes.buffer, bytes.byteOffset, 1)[0]!;
        }
        return toBf16(fromBf16(bits) * factor);
      }),
    );
    const { combinedX } = await buffer.combine({ x: y, handle });
    const sums = Array.from({ length: tokens }, (_, token) => fromBf16(combinedX.view()[token * hidden + 7]!));
    const wanted = sums.map((_, token) => {
      const [first, second] = choices.subarray(token * topk, token * topk + topk);
      return factorOf(layer, first!) + factorOf(layer, second!);
    });
    assert.deepEqual(sums, wanted);
    handle.close();
    combinedX.close();
    if (layer === layers - 1) for (const loads of [chosen, received]) loads.endStep();
  };

  const moved: number[] = [];
  for (let round = 1; round <= 2; round++) {
    for (let count = 0; count < 4; count++) await step();
    const weights = await chosen.gather(world);
    assert.deepEqual(weights, await received.gather(world));
    const plan = rebalanceExperts(weights, { replicas: physical, ranks });
    const before = mover.placement.plan.physicalToLogical;
    moved.push(plan.physicalToLogical.filter((expert, at) => expert !== before[at]).length);
    // Not awaited: rows travel while weights do.
    const staged = mover.stage(plan);
    assert.throws(() => mover.stage(plan), { code: 'WL_INVALID_ARGUMENT' });
    for (let count = 0; count < 3; count++) await step();
    assert.equal(mover.epoch, round - 1);
    assert.equal(await mover.cutOver(), round);
    await staged;
    assert.deepEqual(mover.placement.plan, plan);
    checkWeights(mover);
  }
  await step();
  console.log(JSON.stringify({ epoch: mover.epoch, moved }));
}

async function refusals(): Promise<void> {
  const wrongCopies = ExpertMover.create(world, device, {
    plan: shiftedPlan(0),
    expertBytes,
    load: (expert) => {
      fillExpert(expert);
      if (rank === 3) expert.bytes[5000]! ^= 1;
    },
  });
  await assert.rejects(wrongCopies, {
    code: 'WL_CONFIG_MISMATCH',
    message: /expert \d of layer 0 differ between rank \d and rank 3/,
  });

  const failing = ExpertMover.create(world, device, {
    plan: shiftedPlan(0),
    expertBytes,
    load: ({ layer, expert }) => {
      if (rank === 2 && layer === 1) throw new RangeError(`no file for ${expert}`);
    },
  });
  await assert.rejects(failing, (error: Error) => {
    assert.ok(error instanceof WeftlineError);
    assert.equal(error.code, 'WL_INVALID_ARGUMENT');
    assert.match(error.message, /load .* failed for expert 6 of layer 1 on rank 2: no file for 6$/);
    assert.match(String(error.cause), /no file for 6/);
    assert.equal(error.cause instanceof RangeError, rank === 2);
    return true;
  });
  const wrongSizes = { plan: shiftedPlan(0), expertBytes: rank === 1 ? 32 : 16, load: (): void => undefined };
  await assert.rejects(ExpertMover.create(world, device, wrongSizes), {
    code: 'WL_CONFIG_MISMATCH',
    message: /different sizes: expertBytes is 16 on rank 0 and 32 on rank 1$/,
  });
  const wrongPlans = { plan: shiftedPlan(rank === 3 ? 1 : 0), expertBytes: 16, load: (): void => undefined };
  await assert.rejects(ExpertMover.create(world, device, wrongPlans), {
    code: 'WL_CONFIG_MISMATCH',
    message: /different plans: rank 3 has other experts than rank 0 in layers 0, 1 of 2$/,
  });

  await using mover = await openMover();
  const isRefused = async (code: string, message: RegExp): Promise<void> => {
    const { plan } = mover.placement;
    await assert.rejects(mover.cutOver(), { code, message });
    assert.equal(mover.epoch, 0);
    assert.equal(mover.placement.plan, plan);
    await world.barrier('refused');
  };
  if (rank !== 3) void mover.stage(shiftedPlan(3));
  await isRefused('WL_INVALID_ARGUMENT', /rank 3 has staged no plan/);
  void mover.stage(shiftedPlan(rank === 1 ? 4 : 3));
  await isRefused(
    'WL_CONFIG_MISMATCH',
    /The ranks cut over with different plans: rank 1 has other experts than rank 0 in layers 0, 1 of 2$/,
  );
  assert.throws(
    () => mover.stage(expertPlan({ ...shape, physicalToLogical: [...Array(16).keys()].map((at) => at % 8) })),
    {
      code: 'WL_INVALID_ARGUMENT',
      message: /plan.physical: expected 12, as in the plan in force, got 8/,
    },
  );

  // Bytes that change after they were loaded reach nobody.
  const flip = (): void => void (slotBytes(mover, 1, 0)[(1 << 20) + 100]! ^= 0x40);
  if (rank === 1) flip();
  await world.barrier('spoilt');
  mover.stage(shiftedPlan(3)).catch(() => undefined);
  await isRefused('WL_CHECK', /Cannot bring expert 3 of layer 1 from rank 1: .*CRC-32C/);
  if (rank === 1) flip();
  await world.barrier('as it was');

  // Nobody comes: a deadline, and the same end for all.
  if (rank === 0) {
    void mover.stage(shiftedPlan(3));
    await assert.rejects(mover.cutOver({ timeoutMs: 300 }), { code: 'WL_TIMEOUT' });
    await world.barrier('given up');
  } else {
    await world.barrier('given up');
    void mover.stage(shiftedPlan(3));
    await assert.rejects(mover.cutOver(), { code: 'WL_TIMEOUT' });
  }
  assert.equal(mover.epoch, 0);
  checkWeights(mover);
  await mover.stage(shiftedPlan(3));
  assert.equal(await mover.cutOver(), 1);
  checkWeights(mover);
  console.log(JSON.stringify({ epoch: mover.epoch }));
}

function die(): void {
  process.kill(process.pid, 'SIGKILL');
}

/** The victim dies when it has checked some of its weights, or when it has voted. */
function dieLater(): void {
  let left = Number(point);
  const kernels = new Proxy(device.kernels, {
    get(target, property) {
      if (property === 'crc32c' && left-- === 1) die();
      return Reflect.get(target, property, target) as unknown;
    },
  });
  if (point === 'vote') Object.defineProperty(world.store, 'compareAndSet', { value: die });
  else Object.defineProperty(device, 'kernels', { value: kernels });
}

async function killed(): Promise<void> {
  const mover = await openMover();
  await world.barrier('ready');
  if (rank === Number(victim)) dieLater();
  const next = shiftedPlan(3);
  const staged = mover.stage(next).then(
    () => 'none',
    (error: { readonly code: string }) => error.code,
  );
  const end = await mover.cutOver({ timeoutMs: 60_000 }).then(
    () => ({ code: 'none', message: '' }),
    ({ code, message, rank: named }: WeftlineError) => ({ code, message, rank: named }),
  );
  assert.equal(mover.placement.plan.physicalToLogical[0], mover.epoch === 0 ? 0 : 3);
  if (mover.epoch === 0) {
    // Whatever it is called for, it is of no use without that rank.
    assert.throws(() => mover.stage(next), { code: end.code, message: end.message });
    await assert.rejects(mover.cutOver(), { code: end.code, message: end.message });
  }
  checkWeights(mover);
  console.log(JSON.stringify({ ...end, epoch: mover.epoch, staged: await staged }));
  await mover.close();
}

if (mode === 'traffic') await traffic();
else if (mode === 'refusals') await refusals();
else await killed();
await device.close();
await world.close();
