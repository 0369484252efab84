// The figures of a result document of any command: what is a time or a rate in it, with its spread and a name of its own.
import { quantile } from '../../core/quantile.ts';
import { latencyQuantiles } from '../bench/transport/transport-phases.ts';

export interface ResultFigure {
  /** "dispatch, 8 SMs: microseconds" */
  readonly name: string;
  readonly unit: string;
  /** Of rates and ratios; of times less is better. */
  readonly isMoreBetter: boolean;
  /** Of what was measured beside weftline: copies, peers, ceilings. */
  readonly isReference: boolean;
  /** Median, and quartiles where the document has them. */
  readonly value: number;
  readonly low: number;
  readonly high: number;
  readonly hasSpread: boolean;
}

type Json = Readonly<Record<string, unknown>>;
type Meaning = Pick<ResultFigure, 'unit' | 'isMoreBetter'>;

/** By the end of a field's name. */
const meanings: readonly (readonly [RegExp, Meaning])[] = [
  [/(?:^|\.)(?:p50|p99)$/, { unit: 'µs', isMoreBetter: false }],
  [/(?:[mM]icroseconds|microsecondsPerChunk|Us|smoothedRtt|roundTrip)$/, { unit: 'µs', isMoreBetter: false }],
  [/(?:Milliseconds|Ms|\.ms)$/, { unit: 'ms', isMoreBetter: false }],
  [/SecondsPerGB$/, { unit: 's/GB', isMoreBetter: false }],
  [
    /(?:GBps|GBpsPerRank|[gG]igabytesPerSecond|algbw|busbw|bitmap\.(?:bitmap|read))$/,
    { unit: 'GB/s', isMoreBetter: true },
  ],
  [/(?:[gG]bps)$/, { unit: 'Gbps', isMoreBetter: true }],
  [/(?:(?:^|\.)ratio\w*|timesCopies|geometricMean|fairness)$/, { unit: 'ratio', isMoreBetter: true }],
];

/** What says nothing of speed, or repeats what other fields say. */
const skipped = new Set([
  'machine',
  'gpuMachine',
  'settings',
  'loadAverage',
  'placement',
  'workload',
  'method',
  'memory',
  'samples',
  'statistics',
  'pathsOverTime',
  'verdicts',
  'load',
  'plan',
  'theory',
  'block',
  'bounds',
  'idle',
  'waits',
  'outage',
  'copyShapes',
  'beyondCached',
  'beyondCopyMicroseconds',
  'beyondCopyingMicroseconds',
  'startSkewMicroseconds',
  'microsecondsOfRanks',
  'wireGBps',
  'logicalGBpsPerRank',
  'wireGigabytesPerSecond',
  'totalUs',
  'mostUs',
  'lateUs',
  'documentMicroseconds',
  'documentMicrosecondsPerChunk',
  'slowestRatio',
]);
const references =
  /(?:peerMicroseconds|bareGbps|tcpGbps|bareRoundTrip|ceilings\.ceilings|denseMicroseconds|bitmap\.read)$/;
const referenceNames = /^(?:copy|bare|carrier)\b|ceiling/i;
/** Times of one thing by quantile, in the order of latencyQuantiles. */
const quantileFields =
  /(?:requestMicroseconds|pingMicroseconds|latency\.transport|latency\.bareRoundTrip|ranks\.times)$/;
/** What tells the elements of a list apart, with the word behind a number. */
const identities: readonly (readonly [field: string, word: string])[] = [
  ['name', ''],
  ['phase', ''],
  ['kind', ''],
  ['dtype', ''],
  ['ceiling', ''],
  ['from', ''],
  ['sizes', ''],
  ['rank', 'rank'],
  ['bytes', 'B'],
  ['numSms', 'SMs'],
  ['fragmentBytes', 'B'],
  ['blockBytes', 'B'],
  ['batch', 'blocks'],
  ['density', 'density'],
];

