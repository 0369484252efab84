// The thread that decoders run in. Its watcher sees each input before it runs, and ends the thread when it does not return.
import { parentPort, workerData } from 'node:worker_threads';
import { CoverageSearch, startCounting } from './coverage.ts';
import type { Decoder } from './decoder.ts';
import { type DecoderShare, type FuzzReport, type FuzzTask, watchWord } from './fuzz-task.ts';
import { faultOf, type FoundFault, fuzzRange } from './fuzzer.ts';
import { decoderOf } from './every-decoder.ts';
import { keepSeed, seedsOf } from './seed-files.ts';

const task = workerData as FuzzTask;
const words = new Int32Array(task.shared, 0, 16);
const current = new Uint8Array(task.shared, 64);

const session = task.covered > 0 ? await startCounting() : undefined;

/** An error that nobody waits for is a fault of the decoder that runs. */
let stray: string | undefined;
const noteStray = (error: unknown): void => {
  stray ??= `an error that nobody caught: ${error instanceof Error ? error.stack : String(error)}`;
};
process.on('unhandledRejection', noteStray);
process.on('uncaughtException', noteStray);

function show(input: Uint8Array, index: number): void {
  current.set(input);
  words[watchWord.bytes] = input.length;
  words[watchWord.index] = index;
  Atomics.add(words, watchWord.beats, 1);
}

async function run({ decoder: name, from, to }: DecoderShare): Promise<FuzzReport> {
  const start = performance.now();
  const decoder = decoderOf(name);
  const faults: FoundFault[] = [];
  let kept = 0;
  if (task.input === undefined) {
    const seeds = [...seedsOf(decoder)];
    faults.push(...(await runEach(decoder, seeds)));
    const turn = Math.min(to, from + task.covered);
    if (session !== undefined) {
      const search = new CoverageSearch(session, decoder, seeds, task.seed);
      await search.begin();
      faults.push(...(await search.run({ from, to: turn }, show)));
      if (task.keep) for (const input of search.kept) keepSeed(decoder, input);
      kept = search.kept.length;
      seeds.push(...search.kept);
    }
    faults.push(...(await fuzzRange(decoder, seeds, { seed: task.seed, from: turn, to }, show)));
  } else faults.push(...(await runEach(decoder, [new Uint8Array(Buffer.from(task.input, 'base64'))])));
  // What went wrong behind the back of those that waited.
  await new Promise((resolve) => setTimeout(resolve, 10));
  if (stray !== undefined) faults.push({ decoder: name, index: -1, input: '', what: stray });
  stray = undefined;
  return { decoder: name, inputs: to - from, milliseconds: performance.now() - start, faults, kept };
}

/** Inputs that are there already get negative numbers. */
async function runEach(decoder: Decoder, inputs: readonly Uint8Array[]): Promise<FoundFault[]> {
  const faults: FoundFault[] = [];
  for (const [at, input] of inputs.entries()) {
    const index = -1 - at;
    show(input, index);
    const what = await faultOf(decoder, input);
    if (what === undefined) continue;
    faults.push({ decoder: decoder.name, index, input: Buffer.from(input).toString('base64'), what });
  }
  return faults;
}

for (const [index, share] of task.shares.entries()) {
  words[watchWord.share] = index;
  parentPort?.postMessage(await run(share));
}
