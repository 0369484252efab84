// Calls in which one rank does something else, each with a Communicator of its own; prints how every rank was told. argv: the
// names of those calls; none for all of them.
import { WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';

await using world = await join();
await using device = await openTestDevice(world);
const tensor = (count: number, dtype: 'f32' | 'i32' = 'f32') => device.empty(dtype, [count]);
const timeoutMs = device.kind === 'cuda' ? 4_000 : 60_000;
/** Time of a call that waits for a rank in vain. The others come within it, also where they share few processors. */
const shortMs = 2_000;
/** Time of the call behind it. A kernel waits for ranks that have given up until its own deadline; on CPUs nothing waits so long. */
const nextMs = device.kind === 'cuda' ? 100 : timeoutMs;
/** The rank that differs. */
const odd = 2;

type Call = (communicator: Communicator) => Promise<unknown>;

/** What the odd rank calls, and what the others do. */
const cases: Readonly<Record<string, readonly [odd: Call, others: Call]>> = {
  'another operation': [
    (of) => of.allGather({ input: tensor(4), output: tensor(16), timeoutMs }),
    (of) => of.allReduce({ output: tensor(4), timeoutMs }),
  ],
  'another count': [
    (of) => of.allReduce({ output: tensor(5), timeoutMs }),
    (of) => of.allReduce({ output: tensor(4), timeoutMs }),
  ],
  'another length of pieces': [
    (of) => of.reduceScatter({ input: tensor(4), timeoutMs }),
    (of) => of.reduceScatter({ input: tensor(4_000_000), timeoutMs }),
  ],
  'another dtype': [
    (of) => of.allToAll({ output: tensor(8, 'i32'), timeoutMs }),
    (of) => of.allToAll({ output: tensor(8), timeoutMs }),
  ],
  'another reduction': [
    (of) => of.reduce({ output: tensor(4), root: 0, op: 'max', timeoutMs }),
    (of) => of.reduce({ output: tensor(4), root: 0, timeoutMs }),
  ],
  'another root': [
    async (of) => {
      await of.broadcast({ output: tensor(4), root: odd, timeoutMs });
      await of.barrier({ timeoutMs });
    },
    async (of) => {
      await of.broadcast({ output: tensor(4), root: 0, timeoutMs });
      await of.barrier({ timeoutMs });
    },
  ],
  'barrier for broadcast': [
    (of) => of.barrier({ timeoutMs }),
    async (of) => {
      await of.broadcast({ output: tensor(4), root: 0, timeoutMs });
      await of.barrier({ timeoutMs });
    },
  ],
  'counts of allToAllv': [
    (of) =>
      of.allToAllv({
        input: tensor(9),
        output: tensor(9),
        sendCounts: [3, 1, 1, 1],
        recvCounts: [1, 1, 1, 1],
        timeoutMs,
      }),
    (of) =>
      of.allToAllv({
        input: tensor(9),
        output: tensor(9),
        sendCounts: [1, 1, 1, 1],
        recvCounts: [1, 1, 1, 1],
        timeoutMs,
      }),
  ],
  'length of a message': [
    (of) => of.send({ input: tensor(5), peer: 0, timeoutMs }),
    async (of) => {
      if (of.group.rank === 0) await of.recv({ output: tensor(6), peer: odd, timeoutMs });
      await of.barrier({ timeoutMs });
    },
  ],
  'dtype of a message': [
    (of) => of.send({ input: tensor(5, 'i32'), peer: 0, timeoutMs }),
    async (of) => {
      if (of.group.rank === 0) await of.recv({ output: tensor(5), peer: odd, timeoutMs });
      await of.barrier({ timeoutMs });
    },
  ],
  'no call': [async () => {}, (of) => of.allReduce({ output: tensor(100_000), timeoutMs: shortMs })],
  'no message': [
    async () => {},
    (of) =>
      of.group.rank === 0
        ? of.recv({ output: tensor(1), peer: odd, timeoutMs: shortMs })
        : of.barrier({ timeoutMs: shortMs }),
  ],
  leaves: [(of) => of.close(), (of) => of.barrier({ timeoutMs })],
  'leaves before calls': [
    (of) => of.close(),
    async (of) => {
      // One rank hears of it first; the others come to the call when it has given up.
      if (of.group.rank !== 1) await world.store.get('heard');
      try {
        await of.barrier({ timeoutMs });
      } finally {
        if (of.group.rank === 1) await world.store.setJson('heard', true);
      }
    },
  ],
};

async function told(run: () => Promise<unknown>): Promise<string> {
  try {
    await run();
    // What a kernel found is thrown by the next wait.
    if (device.kind === 'cuda') await device.stream.idle();
    return 'ok';
  } catch (error) {
    return error instanceof WeftlineError ? `${error.code}: ${error.message}` : String(error);
  }
}

const results: Record<string, readonly [first: string, next: string]> = {};
const asked = process.argv.slice(2);
for (const [name, [odds, others]] of Object.entries(cases)) {
  if (asked.length > 0 && !asked.includes(name)) continue;
  // A kernel that waits for a rank that has closed its side ends at its deadline, as in 'no call'.
  if (name.startsWith('leaves') && device.kind === 'cuda' && world.topology.hosts.length === 1) continue;
  const communicator = await Communicator.create(world, device);
  const call = world.rank === odd ? odds : others;
  const first = await told(() => call(communicator));
  // Nobody goes on before all know.
  await world.barrier(name);
  results[name] = [first, await told(() => communicator.barrier({ timeoutMs: nextMs }))];
  await world.barrier(name);
  await communicator.close();
}
console.log(JSON.stringify(results));
