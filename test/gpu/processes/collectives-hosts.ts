// Calls of a Communicator on GPUs of several hosts between other work: streams, events, graphs, messages before close(), and
// tensors of many pieces.
import assert from 'node:assert/strict';
import type { CudaDevice, Tensor } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../../local/support/test-device.ts';

await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;
const { rank, size } = world;

/** What a rank gives in a call: numbers whose sums are exact. */
function values(of: number, call: number, length: number): Float32Array {
  return Float32Array.from({ length }, (_, at) => (at % 1000) + 1000 * call + 7 * of);
}

function sum(call: number, length: number): Float32Array {
  return Float32Array.from({ length }, (_, at) => size * ((at % 1000) + 1000 * call) + (7 * size * (size - 1)) / 2);
}

async function check(output: Tensor<'f32'>, want: Float32Array, what: string): Promise<void> {
  const got = await output.toHost();
  const wrong = want.findIndex((value, at) => value !== got[at]);
  assert.equal(wrong, -1, `${what}: element ${wrong} of rank ${rank} is ${got[wrong]}, not ${want[wrong]}`);
}

/** A call begins after what was enqueued, or after its event, and what comes later waits for it or for its event. */
async function overlapping(): Promise<void> {
  await using communicator = await Communicator.create(world, device, { pieceBytes: 65_536 });
  const count = 100_000;
  const inputs = await Promise.all([0, 1].map((call) => device.tensor('f32', [count], values(rank, call, count))));
  const outputs = inputs.map(() => device.empty('f32', [count]));
  const zeros = new Float32Array(count);
  for (let turn = 0; turn < 20; turn++) {
    const isAside = turn % 2 === 0;
    using before = device.createEvent();
    before.record(device.stream);
    const first = await communicator.allReduce({
      input: inputs[0],
      output: outputs[0]!,
      asyncFinish: isAside,
      ...(turn % 4 === 0 && { previousEvent: before }),
    });
    assert.equal(first.event !== undefined, isAside);
    const second = await communicator.allReduce({ input: inputs[1], output: outputs[1]!, asyncFinish: !isAside });
    for (const { event } of [first, second]) if (event !== undefined) device.stream.waitFor(event as never);
    for (const [call, output] of outputs.entries()) await check(output, sum(call, count), `turn ${turn}, call ${call}`);
    for (const output of outputs) await output.fromHost(zeros);
  }
}

/** Steps of the host cannot be recorded; the Communicator goes on. */
async function recorded(): Promise<void> {
  await using communicator = await Communicator.create(world, device);
  const output = await device.tensor('f32', [100], values(rank, 3, 100));
  const record = (): Promise<unknown> =>
    device.capture(async () => {
      await communicator.allReduce({ output });
    });
  await assert.rejects(record, { code: 'WL_UNSUPPORTED', message: /Communicator of several hosts/ });
  await communicator.allReduce({ output });
  await check(output, sum(3, 100), 'after a recording that was refused');
}

async function large(): Promise<void> {
  await using communicator = await Communicator.create(world, device);
  const count = 9_000_001;
  using input = await device.tensor('f32', [count], values(rank, 5, count));
  using output = device.empty('f32', [count]);
  await communicator.allReduce({ input, output });
  await check(output, sum(5, count), 'a tensor of many pieces');
  await communicator.allReduce({ output: input });
  await check(input, sum(5, count), 'the same in place');
}

/** What was sent is received, though the sender closes at once. */
async function sendThenClose(): Promise<void> {
  const count = 700_000;
  using tensor = device.empty('f32', [count]);
  for (let turn = 0; turn < 5; turn++) {
    const communicator = await Communicator.create(world, device, { pieceBytes: 65_536 });
    const shift = 1 + (turn % (size - 1));
    const [peer, from] = [(rank + shift) % size, (rank + size - shift) % size];
    using received = device.empty('f32', [count]);
    await tensor.fromHost(values(rank, turn, count));
    communicator.groupStart();
    void communicator.send({ input: tensor, peer });
    void communicator.recv({ output: received, peer: from });
    await communicator.groupEnd();
    await communicator.close();
    await check(received, values(from, turn, count), `message ${turn}`);
  }
}

await overlapping();
await recorded();
await large();
await sendThenClose();
await world.barrier('end');
console.log(JSON.stringify('ok'));
