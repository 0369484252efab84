// Runs random cases in lockstep on all ranks: argv = what ("buffer", "layer" or "both", one after the other), runs of each, seed.
import fc from '../../support/fast-check.ts';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { bytesInUse, testGroup, openTestDevice } from '../support/test-device.ts';
import { runBufferCase } from './ep-buffer-case.ts';
import { epCase } from './ep-case.ts';
import { runLayerCase } from './layer-case.ts';

const [what, count, seed] = process.argv.slice(2);
const runs = { buffer: [runBufferCase], layer: [runLayerCase], both: [runBufferCase, runLayerCase] }[String(what)];
if (runs === undefined) throw new Error(`Cannot run cases of ${what}: expected buffer, layer or both`);
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
// Across hosts it holds the agent that the cases' objects share: to open one for each case takes longer than the case.
const holder =
  group.topology.hosts.length === 1
    ? undefined
    : await EpBuffer.create(group, device, { maxTokensPerRank: 1, hidden: 8, numExperts: group.size, maxTopk: 1 });
for (const run of runs) {
  const property = fc.asyncProperty(epCase(group.size), async (of) => {
    let failure: string | null = null;
    try {
      await run(group, device, of);
    } catch (error) {
      failure = error instanceof Error ? (error.stack ?? error.message) : String(error);
    }
    // All ranks fail together, so that all try the same smaller cases next.
    const failures = await group.allGather('failure', failure);
    const rank = failures.findIndex((one) => one !== null);
    if (rank !== -1) throw new Error(`rank ${rank}: ${failures[rank]}`);
  });
  await fc.assert(property, { numRuns: Number(count), seed: Number(seed) });
}
await holder?.[Symbol.asyncDispose]();
const left = bytesInUse(device) ?? 0;
if (left > 0) throw new Error(`${left} bytes of the device's memory were not given back`);
console.log(`job ${world.filePrefix}, rank ${world.rank}: ${count} cases of ${what} agree with the reference`);
