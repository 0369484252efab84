// What a rank says when it is asked what it waits for, or for its metrics, and how the asker reads it.
import { type Meters, type MetricName, metricTable, readMeters } from '../../core/metric-table.ts';
import { printable } from '../../core/quote.ts';
import { answeredNames, type ObjectState, objectStates, type PresentWait, presentWaits } from '../../core/waits.ts';
import type { LastCall } from '../../metrics/metrics-sink.ts';
import { type MetricFamily, type MetricSeries, type MetricsSnapshot, readMetrics } from '../../metrics/read-metrics.ts';
import { identityLabels } from '../../metrics/start-metrics.ts';

/** A rank's answer. Only a rank whose event loop runs gives one. */
export interface RankAnswer {
  readonly waits: readonly PresentWait[];
  readonly objects: readonly ObjectState[];
  /** Names of its agents, which waits of others give as peers. */
  readonly names: readonly string[];
  readonly meters: Meters;
  readonly rssBytes: number;
}

/** Of each list, so that an answer stays small. */
const MAX_ENTRIES = 64;
const MAX_TEXT = 300;

/** Never fails. */
export async function rankAnswer(): Promise<RankAnswer> {
  const waits = presentWaits().slice(0, MAX_ENTRIES);
  const objects = objectStates().slice(-MAX_ENTRIES);
  const names = answeredNames().slice(0, MAX_ENTRIES);
  return { waits, objects, names, meters: await readMeters(), rssBytes: process.memoryUsage.rss() };
}

/** Reads an answer that came over a wire: what is missing or of another type counts as empty, texts are printable. */
export function readRankAnswer(value: unknown): RankAnswer {
  const answer = fields(value);
  const meters = fields(answer['meters']);
  return {
    waits: list(answer['waits']).map(readWait),
    objects: list(answer['objects']).map(readObject),
    names: texts(answer['names']),
    meters: {
      sentBytes: number(meters['sentBytes']),
      receivedBytes: number(meters['receivedBytes']),
      sentPackets: number(meters['sentPackets']),
      retransmittedPackets: number(meters['retransmittedPackets']),
      windowBytes: number(meters['windowBytes']),
    },
    rssBytes: number(answer['rssBytes']),
  };
}

/** Of a rank, or of the store, which knows what ranks wait for there. */
export function readWait(value: unknown): PresentWait {
  const { operation, ageMs, ranks, peers, expected, seen, leftMs } = fields(value);
  return {
    operation: text(operation),
    ageMs: number(ageMs),
    ...(ranks === undefined ? {} : { ranks: numbers(ranks) }),
    ...(peers === undefined ? {} : { peers: texts(peers) }),
    ...(expected === undefined ? {} : { expected: number(expected) }),
    ...(seen === undefined ? {} : { seen: number(seen) }),
    ...(leftMs === undefined ? {} : { leftMs: number(leftMs) }),
  };
}

function readObject(value: unknown): ObjectState {
  const { object, ranks, calls, last, isRunning } = fields(value);
  return {
    object: text(object),
    ranks: numbers(ranks),
    calls: number(calls),
    last: last === undefined ? undefined : text(last),
    isRunning: isRunning === true,
  };
}

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
    labels: readLabels(answer['labels']),
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
    labels: readLabels(labels),
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

function readLabels(value: unknown): Record<string, string> {
  return Object.fromEntries(Object.entries(fields(value)).map(([name, one]) => [text(name), text(one)]));
}

export function fields(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function text(value: unknown): string {
  return typeof value === 'string' ? printable(value, MAX_TEXT) : '';
}

export function number(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function numbers(value: unknown): readonly number[] {
  return list(value).map(number);
}

function texts(value: unknown): readonly string[] {
  return list(value).map(text);
}
