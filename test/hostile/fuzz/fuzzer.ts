// Runs one decoder on many inputs in this thread and tells what it found.
import { getHeapStatistics } from 'node:v8';
import { WeftlineError } from 'weftline';
import { type Decoder, MEMORY_BYTES } from './decoder.ts';
import { mutate } from './mutate.ts';
import { mixSeed, Random } from './random.ts';

export interface FoundFault {
  readonly decoder: string;
  /** Number of the input in the run; -1 for one that was given. */
  readonly index: number;
  /** Base64. */
  readonly input: string;
  readonly what: string;
}

/** Faults of one decoder after which it is left alone: they are usually the same one. */
const MAX_FAULTS = 5;

/** The input with a number; the same seeds, seed and number give the same bytes. */
export function inputAt(decoder: Decoder, seeds: readonly Uint8Array[], seed: number, index: number): Uint8Array {
  return mutate(decoder, seeds, new Random(mixSeed(seed, hashOf(decoder.name), index)));
}

/** Calls `before` with each input: the thread that watches this one must know what it was given, in case it never comes back. */
export async function fuzzRange(
  decoder: Decoder,
  seeds: readonly Uint8Array[],
  range: { readonly seed: number; readonly from: number; readonly to: number },
  before: (input: Uint8Array, index: number) => void,
): Promise<FoundFault[]> {
  const faults: FoundFault[] = [];
  for (let index = range.from; index < range.to && faults.length < MAX_FAULTS; index++) {
    const input = inputAt(decoder, seeds, range.seed, index);
    before(input, index);
    const what = await faultOf(decoder, input);
    if (what !== undefined) {
      const input64 = Buffer.from(input).toString('base64');
      faults.push({ decoder: decoder.name, index, input: input64, what });
    }
  }
  return faults;
}

/** What is wrong with how the decoder took an input; undefined if nothing is. */
export async function faultOf(decoder: Decoder, input: Uint8Array): Promise<string | undefined> {
  // A copy: a decoder that wrote to its input would else spoil what is reported.
  const given = input.slice();
  const before = usedBytes();
  try {
    const running = decoder.run(given);
    if (running !== undefined) await running;
  } catch (error) {
    if (!(error instanceof WeftlineError)) return describe(error);
    if (!decoder.codes.includes(error.code)) return `code ${error.code}: ${describe(error)}`;
    if (error.message.length > MAX_MESSAGE) return `a message of ${error.message.length} characters for a small input`;
  }
  const wasPolluted = Object.hasOwn(Object.prototype, 'polluted');
  const taken = usedBytes() - before;
  if (taken > (decoder.memoryBytes ?? MEMORY_BYTES)) return `it took ${Math.round(taken / 2 ** 20)} MiB of memory`;
  return Reflect.deleteProperty(Object.prototype, 'polluted') && wasPolluted
    ? 'it changed Object.prototype'
    : undefined;
}

/** A peer must not fill logs: what errors quote of it is cut. */
const MAX_MESSAGE = 16_384;

function usedBytes(): number {
  const { used_heap_size: heap, external_memory: external } = getHeapStatistics();
  return heap + external;
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return `it threw ${String(error)}`;
  const lines = (error.stack ?? '').split('\n').slice(0, 6).join('\n');
  return lines.length > 0 ? lines : `${error.name}: ${error.message}`;
}

function hashOf(text: string): number {
  let hash = 0;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x0100_0193);
  return hash;
}
