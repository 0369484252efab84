// Sparse all-reduces of three workers and an aggregator, in which one worker does something else; prints how every rank was told.
// argv: 'tree' where rank 3 adds up for workers 0 and 1, and rank 4 for it and worker 2; 'direct': without aggregators, of 3 ranks.
import { WeftlineError } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.js';

await using world = await join();
await using device = await openTestDevice(world);
/** The worker that differs. */
const odd = 1;

/** A kernel waits for ranks that have given up until its own deadline; on CPUs nothing waits so long. */
const patientMs = device.kind === 'cuda' ? 5_000 : 60_000;

type Call = (reducer: SparseAllReduce) => Promise<unknown>;
const call =
  (count: number, dtype: 'f32' | 'i32' = 'f32', timeoutMs = patientMs): Call =>
  async (reducer) => {
    const output = await device.tensor(
      dtype,
      [count],
      dtype === 'f32' ? new Float32Array(count).fill(1) : (new Int32Array(count).fill(1) as never),
    );
    return reducer.allReduce({ output, timeoutMs });
  };

/** What the odd worker calls, and what the others do. */
const cases: Readonly<Record<string, readonly [odd: Call, others: Call]>> = {
  'another count': [call(100_000), call(5)],
  'another dtype': [call(5, 'i32'), call(5)],
  'a call less': [() => Promise.resolve(), call(5, 'f32', 400)],
  leaves: [(reducer) => reducer.close(), call(5)],
  // The call that was refused counts for nobody.
  'a wrong argument': [
    async (reducer) => {
      await reducer.allReduce({ output: device.empty('u8', [5]) }).catch(() => {});
      await call(5)(reducer);
      await reducer.close();
    },
    async (reducer) => {
      await call(5)(reducer);
      await reducer.close();
    },
  ],
};

const shapes = { tree: { aggregators: [3, 4], fanIn: 2, slots: 1 }, direct: {}, one: { aggregators: [3] } };
const shape = process.argv[2];
const roles = shapes[shape === 'tree' || shape === 'direct' ? shape : 'one'];
const told: Record<string, readonly [first: string, next: string]> = {};
for (const [name, [differing, usual]] of Object.entries(cases)) {
  const reducer = await SparseAllReduce.create(world, device, roles);
  const first = await how(async () => {
    if (reducer.isWorker) return (world.rank === odd ? differing : usual)(reducer);
    await reducer.serve();
    // Ranks that close wait for it.
    return reducer.close();
  });
  await world.barrier(name);
  told[name] = [first, await how(() => (reducer.isWorker ? call(5)(reducer) : reducer.serve()))];
  await world.barrier(name);
  await reducer.close().catch(() => {});
}
console.log(JSON.stringify(told));

async function how(make: () => Promise<unknown>): Promise<string> {
  try {
    await make();
    return 'ok';
  } catch (error) {
    return error instanceof WeftlineError ? `${error.code}: ${error.message}` : String(error);
  }
}
