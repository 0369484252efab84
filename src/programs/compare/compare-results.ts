// Two result documents of the same command side by side: for each figure how many times as good the second is.
import { WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import { figuresOf, type ResultFigure } from './result-figures.ts';

export interface ComparedFigure {
  readonly name: string;
  readonly unit: string;
  readonly isReference: boolean;
  readonly first: number;
  readonly second: number;
  /** How many times as fast or as much the second is: above 1 it is better, whatever the unit. */
  readonly ratio: number;
  /** What quartiles of both allow; the ratio itself where a document has none. */
  readonly low: number;
  readonly high: number;
  readonly hasSpread: boolean;
}

export interface Comparison {
  readonly schema: 'weftline.compare/1';
  readonly command: string | undefined;
  readonly figures: readonly ComparedFigure[];
  /** Geometric means of the ratios: of weftline, and of what was measured beside it. */
  readonly mean: number | undefined;
  readonly referenceMean: number | undefined;
  /** Names of figures that only one of the two has. */
  readonly onlyFirst: readonly string[];
  readonly onlySecond: readonly string[];
  /** What differs in workload and machine: "workload tokens: 128, 4096". */
  readonly differences: readonly string[];
}

type Json = Readonly<Record<string, unknown>>;

/** Fails with WL_FILE_FORMAT if the two are of different commands, or have no figure in common. */
export function compareResults(first: Json, second: Json): Comparison {
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
    schema: 'weftline.compare/1',
    command: typeof command === 'string' ? command : undefined,
    figures,
    mean: geometricMean(own),
    referenceMean: geometricMean(references),
    onlyFirst: before.map(({ name }) => name).filter((name) => !after.has(name)),
    onlySecond: [...after.keys()].filter((name) => !names.has(name)),
    differences: ['workload', 'machine', 'gpuMachine'].flatMap((part) =>
      differencesOf(part, first[part], second[part]),
    ),
  };
}

function compareFigure(first: ResultFigure, second: ResultFigure): ComparedFigure {
  const { name, unit, isReference, isMoreBetter } = first;
  const [better, worse] = isMoreBetter ? [second, first] : [first, second];
  return {
    name,
    unit,
    isReference,
    first: first.value,
    second: second.value,
    ratio: better.value / worse.value,
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
