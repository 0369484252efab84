// Histograms of times in typed arrays: an observation allocates nothing.

/** Upper bounds of the buckets, in seconds: 1, 2.5 and 5 of each decade from 1 µs to 50 s. Behind them is one without a bound. */
export const secondBounds: readonly number[] = Array.from({ length: 24 }, (_, at) =>
  Number(`${[1, 2.5, 5][at % 3]}e${Math.floor(at / 3) - 6}`),
);

export class Histogram {
  readonly labels: readonly string[];
  /** Of each bucket, not cumulative; the last is of what is above all bounds. */
  readonly buckets: Float64Array = new Float64Array(secondBounds.length + 1);
  readonly #total: Float64Array = new Float64Array(2);

  constructor(labels: readonly string[]) {
    this.labels = labels;
  }

  /** Hot path. */
  observe(seconds: number): void {
    let at = 0;
    while (at < secondBounds.length && seconds > secondBounds[at]!) at++;
    this.buckets[at]!++;
    this.#total[0]! += seconds;
    this.#total[1]!++;
  }

  /** In seconds. */
  get sum(): number {
    return this.#total[0]!;
  }

  get count(): number {
    return this.#total[1]!;
  }
}
