// All metrics of this process at one moment, as plain data.
import { type MetricKind, type MetricName, metricTable } from '../core/metric-table.ts';
import { readMeters } from '../core/meters.ts';
import { readSamples, type Sample } from '../core/samples.ts';
import { secondBounds } from './histogram.ts';
import { present } from './collect-metrics.ts';
import type { LastCall } from './metrics-sink.ts';

/** One series. Of histograms and summaries there are `sum` and `count`, of others `value`. */
export interface MetricSeries {
  readonly labels: Readonly<Record<string, string>>;
  readonly value?: number;
  readonly sum?: number;
  readonly count?: number;
  /** Of a histogram: how many observations were at most as large as each of `bounds`; cumulative. */
  readonly buckets?: readonly number[];
}

/** A metric with its series; those that have none are left out. */
export interface MetricFamily {
  readonly name: MetricName;
  readonly kind: MetricKind;
  readonly help: string;
  /** Of a histogram, upper bounds of its buckets in seconds, without that of infinity. */
  readonly bounds?: readonly number[];
  readonly series: readonly MetricSeries[];
}

/** What readMetrics() returns. */
export interface MetricsSnapshot {
  /** True if times of calls, phases, waits and transfers are collected; counters are kept always. */
  readonly isCollecting: boolean;
  readonly metrics: readonly MetricFamily[];
  /** Of each collective object and call the last one that has ended; only while collecting. */
  readonly lastCalls: readonly LastCall[];
}

/** Reads all metrics of this thread's objects. Never fails. */
export async function readMetrics(): Promise<MetricsSnapshot> {
  const collected = present();
  const [samples, { windowBytes }] = await Promise.all([readSamples(), readMeters()]);
  const windows: Sample = { name: 'weftline_buffer_bytes', labels: ['window'], value: windowBytes };
  const all = [...samples, windows, ...(collected?.samples() ?? [])];
  const families = (Object.keys(metricTable) as MetricName[]).map((name): MetricFamily => {
    const { kind, help } = metricTable[name];
    if (kind !== 'histogram') return { name, kind, help, series: merged(all.filter((sample) => sample.name === name)) };
    const histograms = (collected?.sink.histograms() ?? []).filter((entry) => entry.name === name);
    const series = histograms.map(({ histogram }): MetricSeries => {
      let below = 0;
      const buckets = secondBounds.map((_, at) => (below += histogram.buckets[at]!));
      return { labels: labelled(name, histogram.labels), sum: histogram.sum, count: histogram.count, buckets };
    });
    return { name, kind, help, bounds: secondBounds, series };
  });
  return {
    isCollecting: collected !== undefined,
    metrics: families.filter(({ series }) => series.length > 0),
    lastCalls: collected?.sink.lastCalls() ?? [],
  };
}

/** Of equal labels counters and summaries are added up; of gauges the largest counts. */
function merged(samples: readonly Sample[]): MetricSeries[] {
  const byLabels = new Map<string, { readonly sample: Sample; value: number; count: number }>();
  for (const sample of samples) {
    const key = JSON.stringify(sample.labels);
    const known = byLabels.get(key);
    if (known === undefined) byLabels.set(key, { sample, value: sample.value, count: sample.count ?? 0 });
    else {
      const isGauge = metricTable[sample.name].kind === 'gauge';
      known.value = isGauge ? Math.max(known.value, sample.value) : known.value + sample.value;
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
