// Random puts whose targets do not meet, and what they leave: the same on all ranks that name the same seed and round.
import { seededRandom } from '#lib/core/seeded-random.js';

export const REGION_BYTES: number = 1 << 18;

export interface Put {
  readonly target: number;
  readonly source: number;
  readonly bytes: number;
}

export interface PutCase {
  readonly source: Uint8Array;
  readonly puts: readonly Put[];
  /** Applied to the target's bytes of the round before. */
  readonly apply: (target: Uint8Array) => void;
}

/** Sizes of no byte, few, odd ones and many; any alignment on both sides. */
export function makePutCase(seed: number, round: number): PutCase {
  const next = seededRandom(seed * 1009 + round + 1);
  const below = (limit: number): number => Math.floor(next() * limit);
  const source = Uint8Array.from({ length: REGION_BYTES }, () => below(256));
  const puts: Put[] = [];
  for (let at = below(40); ;) {
    const kind = below(5);
    const bytes = [8, below(9), below(200), below(6000), 16 * below(4000)][kind] as number;
    // Half of those of 8 bytes lie so that they may travel in their command.
    const target = kind === 0 ? Math.ceil(at / 8) * 8 : at;
    if (target + bytes > REGION_BYTES) break;
    const from = below(REGION_BYTES - bytes + 1);
    puts.push({ target, source: kind === 0 && next() < 0.5 ? Math.floor(from / 8) * 8 : from, bytes });
    at = target + bytes + (next() < 0.5 ? 0 : below(64));
  }
  const apply = (target: Uint8Array): void => {
    for (const put of puts) target.set(source.subarray(put.source, put.source + put.bytes), put.target);
  };
  return { source, puts, apply };
}

/** The value of a word; every bit of it is used. */
export function wordOf(epoch: number): bigint {
  return BigInt.asUintN(64, BigInt(epoch) * 0x9e37_79b9_7f4a_7c15n);
}
