// Options of commands with the types of what they parse to, and their values, checked where they are read.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { formatBytes } from '../../core/byte-size.ts';

type Parse<T> = (text: string) => T;

declare const parsed: unique symbol;

/** An option by its flags, as '--fan-in <n>', and the type of its value. */
type TypedOption<Flags extends string, Value> = Option & {
  readonly flags: Flags;
  readonly [parsed]?: () => Value;
};

type CamelCase<Text extends string> = Text extends `${infer First}-${infer Rest}`
  ? `${First}${Capitalize<CamelCase<Rest>>}`
  : Text;
type NameOf<Flags extends string> = Flags extends `${string}--no-${infer Name}`
  ? CamelCase<Name>
  : Flags extends `${string}--${infer Name} ${string}`
    ? CamelCase<Name>
    : Flags extends `${string}--${infer Name}`
      ? CamelCase<Name>
      : never;
type ValueOf<One> =
  One extends TypedOption<infer Flags, infer Value>
    ? undefined extends Value
      ? (have: { readonly [Name in NameOf<Flags>]?: Exclude<Value, undefined> }) => void
      : (have: { readonly [Name in NameOf<Flags>]: Value }) => void
    : never;

/** What the options of a list parse to, by their names. */
export type FlagsOf<Options extends readonly Option[]> =
  ValueOf<Options[number]> extends (have: infer Flags) => void ? Flags : never;

/** A switch, or an option with any text; `--no-name` is true by default. */
export function option<const Flags extends string>(
  flags: Flags,
  sentence: string,
): TypedOption<
  Flags,
  Flags extends `--no-${string}` ? boolean : (Flags extends `${string}<${string}` ? string : boolean) | undefined
>;
/** One of some words, or what a parser makes of the text; undefined by default. */
export function option<const Flags extends string, const Value>(
  flags: Flags,
  sentence: string,
  value: Parse<Value> | readonly Value[],
): TypedOption<Flags, Value | undefined>;
/** The same with a default; a list is shown as a user would type it. */
export function option<const Flags extends string, const Value>(
  flags: Flags,
  sentence: string,
  value: Parse<Value> | readonly Value[],
  usual: NoInfer<Value>,
): TypedOption<Flags, Value>;
export function option(
  flags: string,
  sentence: string,
  value?: Parse<unknown> | readonly string[],
  usual?: unknown,
): Option {
  const made = new Option(flags, sentence);
  if (typeof value === 'function') made.argParser(value);
  else if (value !== undefined) made.choices(value);
  return usual === undefined ? made : made.default(usual, Array.isArray(usual) ? usual.join(',') : undefined);
}

export function addOptions(command: Command, options: readonly Option[]): Command {
  for (const one of options) command.addOption(one);
  return command;
}

/** Sizes count in steps of 1024 (64K is 65536 bytes), everything else in steps of 1000 (2M is 2000000). */
const sizeFactors: Readonly<Record<string, number>> = { '': 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3 };
const countFactors: Readonly<Record<string, number>> = { '': 1, k: 1e3, m: 1e6, g: 1e9 };

/** A parser for commander of whole numbers from `min` to `max`, written as 1000000, 1e6 or 1M. */
export function integerArgument(min: number, max: number): Parse<number> {
  return wholeNumber({ pattern: /^(\d+(?:\.\d+)?(?:e\d+)?)([kmg]?)$/i, factors: countFactors, min, max }, () => {
    return `an integer from ${min} to ${max}, such as 1000, 1e3 or 1K`;
  });
}

/** A parser of sizes in bytes from `min` to `max`, or 0 where that has a meaning of its own, written as 65536, 64K, 64KiB or 1e6. */
export function byteArgument(
  min: number,
  max: number,
  { orZero = false }: { readonly orZero?: boolean } = {},
): Parse<number> {
  const pattern = /^(\d+(?:\.\d+)?(?:e\d+)?)([kmg]?)(?:i?b)?$/i;
  const numbers = { pattern, factors: sizeFactors, min, max, orZero };
  return wholeNumber(numbers, () => {
    const examples = max < 1e6 ? '4096, 4K (4096 bytes) or 4e3' : '65536, 64K (65536 bytes) or 1e6';
    const range = `${min === 1 ? '1 byte' : `${min} bytes`} to ${exactBytes(max)}`;
    return `${orZero ? '0 or ' : ''}a size from ${range}, such as ${examples}`;
  });
}

/** A parser of decimals from `min` to `max`, written as 0.001, .001 or 1e-3. */
export function decimalArgument(min: number, max: number): Parse<number> {
  return (text) => {
    const value = Number(text);
    if (/^(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`Expected a number from ${min} to ${max}.`);
  };
}

/** A parser of values with commas between them. */
export function listArgument<T>(one: Parse<T>): Parse<readonly T[]> {
  return (text) => text.split(',').map((word) => one(word.trim()));
}

/** A parser of a sweep: one value, or its first and its last with a comma between them. */
export function sweepArgument(one: Parse<number>): Parse<readonly number[]> {
  const list = listArgument(one);
  return (text) => {
    const [first, last = first, ...others] = list(text) as readonly [number, ...number[]];
    if (others.length === 0 && last >= first) return [first, last];
    throw new InvalidArgumentError('Expected one value, or the first and the last, which is not smaller, as 4,64.');
  };
}

/** A parser of switches that may be written as --name, --name=true or --name=false. */
export function switchArgument(text: string): boolean {
  if (['true', '1', 'yes'].includes(text.toLowerCase())) return true;
  if (['false', '0', 'no'].includes(text.toLowerCase())) return false;
  throw new InvalidArgumentError('Expected true or false.');
}

/** A limit that was rounded could be refused itself. */
function exactBytes(bytes: number): string {
  const rounded = formatBytes(bytes);
  const [, digits = '', letter = ''] = /^(\d+) ([KMG])iB$/.exec(rounded) ?? [];
  const isExact = Number(digits) * (sizeFactors[letter.toLowerCase()] ?? Number.NaN) === bytes;
  return isExact ? rounded : `${bytes} bytes${bytes < 1024 ? '' : ` (${rounded})`}`;
}

interface WholeNumbers {
  /** Digits, then the letter of a factor. */
  readonly pattern: RegExp;
  readonly factors: Readonly<Record<string, number>>;
  readonly min: number;
  readonly max: number;
  readonly orZero?: boolean;
}

function wholeNumber(
  { pattern, factors, min, max, orZero = false }: WholeNumbers,
  expected: () => string,
): Parse<number> {
  return (text) => {
    const [, digits = '', letter = ''] = pattern.exec(text) ?? [];
    const value = digits === '' ? Number.NaN : Number(digits) * (factors[letter.toLowerCase()] ?? Number.NaN);
    if (Number.isSafeInteger(value) && value >= min && value <= max) return value;
    if (orZero && value === 0) return value;
    throw new InvalidArgumentError(`Expected ${expected()}.`);
  };
}
