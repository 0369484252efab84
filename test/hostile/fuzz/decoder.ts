// What the fuzzer knows of one decoder: valid inputs, how to run one input, and which refusals are clean.
import type { ErrorCode } from 'weftline';

export interface Decoder {
  readonly name: string;
  /** Codes of WeftlineError that are a clean refusal. Any other error is a fault. */
  readonly codes: readonly ErrorCode[];
  /** Valid inputs, from which others are made. */
  readonly seeds: () => readonly Uint8Array[];
  /** Takes one input in. Throws Fault for a broken promise that no error shows, such as a write outside of given memory. */
  readonly run: (input: Uint8Array) => void | Promise<void>;
  /** Makes checksums and lengths right again, so that what lies behind them is reached. Used for half of the inputs. */
  readonly repair?: (input: Uint8Array) => Uint8Array;
  /** Inputs are JSON, possibly behind `jsonOffset` bytes, and are also changed as trees. */
  readonly isJson?: boolean;
  /** Offsets at which fields begin, from the layouts. Interesting numbers are put there more often than elsewhere. */
  readonly fields?: readonly number[];
  /** Share of all inputs, compared with 1. Slow decoders get less. */
  readonly weight?: number;
  /** Most bytes of memory that one input may take. */
  readonly memoryBytes?: number;
}

/** A promise that was broken without an error. */
export class Fault extends Error {
  override readonly name: string = 'Fault';
}

/** Default of `memoryBytes`. */
export const MEMORY_BYTES: number = 64 * 2 ** 20;
/** Inputs are cut to this. */
export const MAX_INPUT_BYTES: number = 256 * 1024;
