// Finds inputs that reach code which no input before them reached, by the coverage counters of the engine.
import { Session } from 'node:inspector/promises';
import type { Decoder } from './decoder.ts';
import { faultOf, type FoundFault, inputAt } from './fuzzer.ts';

/** Inputs between two looks at the counters. */
const BATCH = 64;
/** More than that of one decoder says that its inputs carry noise into the code. */
const MAX_KEPT = 60;
/** Longer ones are not worth a place in the repository. */
const MAX_KEPT_BYTES = 4096;

/**
 * Counters of all code that is compiled from now on; functions that have run before are counted as a whole only, so this
 * comes first in a thread.
 */
export async function startCounting(): Promise<Session> {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
  return session;
}

export class CoverageSearch {
  readonly kept: Uint8Array[] = [];
  readonly #decoder: Decoder;
  readonly #seeds: readonly Uint8Array[];
  readonly #seed: number;
  readonly #session: Session;
  readonly #blocks = new Set<string>();

  // oxlint-disable-next-line max-params -- what a search is made of
  constructor(session: Session, decoder: Decoder, seeds: readonly Uint8Array[], seed: number) {
    this.#session = session;
    this.#decoder = decoder;
    this.#seeds = seeds;
    this.#seed = seed;
  }

  async begin(): Promise<void> {
    for (const input of this.#seeds) await faultOf(this.#decoder, input);
    await this.#news(true);
  }

  async run(
    { from, to }: { readonly from: number; readonly to: number },
    before: (input: Uint8Array, index: number) => void,
  ): Promise<FoundFault[]> {
    const faults: FoundFault[] = [];
    for (let start = from; start < to; start += BATCH) {
      const batch: Uint8Array[] = [];
      for (let index = start; index < Math.min(to, start + BATCH); index++) {
        const input = inputAt(this.#decoder, [...this.#seeds, ...this.kept], this.#seed, index);
        batch.push(input);
        before(input, index);
        const what = await faultOf(this.#decoder, input);
        if (what === undefined) continue;
        const input64 = Buffer.from(input).toString('base64');
        faults.push({ decoder: this.#decoder.name, index, input: input64, what });
        if (faults.length >= MAX_KEPT) return faults;
      }
      if ((await this.#news(false)) > 0) await this.#narrow(batch);
    }
    return faults;
  }

  /** Halves a batch until the inputs are alone that reach new code. */
  async #narrow(batch: readonly Uint8Array[]): Promise<void> {
    if (this.kept.length >= MAX_KEPT) {
      await this.#news(true);
      return;
    }
    for (const input of batch) await faultOf(this.#decoder, input);
    if (batch.length > 1) {
      if ((await this.#news(false)) === 0) return;
      const middle = batch.length >> 1;
      await this.#narrow(batch.slice(0, middle));
      await this.#narrow(batch.slice(middle));
      return;
    }
    const [input] = batch;
    if (input !== undefined && (await this.#news(true)) > 0 && input.length <= MAX_KEPT_BYTES) this.kept.push(input);
  }

  /** How many blocks ran since the last look that never ran before; they count as known from now on if `remember`. */
  async #news(remember: boolean): Promise<number> {
    const { result } = await this.#session.post('Profiler.takePreciseCoverage');
    let count = 0;
    for (const { url, functions } of result) {
      if (!url.includes('/dist/')) continue;
      for (const { ranges } of functions) {
        for (const range of ranges) {
          if (range.count === 0) continue;
          const block = `${url}:${range.startOffset}-${range.endOffset}`;
          if (this.#blocks.has(block)) continue;
          count++;
          if (remember) this.#blocks.add(block);
        }
      }
    }
    return count;
  }
}
