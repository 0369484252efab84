// Times of a GPU's clock as times of its host's, from comparisons of both.
import type { ClockSample } from './kernel-ring.ts';

/** What a trace says about a GPU's clock. */
export interface GpuClock {
  readonly device: number;
  /** How far the GPU's clock, taken as time since 1970, was ahead of the host's at the first comparison, in µs. */
  readonly offsetUs: number;
  /** By how much it gained since, up to the last comparison, in µs. */
  readonly driftUs: number;
  /** Of the best and of the worst comparison: how far they may be off. */
  readonly errorUs: number;
  readonly mostErrorUs: number;
  readonly samples: number;
}

/** Between two comparisons the clocks drift evenly; before the first and after the last as between the nearest two. */
export class GpuTimes {
  readonly #samples: readonly ClockSample[];
  readonly #points: readonly { readonly ns: number; readonly hostUs: number }[];

  /** `samples` in the order of their times, at least one. */
  constructor(samples: readonly ClockSample[]) {
    this.#samples = samples;
    this.#points = samples.map(({ high, low, hostUs }) => ({ ns: this.#since(high, low), hostUs }));
  }

  /** µs since 1970 of the host's clock. */
  hostUs(high: number, low: number): number {
    const ns = this.#since(high, low);
    const points = this.#points;
    if (points.length === 1) return points[0]!.hostUs + ns / 1000;
    const after = points.findIndex((point) => point.ns >= ns);
    const right = after < 0 ? points.length - 1 : Math.max(1, after);
    const [from, to] = [points[right - 1]!, points[right]!];
    const rate = to.ns === from.ns ? 1 / 1000 : (to.hostUs - from.hostUs) / (to.ns - from.ns);
    return from.hostUs + (ns - from.ns) * rate;
  }

  clock(device: number): GpuClock {
    const first = this.#samples[0]!;
    const last = this.#points.at(-1)!;
    const errors = this.#samples.map(({ errorUs }) => errorUs);
    return {
      device,
      offsetUs: first.high * (2 ** 32 / 1000) + first.low / 1000 - first.hostUs,
      driftUs: last.ns / 1000 - (last.hostUs - first.hostUs),
      errorUs: Math.min(...errors),
      mostErrorUs: Math.max(...errors),
      samples: this.#samples.length,
    };
  }

  /** ns since the first comparison: differences are exact where times since 1970 are not. */
  #since(high: number, low: number): number {
    const first = this.#samples[0]!;
    return (high - first.high) * 2 ** 32 + (low - first.low);
  }
}
