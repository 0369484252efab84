// What client and server of the unpack bench agree on: chunks of scattered pages, each a message of descriptors and bytes.
import { fragmentDescriptor, fragmentWord, MAX_BLOCK_DESCRIPTORS } from '../../../../abi/unpack-block.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { DescriptorBlock } from '../../../../unpack/index.ts';
import { shuffled } from '../../interleaved.ts';

/** Said by the client; the server believes none of it. */
export interface RoadPlan {
  readonly chunkBytes: number;
  readonly chunks: number;
  readonly fragmentBytes: number;
  readonly iterations: number;
  /** Iterations before them that do not count. */
  readonly warmup: number;
}

/** Messages that are under way. */
export const ROAD_DEPTH = 4;

const MAX_CHUNK_BYTES = 2 ** 26;
const MAX_TOTAL_BYTES = 2 ** 30;
const MAX_ITERATIONS = 1_000_000;
const TWO_32 = 2 ** 32;

/** Fails with WL_INVALID_ARGUMENT; at the server, for what a client says. */
export function checkRoadPlan(plan: RoadPlan | null): RoadPlan {
  const { chunkBytes = 0, chunks = 0, fragmentBytes = 0, iterations = 0, warmup = 0 }: Partial<RoadPlan> = plan ?? {};
  const areWhole = [chunkBytes, chunks, fragmentBytes, iterations].every(
    (value) => Number.isSafeInteger(value) && value > 0,
  );
  const fits =
    areWhole &&
    Number.isSafeInteger(warmup) &&
    warmup >= 0 &&
    warmup + iterations <= MAX_ITERATIONS &&
    chunkBytes <= MAX_CHUNK_BYTES &&
    chunks * chunkBytes <= MAX_TOTAL_BYTES &&
    chunkBytes % fragmentBytes === 0 &&
    fragmentBytes % 16 === 0 &&
    chunkBytes / fragmentBytes <= MAX_BLOCK_DESCRIPTORS;
  if (fits && plan !== null) return plan;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Invalid plan of the unpack bench: expected chunks of at most 64 MiB and 1 GiB in all, in fragments of multiples of 16 bytes, at most ${MAX_BLOCK_DESCRIPTORS} to a chunk, got ${JSON.stringify(plan)}`,
    { details: { ...plan } },
  );
}

export function fragmentsPerChunk({ chunkBytes, fragmentBytes }: RoadPlan): number {
  return chunkBytes / fragmentBytes;
}

/** Descriptors come first; their source offsets count from the first byte behind them. */
export function descriptorBytes(plan: RoadPlan): number {
  return fragmentsPerChunk(plan) * fragmentDescriptor.size;
}

export function messageBytes(plan: RoadPlan): number {
  return descriptorBytes(plan) + plan.chunkBytes;
}

/** Where each fragment of all chunks belongs, in fragments. */
export function roadPlaces(plan: RoadPlan): number[] {
  return shuffled(plan.chunks * fragmentsPerChunk(plan), plan.chunks);
}

export function writeDescriptors(plan: RoadPlan, message: Uint8Array, destinations: readonly number[]): void {
  const words = new Uint32Array(message.buffer, message.byteOffset, descriptorBytes(plan) / 4);
  for (const [index, place] of destinations.entries()) {
    const at = (index * fragmentDescriptor.size) / 4;
    const offset = place * plan.fragmentBytes;
    words[at + fragmentWord.sourceOffset] = index * plan.fragmentBytes;
    words[at + fragmentWord.length] = plan.fragmentBytes;
    words[at + fragmentWord.destinationOffset] = offset;
    words[at + fragmentWord.destinationOffset + 1] = offset / TWO_32;
  }
}

/** Adds what a message describes to a block; the launcher checks it. Fails with WL_INVALID_ARGUMENT and WL_CAPACITY. */
export function readDescriptors(count: number, words: Uint32Array, block: DescriptorBlock): void {
  for (let index = 0; index < count; index++) {
    const at = (index * fragmentDescriptor.size) / 4;
    const destination =
      words[at + fragmentWord.destinationOffset]! + words[at + fragmentWord.destinationOffset + 1]! * TWO_32;
    block.add(words[at + fragmentWord.sourceOffset]!, words[at + fragmentWord.length]!, destination);
  }
}

/** The word at each place, so that no fragment can lie at another's without being noticed. */
export function expectedWord(index: number, iteration: number): number {
  return Math.imul(index + 1, 0x9e37_79b9) ^ Math.imul(iteration + 1, 0x85eb_ca6b);
}
