// One rank kills itself in a phase of a call on GPUs of several hosts; the others print how they were told: argv = phase, rank.
import { StreamMover } from '#lib/collectives/hosts/hosts-collectives.js';
import type { WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../../local/support/test-device.ts';

const [phase, victimText] = process.argv.slice(2);
const world = await join();
const device = await openTestDevice(world);
const victim = Number(victimText);
const isVictim = world.rank === victim;
const die = (): void => void process.kill(process.pid, 'SIGKILL');
const output = device.empty('f32', [8 << 20]);
const part = output.slice(0, (8 << 20) / world.size);
const communicator = await Communicator.create(world, device);
const timeoutMs = 20_000;

/** The victim dies at so many steps of its GPU, counted from now. */
function dieAfter(method: 'copy' | 'reduce' | 'mark', calls: number): void {
  if (!isVictim) return;
  let left = calls;
  const original = StreamMover.prototype[method] as (this: StreamMover, ...given: unknown[]) => void;
  StreamMover.prototype[method] = function (this: StreamMover, ...given: unknown[]) {
    if (--left === 0) die();
    original.apply(this, given);
  };
}

const phases: Readonly<Record<string, () => Promise<unknown>>> = {
  'before a barrier': async () => {
    if (isVictim) die();
    await communicator.barrier({ timeoutMs });
  },
  'while it copies for an allReduce': async () => {
    dieAfter('copy', 9);
    await communicator.allReduce({ output, timeoutMs });
  },
  'while it adds up': async () => {
    dieAfter('reduce', 2);
    await communicator.allReduce({ output, timeoutMs });
  },
  'between two pieces of an allToAll': async () => {
    dieAfter('mark', 3);
    await communicator.allToAll({ output, timeoutMs });
  },
  'within a broadcast of its own': async () => {
    dieAfter('mark', 2);
    await communicator.broadcast({ output: part, root: victim, timeoutMs });
    await communicator.barrier({ timeoutMs });
  },
  'within a message': async () => {
    dieAfter('mark', 2);
    if (isVictim) await communicator.send({ input: output, peer: 0, timeoutMs });
    if (world.rank === 0) await communicator.recv({ output, peer: victim, timeoutMs });
    await communicator.barrier({ timeoutMs });
  },
};

await communicator.barrier();
// What a rank of another host has posted may still be on its way when it dies.
await world.barrier('ready');
const begin = performance.now();
try {
  await phases[phase!]!();
  console.log(JSON.stringify({ code: 'ok', message: '', ms: 0 }));
} catch (error) {
  const { code, message } = error as WeftlineError;
  console.log(JSON.stringify({ code, message, ms: performance.now() - begin }));
}
process.exit(0);
