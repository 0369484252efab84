// What a program without types may pass where a number is asked for, by a seed.
import { Random } from '../fuzz/random.ts';

const edges = [
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  -1,
  -0,
  0.5,
  1.5,
  1e300,
  2 ** 53,
  2 ** 53 - 1,
  2 ** 63,
  -(2 ** 31),
  1n,
  -1n,
  2n ** 64n,
  '1',
  '',
  null,
  undefined,
  true,
  Symbol('number'),
];
/** Addresses and lengths that are whole, which a call that takes them at their word would use. */
const whole = [0, 1, 2, 3, 7, 8, 16, 63, 64, 65, 4096, 65_535, 65_536];
const large = [2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 40];

export class Draw extends Random {
  /** Anything; a fresh object where it is one, as calls may keep it. */
  number(): never {
    const kind = this.below(8);
    if (kind < 3) return this.pick(edges) as never;
    if (kind < 5) return this.pick(whole) as never;
    if (kind === 5) return this.pick(large) as never;
    if (kind === 6) return this.#object();
    return Math.floor((this.next() - 0.25) * 2 ** this.below(54)) as never;
  }

  /** The same for sizes of memory that a call takes, which must not take the machine's. */
  size(): never {
    const drawn: unknown = this.number();
    return (typeof drawn === 'number' && drawn > 65_536 && drawn < 2 ** 50 ? -drawn : drawn) as never;
  }

  /** One that is right, or anything: so that the other arguments of a call come to be looked at. */
  or<T>(right: T): T {
    return this.chance(0.6) ? right : this.number();
  }

  #object(): never {
    const objects = [
      () => ({}),
      () => [],
      () => [1],
      () => Object.create(null) as object,
      () => new Uint8Array(8),
      () => () => 1,
    ];
    return this.pick(objects)() as never;
  }
}
