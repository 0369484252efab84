// All metrics of this process at one moment, as plain data.
import {
  type MetricKind,
  type MetricName,
  metricTable,
  readMeters,
  readSamples,
  type Sample,
} from '../core/metric-table.ts';
import { addTraceSink } from '../core/trace.ts';
import { observeWaits } from '../core/waits.ts';
import { type LastCall, MetricsSink, secondBounds } from './metrics-sink.ts';

// Whether this thread collects times of calls, phases, waits and transfers; begins once and goes on until the process ends.

class Collected {
  readonly sink = new MetricsSink();
  /** Seconds and waits, by world rank. */
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

let collection: Collected | undefined;

/** Idempotent. */
export function collect(): Collected {
  if (collection === undefined) {
    const made = new Collected();
    collection = made;
    addTraceSink(made.sink);
    observeWaits((ranks, milliseconds) => made.noteWait(ranks, milliseconds));
  }
  return collection;
}

/** One series. Of histograms and summaries there are `sum` and `count`, of others `value`. */
export interface MetricSeries {
  readonly labels: Readonly<Record<string, string>>;
  readonly value?: number;
  readonly sum?: number;
  readonly count?: number;
  /** How many observations of a histogram were at most as large as each of `bounds`; cumulative. */
  readonly buckets?: readonly number[];
}

/** A metric with its series; those that have none are left out. */
export interface MetricFamily {
  readonly name: MetricName;
  readonly kind: MetricKind;
  readonly help: string;
  /** Upper bounds of a histogram's buckets in seconds, without that of infinity. */
  readonly bounds?: readonly number[];
  readonly series: readonly MetricSeries[];
}

/** What readMetrics() returns. */
export interface MetricsSnapshot {
  /** True if times of calls, phases, waits and transfers are collected; counters are kept always. */
  readonly isCollecting: boolean;
  readonly metrics: readonly MetricFamily[];
  /** The last call that has ended, for each collective object and kind of call; only while collecting. */
  readonly lastCalls: readonly LastCall[];
}

/** Reads all metrics of this thread's objects. Never fails. */
export async function readMetrics(): Promise<MetricsSnapshot> {
  const [samples, { windowBytes }] = await Promise.all([readSamples(), readMeters()]);
  const windows: Sample = { name: 'weftline_buffer_bytes', labels: ['window'], value: windowBytes };
  const all = [...samples, windows, ...(collection?.samples() ?? [])];
  const families = (Object.keys(metricTable) as MetricName[]).map((name): MetricFamily => {
    const { kind, help } = metricTable[name];
    if (kind !== 'histogram') return { name, kind, help, series: merged(all.filter((sample) => sample.name === name)) };
    const histograms = (collection?.sink.histograms() ?? []).filter((entry) => entry.name === name);
    const series = histograms.map(({ histogram }): MetricSeries => {
      let below = 0;
      const buckets = secondBounds.map((_, at) => (below += histogram.buckets[at]!));
      return { labels: labelled(name, histogram.labels), sum: histogram.sum, count: histogram.count, buckets };
    });
    return { name, kind, help, bounds: secondBounds, series };
  });
  return {
    isCollecting: collection !== undefined,
    metrics: families.filter(({ series }) => series.length > 0),
    lastCalls: collection?.sink.lastCalls() ?? [],
  };
}

/** Adds up counters, summaries and some gauges of equal labels; of other gauges, the largest counts. */
function merged(samples: readonly Sample[]): MetricSeries[] {
  const byLabels = new Map<string, { readonly sample: Sample; value: number; count: number }>();
  for (const sample of samples) {
    const key = JSON.stringify(sample.labels);
    const known = byLabels.get(key);
    if (known === undefined) byLabels.set(key, { sample, value: sample.value, count: sample.count ?? 0 });
    else {
      const metric = metricTable[sample.name];
      const isLargest = metric.kind === 'gauge' && !('isSum' in metric);
      known.value = isLargest ? Math.max(known.value, sample.value) : known.value + sample.value;
      known.count += sample.count ?? 0;
    }
  }
  return [...byLabels.values()].map(({ sample, value, count }): MetricSeries => {
    const labels = labelled(sample.name, sample.labels);
    return sample.count === undefined ? { labels, value } : { labels, sum: value, count };
  });
}

function labelled(name: MetricName, values: readonly string[]): Record<string, string> {
  return Object.fromEntries(metricTable[name].labels.map((label, at) => [label, values[at] ?? '']));
}
