// What the watcher tells the thread that decoders run in, and what comes back.
import type { FoundFault } from './fuzzer.ts';

/** The inputs of one decoder: numbers from, and to (exclusive). */
export interface DecoderShare {
  readonly decoder: string;
  readonly from: number;
  readonly to: number;
}

export interface FuzzOptions {
  readonly seed: number;
  /** The first so many inputs of each decoder run with a look at which code they reach. */
  readonly covered: number;
  /** What reached new code is written to the folder of seeds. */
  readonly keep: boolean;
  /** Base64: only this input is run. */
  readonly input?: string;
}

export interface FuzzTask extends FuzzOptions {
  readonly shares: readonly DecoderShare[];
  /** 16 words, then the input that runs. */
  readonly shared: SharedArrayBuffer;
}

/** `share`: which one runs. */
export const watchWord = { beats: 0, bytes: 1, index: 2, share: 3 } as const;

/** One per share. */
export interface FuzzReport {
  readonly decoder: string;
  readonly inputs: number;
  readonly milliseconds: number;
  readonly faults: readonly FoundFault[];
  /** Inputs that reached code which no seed reached. */
  readonly kept: number;
}
