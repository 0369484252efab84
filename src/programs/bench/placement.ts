// How fast this machine is at the moment: arithmetic on one core, and the way of a word between two cores.
import { once } from 'node:events';
import { startWorker } from '../../threads/start-worker.ts';
import { monotonicMicroseconds } from './clock.ts';

/**
 * Taken before and after a run. A virtual machine may move its processors between caches: the round trip then jumps
 * (about 100 ns to 400 ns was seen) and copies between cores follow it. Compare runs with similar values only.
 */
export interface PlacementSample {
  /** Time of a fixed arithmetic loop on one core; more means that something else used the core. */
  readonly arithmeticMilliseconds: number;
  /** One word to another thread and back; undefined when the two did not run at the same time. */
  readonly coreRoundTripNanoseconds: number | undefined;
}

/** The quickest run counts: the first ones warm up, and other threads may get in between. */
const RUNS = 5;
const ROUNDS_PER_RUN = 4_000;
const LIMIT_MICROSECONDS = 200_000;

export async function samplePlacement(): Promise<PlacementSample> {
  return { arithmeticMilliseconds: timeArithmetic(), coreRoundTripNanoseconds: await timeRoundTrip() };
}

/** True when the two samples are so far apart that numbers of the run between them should not be trusted. */
export function placementChanged(before: PlacementSample, after: PlacementSample): boolean {
  const [first, second] = [before.coreRoundTripNanoseconds, after.coreRoundTripNanoseconds];
  return (
    apart(before.arithmeticMilliseconds, after.arithmeticMilliseconds) ||
    (first !== undefined && second !== undefined && apart(first, second))
  );
}

function apart(a: number, b: number): boolean {
  return Math.max(a, b) > 1.5 * Math.min(a, b);
}

function timeArithmetic(): number {
  let best = Infinity;
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const begin = monotonicMicroseconds();
    let word = 1;
    for (let step = 0; step < 5_000_000; step += 1) word = (Math.imul(word, 1_664_525) + 1_013_904_223) | 0;
    // The result is used, so that the loop is not removed.
    if (word === 0x7fff_ffff) best = Infinity;
    best = Math.min(best, monotonicMicroseconds() - begin);
  }
  return best / 1000;
}

const echo = `
  import { parentPort, workerData } from 'node:worker_threads';
  const words = new Int32Array(workerData);
  parentPort.postMessage('ready');
  for (let round = 1; round <= ${RUNS * ROUNDS_PER_RUN}; round += 1) {
    for (;;) {
      const seen = Atomics.load(words, 0);
      if (seen === -1) process.exit();
      if (seen === round) break;
    }
    Atomics.store(words, 32, round);
  }`;

async function timeRoundTrip(): Promise<number | undefined> {
  const buffer = new SharedArrayBuffer(256);
  const words = new Int32Array(buffer);
  const worker = startWorker(new URL(`data:text/javascript,${encodeURIComponent(echo)}`), {
    name: 'echo',
    workerData: buffer,
  });
  try {
    await once(worker, 'message');
    const deadline = monotonicMicroseconds() + LIMIT_MICROSECONDS;
    let best: number | undefined;
    for (let run = 0; run < RUNS; run += 1) {
      const microseconds = exchange(words, run * ROUNDS_PER_RUN, deadline);
      if (microseconds === undefined) break;
      best = Math.min(best ?? Infinity, (microseconds * 1000) / ROUNDS_PER_RUN);
    }
    return best;
  } finally {
    Atomics.store(words, 0, -1);
    await worker.terminate();
  }
}

/** Time of one run of rounds; undefined when the other thread did not answer in time. */
function exchange(words: Int32Array, first: number, deadline: number): number | undefined {
  const begin = monotonicMicroseconds();
  let spins = 0;
  for (let round = first + 1; round <= first + ROUNDS_PER_RUN; round += 1) {
    Atomics.store(words, 0, round);
    while (Atomics.load(words, 32) !== round) {
      spins += 1;
      if (spins % 4096 === 0 && monotonicMicroseconds() > deadline) return undefined;
    }
  }
  return monotonicMicroseconds() - begin;
}
