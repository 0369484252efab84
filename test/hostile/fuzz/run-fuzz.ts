// Fuzzes decoders one after the other, in a thread that is ended when an input takes too long or too much.
import { Worker } from 'node:worker_threads';
import { type Decoder, MAX_INPUT_BYTES } from './decoder.ts';
import { type DecoderShare, type FuzzOptions, type FuzzReport, type FuzzTask, watchWord } from './fuzz-task.ts';

/** An input that runs for so long hangs. Generous: other work may have the processor. */
const HANG_MS = 20_000;
const LOOK_MS = 250;
/** JavaScript objects; typed arrays are looked at by the thread itself. */
const HEAP_MIB = 256;

export interface FuzzRun extends FuzzOptions {
  readonly shares: readonly DecoderShare[];
  /** Called when a decoder has had its share. */
  readonly onReport: (report: FuzzReport) => void;
  readonly hangMs?: number;
}

export async function fuzz({ shares, onReport, ...options }: FuzzRun): Promise<void> {
  for (let done = 0; done < shares.length;) {
    const rest = shares.slice(done);
    await runThread({ ...options, shares: rest }, (report) => {
      done++;
      onReport(report);
    });
  }
}

/** Returns when all is done or, having reported it, when an input ended the thread. */
async function runThread(run: Omit<FuzzRun, 'onReport'>, onReport: (report: FuzzReport) => void): Promise<void> {
  const { hangMs = HANG_MS, ...options } = run;
  const shared = new SharedArrayBuffer(64 + MAX_INPUT_BYTES);
  const words = new Int32Array(shared, 0, 16);
  const task: FuzzTask = { ...options, shared };
  const start = performance.now();
  const worker = new Worker(new URL('./fuzz-worker.js', import.meta.url), {
    workerData: task,
    resourceLimits: { maxOldGenerationSizeMb: HEAP_MIB },
    // Decoders close descriptors that native code opened.
    trackUnmanagedFds: false,
  });
  let timer: NodeJS.Timeout | undefined;
  try {
    await new Promise<void>((resolve) => {
      let reports = 0;
      let isOver = false;
      const blame = (what: string): void => {
        if (isOver) return;
        isOver = true;
        const { decoder } = task.shares[words[watchWord.share] as number] as DecoderShare;
        const index = words[watchWord.index] as number;
        const input = Buffer.from(shared.slice(64, 64 + (words[watchWord.bytes] as number))).toString('base64');
        const faults = [{ decoder, index, input, what }];
        onReport({ decoder, inputs: Math.max(0, index), milliseconds: performance.now() - start, faults, kept: 0 });
        resolve();
      };
      let beats = 0;
      let since = performance.now();
      timer = setInterval(() => {
        const now = Atomics.load(words, watchWord.beats);
        if (now !== beats) since = performance.now();
        else if (now > 0 && performance.now() - since > hangMs) blame(`it did not come back within ${hangMs} ms`);
        beats = now;
      }, LOOK_MS);
      worker.on('message', (report: FuzzReport) => {
        since = performance.now();
        if (isOver) return;
        onReport(report);
        isOver = ++reports === task.shares.length;
        if (isOver) resolve();
      });
      worker.once('error', (error) => blame(`the thread ended: ${error.stack ?? error.message}`));
      worker.once('exit', (code) => blame(`the thread exited with ${code}`));
    });
  } finally {
    clearInterval(timer);
    await worker.terminate();
  }
}

/** How many of `count` inputs each decoder gets. */
export function shareOut(decoders: readonly Decoder[], count: number): readonly DecoderShare[] {
  const weights = decoders.map(({ weight = 1 }) => weight);
  const whole = weights.reduce((sum, weight) => sum + weight, 0);
  return decoders.map(({ name }, index) => {
    return { decoder: name, from: 0, to: Math.ceil((count * (weights[index] as number)) / whole) };
  });
}