export function figuresOf(document: unknown): ResultFigure[] {
  const found: ResultFigure[] = [];
  walk(document, { fields: '', labels: [], isReference: false }, found);
  const seen = new Map<string, number>();
  return found.map((figure) => {
    const count = (seen.get(figure.name) ?? 0) + 1;
    seen.set(figure.name, count);
    return count === 1 ? figure : { ...figure, name: `${figure.name} #${count}` };
  });
}

interface Place {
  /** Names of the fields on the way, with points between them. */
  readonly fields: string;
  readonly labels: readonly string[];
  readonly isReference: boolean;
}

function walk(value: unknown, place: Place, found: ResultFigure[]): void {
  if (typeof value === 'number') return takeValues([value], place, found);
  if (Array.isArray(value)) {
    if (value.length > 0 && value.every((one) => typeof one === 'number')) return takeList(value, place, found);
    for (const one of value) walkElement(one, place, found);
    return;
  }
  if (typeof value !== 'object' || value === null) return;
  const summary = value as Json;
  const { median, p25, p75 } = summary;
  if (typeof median === 'number' && typeof p25 === 'number' && typeof p75 === 'number') {
    add({ value: median, low: p25, high: p75, hasSpread: true }, place, found);
    return;
  }
  for (const [field, one] of Object.entries(summary)) {
    if (skipped.has(field)) continue;
    const fields = place.fields === '' ? field : `${place.fields}.${field}`;
    const labels = field === 'without' ? [...place.labels, 'without copies'] : place.labels;
    walk(one, { ...place, fields, labels }, found);
  }
}

function walkElement(value: unknown, place: Place, found: ResultFigure[]): void {
  if (typeof value !== 'object' || value === null) return;
  const { name } = value as Json;
  const label = identities
    .flatMap(([field, word]) => {
      const identity = (value as Json)[field];
      if (typeof identity !== 'string' && typeof identity !== 'number') return [];
      // What a call moved, and not what it was made for.
      if (field === 'bytes' && typeof name === 'string') return [];
      return [word === 'rank' || word === 'density' ? `${word} ${identity}` : `${identity} ${word}`.trim()];
    })
    .join(', ');
  const isReference = place.isReference || (typeof name === 'string' && referenceNames.test(name));
  walk(value, { ...place, labels: label === '' ? place.labels : [...place.labels, label], isReference }, found);
}

function takeList(values: readonly number[], place: Place, found: ResultFigure[]): void {
  if (!quantileFields.test(place.fields)) return takeValues(values, place, found);
  for (const [index, name] of latencyQuantiles.entries()) {
    const value = values[index];
    const labels = [...place.labels, name];
    if (value !== undefined)
      add({ value, low: value, high: value, hasSpread: false }, { ...place, labels }, found, 'µs');
  }
}

/** Rounds of the same, or one value. */
function takeValues(values: readonly number[], place: Place, found: ResultFigure[]): void {
  const sorted = values.toSorted((a, b) => a - b);
  const [low, value, high] = [0.25, 0.5, 0.75].map((share) => quantile(sorted, share)) as [number, number, number];
  add({ value, low, high, hasSpread: values.length > 2 }, place, found);
}

type Values = Pick<ResultFigure, 'value' | 'low' | 'high' | 'hasSpread'>;

function add(values: Values, { fields, labels, isReference }: Place, found: ResultFigure[], unit?: string): void {
  const meaning =
    unit === undefined ? meanings.find(([pattern]) => pattern.test(fields))?.[1] : { unit, isMoreBetter: false };
  if (meaning === undefined || !Number.isFinite(values.value)) return;
  const field = fields
    .split('.')
    .slice(labels.length > 0 ? -1 : -2)
    .join(' ');
  const name = labels.length === 0 ? field : `${labels.join(', ')}: ${field}`;
  found.push({ name, ...meaning, isReference: isReference || references.test(fields), ...values });
}
