// Whether this thread collects times of calls, phases, waits and transfers; begins once and goes on until the process ends.
import type { Sample } from '../core/samples.ts';
import { addTraceSink } from '../core/trace.ts';
import { observeWaits } from '../core/waits.ts';
import { MetricsSink } from './metrics-sink.ts';

class Collected {
  readonly sink = new MetricsSink();
  /** By world rank: seconds, and waits. */
  readonly #waits = new Map<number, Float64Array>();

  /** A wait of so many milliseconds has ended, which began when these ranks were missing. */
  noteWait(ranks: readonly number[], milliseconds: number): void {
    for (const rank of ranks) {
      const known = this.#waits.get(rank) ?? new Float64Array(2);
      this.#waits.set(rank, known);
      known[0]! += milliseconds / 1000;
      known[1]!++;
    }
  }

  /** All but histograms. */
  samples(): Sample[] {
    return [
      ...[...this.#waits].map(([rank, [value = 0, count = 0]]): Sample => ({
        name: 'weftline_ep_wait_seconds',
        labels: [String(rank)],
        value,
        count,
      })),
      ...this.sink
        .transferBytes()
        .map(({ labels, bytes }): Sample => ({ name: 'weftline_agent_bytes_total', labels, value: bytes })),
      { name: 'weftline_telemetry_dropped_total', labels: [], value: this.sink.dropped },
    ];
  }
}

let collected: Collected | undefined;

export function present(): Collected | undefined {
  return collected;
}

/** Idempotent. */
export function collect(): Collected {
  if (collected === undefined) {
    const made = new Collected();
    collected = made;
    addTraceSink(made.sink);
    observeWaits((ranks, milliseconds) => made.noteWait(ranks, milliseconds));
  }
  return collected;
}
