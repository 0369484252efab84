// A snapshot in the text format of Prometheus, which prom-client writes. Loaded only where somebody asks for it.
import prometheus, { type Metric } from 'prom-client';
import { type MetricName, metricTable } from '../core/metric-table.ts';
import type { MetricFamily, MetricSeries } from './read-metrics.ts';

interface Line {
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  readonly metricName: string;
}

const { Registry: MetricSet } = prometheus;

export const contentType: string = MetricSet.PROMETHEUS_CONTENT_TYPE;

/** Metrics of processes, each with labels that say whose they are. */
export function prometheusOfRanks(processes: readonly LabelledMetrics[]): Promise<string> {
  const set = new MetricSet();
  const names = Object.keys(metricTable) as MetricName[];
  for (const name of names) {
    const families = processes.flatMap(({ labels, metrics }) =>
      metrics.filter((family) => family.name === name).map((family) => ({ labels, family })),
    );
    const [first] = families;
    if (first === undefined) continue;
    const { help, kind: type } = first.family;
    const values = families.flatMap(({ labels, family: { series, bounds = [] } }) =>
      series.flatMap((one) => linesOf(name, { ...one, labels: { ...labels, ...one.labels } }, bounds)),
    );
    // A metric of prom-client is what can tell these; our own counts are where no call has to look for them.
    const metric = { name, get: () => Promise.resolve({ name, help, type, values, aggregator: 'sum' }) };
    set.registerMetric(metric as unknown as Metric);
  }
  return set.metrics();
}

/** What one process says of itself. */
interface LabelledMetrics {
  readonly labels: Readonly<Record<string, string>>;
  readonly metrics: readonly MetricFamily[];
}

function linesOf(name: string, series: MetricSeries, bounds: readonly number[]): Line[] {
  const { labels, value, sum, count, buckets = [] } = series;
  if (sum === undefined || count === undefined) return [{ labels, value: value ?? 0, metricName: name }];
  const infinity = { labels: { ...labels, le: '+Inf' }, value: count, metricName: `${name}_bucket` };
  return [
    ...buckets.map((below, at) => ({
      labels: { ...labels, le: bounds[at]! },
      value: below,
      metricName: `${name}_bucket`,
    })),
    ...(buckets.length === 0 ? [] : [infinity]),
    { labels, value: sum, metricName: `${name}_sum` },
    { labels, value: count, metricName: `${name}_count` },
  ];
}
