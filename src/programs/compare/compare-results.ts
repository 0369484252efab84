// Two result documents of the same command side by side: for each figure how many times as good the second is.
import { WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import { quantile } from '../../core/quantile.ts';
import { latencyQuantiles } from '../bench/harness.ts';

export type ComparedFigure = ReturnType<typeof compareFigure>;

export type Comparison = ReturnType<typeof compareResults>;

type Json = Readonly<Record<string, unknown>>;

/** Fails with WL_FILE_FORMAT if the two are of different commands, or have no figure in common. */
export function compareResults(first: Json, second: Json) {
  const [command, other] = [first['schema'], second['schema']];
  if (command !== other) {
    throw unlike(`the first is ${schemaOf(command)} and the second ${schemaOf(other)}: compare results of one command`);
  }
  const before = figuresOf(first);
  const after = new Map(figuresOf(second).map((figure) => [figure.name, figure]));
  const names = new Set(before.map(({ name }) => name));
  const figures = before.flatMap((figure) => {
    const same = after.get(figure.name);
    return same === undefined || figure.value <= 0 || same.value <= 0 ? [] : [compareFigure(figure, same)];
  });
  if (figures.length === 0) throw unlike('they have no time and no rate in common: compare what --json wrote');
  const own = figures.filter(({ isReference }) => !isReference);
  const references = figures.filter(({ isReference }) => isReference);
  return {
    schema: 'weftline.compare/1' as const,
    command: typeof command === 'string' ? command : undefined,
    figures: figures as readonly ComparedFigure[],
    /** Geometric means of the ratios: of weftline, and of what was measured beside it. */
    mean: geometricMean(own),
    referenceMean: geometricMean(references),
    /** Names of figures that only one of the two has. */
    onlyFirst: before.map(({ name }) => name).filter((name) => !after.has(name)),
    onlySecond: [...after.keys()].filter((name) => !names.has(name)),
    /** What differs in workload and machine: "workload tokens: 128, 4096". */
    differences: ['workload', 'machine', 'gpuMachine'].flatMap((part) =>
      differencesOf(part, first[part], second[part]),
    ),
  };
}

function compareFigure(first: ResultFigure, second: ResultFigure) {
  const { name, unit, isReference, isMoreBetter } = first;
  const [better, worse] = isMoreBetter ? [second, first] : [first, second];
  return {
    name,
    unit,
    isReference,
    first: first.value,
    second: second.value,
    /** How many times as fast or as much the second is: above 1 it is better, whatever the unit. */
    ratio: better.value / worse.value,
    /** What quartiles of both allow; the ratio itself where a document has none. */
    low: better.low / Math.max(worse.high, Number.MIN_VALUE),
    high: worse.low <= 0 ? Number.POSITIVE_INFINITY : better.high / worse.low,
    hasSpread: first.hasSpread && second.hasSpread,
  };
}

function geometricMean(figures: readonly ComparedFigure[]): number | undefined {
  if (figures.length === 0) return undefined;
  return Math.exp(figures.reduce((sum, { ratio }) => sum + Math.log(ratio), 0) / figures.length);
}

function differencesOf(path: string, first: unknown, second: unknown): string[] {
  if (JSON.stringify(first) === JSON.stringify(second)) return [];
  if (isRecord(first) && isRecord(second)) {
    const fields = new Set([...Object.keys(first), ...Object.keys(second)]);
    return [...fields].flatMap((field) => differencesOf(`${path} ${field}`, first[field], second[field]));
  }
  return [`${path}: ${shown(first)}, ${shown(second)}`];
}

function shown(value: unknown): string {
  return value === undefined ? 'missing' : typeof value === 'string' ? value : JSON.stringify(value);
}

function isRecord(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function schemaOf(schema: unknown): string {
  return typeof schema === 'string' ? quote(schema) : 'without a schema';
}

function unlike(why: string): WeftlineError {
  return new WeftlineError('WL_FILE_FORMAT', `Cannot compare: ${why}`);
}

// The figures of a result document of any command: what is a time or a rate in it, with its spread and a name of its own.

interface ResultFigure {
  /** "dispatch, 8 SMs: microseconds" */
  readonly name: string;
  readonly unit: string;
  /** True of rates and ratios; less is better of times. */
  readonly isMoreBetter: boolean;
  /** True of what was measured beside weftline: copies, peers, ceilings. */
  readonly isReference: boolean;
  /** Median, and quartiles where the document has them. */
  readonly value: number;
  readonly low: number;
  readonly high: number;
  readonly hasSpread: boolean;
}
type Meaning = Pick<ResultFigure, 'unit' | 'isMoreBetter'>;

/** Meanings by the end of a field's name. */
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
