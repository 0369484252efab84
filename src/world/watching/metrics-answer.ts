// What a rank says when it is asked for its metrics, and how the asker reads it.
import { type MetricName, metricTable } from '../../core/metric-table.ts';
import type { LastCall } from '../../metrics/metrics-sink.ts';
import { type MetricFamily, type MetricSeries, type MetricsSnapshot, readMetrics } from '../../metrics/read-metrics.ts';
import { identityLabels } from '../../metrics/start-metrics.ts';
import { fields, list, number, text } from './rank-answer.ts';

/** A rank's metrics; `labels` say whose they are. */
export interface MetricsAnswer extends MetricsSnapshot {
  readonly labels: Readonly<Record<string, string>>;
}

/** Never fails. */
export async function metricsAnswer(): Promise<MetricsAnswer> {
  return { labels: identityLabels(), ...(await readMetrics()) };
}

/** Reads an answer that came over a wire: metrics that this version does not know are left out, texts are printable. */
export function readMetricsAnswer(value: unknown): MetricsAnswer {
  const answer = fields(value);
  return {
    labels: texts(answer['labels']),
    isCollecting: answer['isCollecting'] === true,
    metrics: list(answer['metrics']).flatMap((metric) => readFamily(fields(metric))),
    lastCalls: list(answer['lastCalls']).map((call) => readCall(fields(call))),
  };
}

function readFamily({ name, bounds, series }: Readonly<Record<string, unknown>>): MetricFamily[] {
  if (typeof name !== 'string' || !Object.hasOwn(metricTable, name)) return [];
  const known = name as MetricName;
  const { kind, help } = metricTable[known];
  const family = { name: known, kind, help, series: list(series).map((one) => readSeries(fields(one))) };
  return [bounds === undefined ? family : { ...family, bounds: list(bounds).map(number) }];
}

function readSeries({ labels, value, sum, count, buckets }: Readonly<Record<string, unknown>>): MetricSeries {
  return {
    labels: texts(labels),
    ...(value === undefined ? {} : { value: number(value) }),
    ...(sum === undefined ? {} : { sum: number(sum), count: number(count) }),
    ...(buckets === undefined ? {} : { buckets: list(buckets).map(number) }),
  };
}

function readCall(call: Readonly<Record<string, unknown>>): LastCall {
  return {
    object: text(call['object']),
    call: text(call['call']),
    label: text(call['label']),
    ranks: number(call['ranks']),
    number: number(call['number']),
    seconds: number(call['seconds']),
    bytes: number(call['bytes']),
    endedAt: number(call['endedAt']),
  };
}

function texts(value: unknown): Record<string, string> {
  return Object.fromEntries(Object.entries(fields(value)).map(([name, one]) => [text(name), text(one)]));
}
