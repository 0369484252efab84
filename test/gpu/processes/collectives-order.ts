// Calls of a Communicator on two GPU ranks that follow each other on different streams, in graphs, after a peer that was too
// late, and before close().
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { type CudaDevice, type Tensor, WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../../local/support/test-device.ts';

await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;
const { rank } = world;
const count = 300_000;

/** What a rank gives in a call: numbers whose sums are exact. */
function values(of: number, call: number, length = count): Float32Array {
  return Float32Array.from({ length }, (_, at) => (at % 1000) + 1000 * call + 7 * of);
}

function sum(call: number, length = count): Float32Array {
  const [left, right] = [values(0, call, length), values(1, call, length)];
  return left.map((value, at) => value + right[at]!);
}

async function check(output: Tensor<'f32'>, want: Float32Array, what: string): Promise<void> {
  const got = await output.toHost();
  const wrong = want.findIndex((value, at) => value !== got[at]);
  assert.equal(wrong, -1, `${what}: element ${wrong} of rank ${rank} is ${got[wrong]}, not ${want[wrong]}`);
}

/** Neither on which stream a call runs nor whether a graph repeats it changes their order. */
async function mixed(): Promise<void> {
  await using communicator = await Communicator.create(world, device, { pieceBytes: 65_536 });
  const inputs = await Promise.all([0, 1, 2].map((call) => device.tensor('f32', [count], values(rank, call))));
  const outputs = inputs.map(() => device.empty('f32', [count]));
  const reduce = (call: number, asyncFinish = false) =>
    communicator.allReduce({ input: inputs[call]!, output: outputs[call]!, asyncFinish });
  const sums = [0, 1, 2].map((call) => sum(call));
  const zeros = new Float32Array(count);
  const other = device.createStream();
  // The last call before the recording runs on a stream of its own.
  const first = await reduce(0, true);
  using graph = await device.capture(async () => {
    await reduce(1);
  });
  await first.event!.wait();
  for (let turn = 0; turn < 60; turn++) {
    const before = await reduce(0, true);
    if (turn % 3 === 2) graph.launch(other);
    else graph.launch();
    const after = await reduce(2, turn % 2 === 0);
    for (const { event } of [before, after]) await event?.wait();
    await other.idle();
    await device.stream.idle();
    for (const [call, output] of outputs.entries()) await check(output, sums[call]!, `turn ${turn}, call ${call}`);
    for (const output of outputs) await output.fromHost(zeros);
    // Nobody's next call comes before this.
    await device.stream.idle();
  }
  await world.barrier('mixed');
  await communicator.close();
  assert.throws(() => graph.launch(), { code: 'WL_CLOSED', message: /Communicator was closed/ });
  other[Symbol.dispose]();
}

async function told(run: () => Promise<unknown>): Promise<string> {
  try {
    await run();
    // What a kernel found is thrown by the next wait.
    await device.stream.idle();
    return 'ok';
  } catch (error) {
    if (error instanceof WeftlineError) return error.code;
    throw error;
  }
}

/** Rank 0 makes two calls at once and expires in the first; rank 1 comes after that. */
async function late(kind: 'allReduce' | 'allGather', length: number, isRegistered: boolean): Promise<void> {
  const what = `${kind} of ${length}${isRegistered ? ', registered' : ''}`;
  const communicator = await Communicator.create(world, device, { pieceBytes: 65_536, directBytes: 20_000 });
  // Large enough to be registered.
  const blocks = [0, 1, 2, 3].map(() => device.empty('f32', [1 << 20]));
  if (isRegistered) for (const block of blocks) await communicator.register(block);
  const [first, second] = [blocks[0]!.slice(0, length), blocks[1]!.slice(0, length)];
  await first.fromHost(values(rank, 1, length));
  await second.fromHost(values(rank, 2, length));
  const outputs = blocks.slice(2).map((block) => block.slice(0, 2 * length));
  for (const output of outputs) await output.fromHost(new Float32Array(2 * length));
  await device.stream.idle();
  const call = (input: Tensor<'f32'>, output: Tensor<'f32'>, timeoutMs: number): Promise<unknown> =>
    kind === 'allReduce'
      ? communicator.allReduce({ input, output: output.slice(0, length), timeoutMs })
      : communicator.allGather({ input, output, timeoutMs });
  const [here, there] = outputs as [Tensor<'f32'>, Tensor<'f32'>];
  await world.barrier(`${what} begins`);
  if (rank === 0) {
    const result = await told(async () => {
      await call(first, here, 300);
      await call(second, there, 300);
    });
    assert.equal(result, 'WL_TIMEOUT', what);
    await here.fromHost(values(5, 5, 2 * length));
    await device.stream.idle();
  }
  await world.barrier(`${what} expired`);
  if (rank === 1) {
    await sleep(50);
    const result = await told(() => call(first, here, 2000));
    if (result === 'ok') {
      const want =
        kind === 'allReduce' ? sum(1, length) : Float32Array.from([...values(0, 1, length), ...values(1, 1, length)]);
      await check(here, want, what);
    } else assert.equal(result, 'WL_TIMEOUT', what);
    if (isRegistered) assert.equal(result, 'WL_TIMEOUT', `${what}: its peer's tensors are no longer those of the call`);
    assert.equal(await told(() => call(second, there, 2000)), 'WL_TIMEOUT', what);
  }
  await world.barrier(`${what} heard`);
  if (rank === 0) await check(here, values(5, 5, 2 * length), `${what}, after it failed`);
  await communicator.close();
  for (const block of blocks) block.close();
  await world.barrier(`${what} ends`);
}

/** The sender's window stays until the receiver, which still reads, has taken all. */
async function sendThenClose(): Promise<void> {
  using tensor = device.empty('f32', [count]);
  for (let turn = 0; turn < 10; turn++) {
    const communicator = await Communicator.create(world, device, { pieceBytes: 65_536 });
    if (rank === 0) {
      await tensor.fromHost(values(0, turn));
      await communicator.send({ input: tensor, peer: 1 });
    } else {
      await communicator.recv({ output: tensor, peer: 0 });
      await check(tensor, values(0, turn), `message ${turn}`);
    }
    await communicator.close();
  }
}

await mixed();
for (const kind of ['allReduce', 'allGather'] as const) {
  for (const length of [1000, 200_000]) await late(kind, length, false);
  await late(kind, 200_000, true);
}
await sendThenClose();
await world.barrier('end');
console.log(JSON.stringify('ok'));
