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

/** Most entries of each list, so that an answer stays small. */
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
  return record<RankAnswer>(value, {
    waits: listOf(readWait),
    objects: listOf(readObject),
    names: listOf(text),
    meters: (meters) =>
      record<Meters>(meters, {
        sentBytes: number,
        receivedBytes: number,
        sentPackets: number,
        retransmittedPackets: number,
        windowBytes: number,
      }),
    rssBytes: number,
  });
}

/** A wait of a rank, or of the store, which knows what ranks wait for there. */
export function readWait(value: unknown): PresentWait {
  return record<PresentWait>(value, {
    operation: text,
    ageMs: number,
    ranks: optional(listOf(number)),
    peers: optional(listOf(text)),
    expected: optional(number),
    seen: optional(number),
    leftMs: optional(number),
  });
}

function readObject(value: unknown): ObjectState {
  const facts = { object: text, ranks: listOf(number), calls: number, isRunning: isTrue };
  const { last } = fields(value);
  return { ...record<Omit<ObjectState, 'last'>>(value, facts), last: last === undefined ? undefined : text(last) };
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
  return record<MetricsAnswer>(value, {
    labels: readLabels,
    isCollecting: isTrue,
    metrics: (metrics) => list(metrics).flatMap(readFamily),
    lastCalls: listOf(readCall),
  });
}

function readFamily(value: unknown): MetricFamily[] {
  const { name, bounds, series } = fields(value);
  if (typeof name !== 'string' || !Object.hasOwn(metricTable, name)) return [];
  const known = name as MetricName;
  const { kind, help } = metricTable[known];
  const family = { name: known, kind, help, series: list(series).map(readSeries) };
  return [bounds === undefined ? family : { ...family, bounds: list(bounds).map(number) }];
}

function readSeries(value: unknown): MetricSeries {
  return record<MetricSeries>(value, {
    labels: readLabels,
    value: optional(number),
    sum: optional(number),
    count: optional(number),
    buckets: optional(listOf(number)),
  });
}

function readCall(value: unknown): LastCall {
  return record<LastCall>(value, {
    object: text,
    call: text,
    label: text,
    ranks: number,
    number,
    seconds: number,
    bytes: number,
    endedAt: number,
  });
}

function readLabels(value: unknown): Record<string, string> {
  return Object.fromEntries(Object.entries(fields(value)).map(([name, one]) => [text(name), text(one)]));
}

/** How to read each field of what came over a wire; a reader returns undefined for an optional field that is missing. */
type Readers<T> = { readonly [Name in keyof T]-?: (field: unknown) => T[Name] | undefined };

/** The fields that the readers name, without those that are missing and optional. */
export function record<T>(value: unknown, readers: Readers<T>): T {
  const given = fields(value);
  const read = Object.entries<(field: unknown) => unknown>(readers).map(
    ([name, of]) => [name, of(given[name])] as const,
  );
  return Object.fromEntries(read.filter(([, field]) => field !== undefined)) as T;
}

export function optional<T>(read: (field: unknown) => T): (field: unknown) => T | undefined {
  return (field) => (field === undefined ? undefined : read(field));
}

function listOf<T>(read: (element: unknown) => T): (field: unknown) => readonly T[] {
  return (field) => list(field).map((element) => read(element));
}

function isTrue(value: unknown): boolean {
  return value === true;
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
