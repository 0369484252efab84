// Options of a call by name: a name that the call does not know is refused, because a mistyped one would be ignored without a word.
import { invalidArgument, WeftlineError } from './errors.ts';
import { quote } from './quote.ts';

/** Every option of T, once. The compiler refuses a list that lacks one or has one too many. */
export type OptionNames<T> = { readonly [Name in keyof T]-?: true };

/** A name differs from the one that was meant by at most so many letters, and by fewer if it is short. */
const MAX_SLIPS = 2;
const LETTERS_PER_SLIP = 3;
/** Maximum names in a message. */
const MAX_LISTED = 16;

/**
 * Fails with WL_INVALID_ARGUMENT if `options` is not an object or has a key that is not among `known`. `what` names the
 * argument in the error: "options of Agent.create".
 */
export function checkOptions<T extends object>(
  options: T,
  known: { readonly [Name in keyof T]-?: unknown },
  what: string,
): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw invalidArgument(what, options, 'an object');
  }
  for (const key of Object.keys(options))
    if (!Object.hasOwn(known, key)) throw unknownOption(key, known, what, options);
}

/** Fails with WL_INVALID_ARGUMENT for what is neither true, false nor absent. */
export function requireFlag(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== 'boolean') throw invalidArgument(name, value, 'true or false');
}

function unknownOption(key: string, known: object, what: string, options: object): WeftlineError {
  const names = Object.keys(known);
  const meant = names.find((name) => isAlmost(key, name));
  const owner = options.constructor?.name ?? 'Object';
  const misplaced = owner === 'Object' ? '' : ` of a ${owner}: give one object with these names`;
  const hint = meant === undefined ? misplaced : ` (did you mean ${meant}?)`;
  const expected = names.length > MAX_LISTED ? `one of its ${names.length} names` : `only ${names.join(', ')}`;
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid ${what}: expected ${expected}, got ${quote(key)}${hint}`, {
    details: { argument: what, value: key, expected: names, ...(meant === undefined ? {} : { meant }) },
  });
}

/** True if few letters were added, left out or changed, upper and lower case aside. */
function isAlmost(got: string, name: string): boolean {
  const [from, to] = [got.toLowerCase(), name.toLowerCase()];
  const maxSlips = Math.min(MAX_SLIPS, Math.floor(to.length / LETTERS_PER_SLIP));
  if (Math.abs(from.length - to.length) > maxSlips) return false;
  let before = Array.from({ length: to.length + 1 }, (_, at) => at);
  for (let row = 0; row < from.length; row++) {
    const slips = [row + 1];
    for (let at = 0; at < to.length; at++) {
      const change = before[at]! + (to[at] === from[row] ? 0 : 1);
      slips.push(Math.min(change, before[at + 1]! + 1, slips[at]! + 1));
    }
    before = slips;
  }
  return before[to.length]! <= maxSlips;
}

// What counts, sizes and ranks are.

/** True for a whole number that is exact, and at least `least`. */
export function isWhole(value: unknown, least: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= least;
}

// Rules for the values of options, which name the options at the same time.

/** What a value must be: a test, and how an error says it. */
export interface ValueRule {
  readonly allows: (value: unknown) => boolean;
  readonly expected: string;
}

/** A rule for each option, once; true for an option that is checked elsewhere. */
export type OptionRules<T> = { readonly [Name in keyof T]-?: ValueRule | true };

export function wholeFrom(least: number, most = Infinity): ValueRule {
  const expected = most === Infinity ? `a whole number of at least ${least}` : `${least} to ${most}`;
  return { allows: (value) => isWhole(value, least) && value <= most, expected };
}

export function multipleOf(step: number): ValueRule {
  return { allows: (value) => isWhole(value, step) && value % step === 0, expected: `a positive multiple of ${step}` };
}

export function oneOf(...words: readonly string[]): ValueRule {
  const expected = words.map((word) => `"${word}"`).join(' or ');
  return { allows: (value) => (words as readonly unknown[]).includes(value), expected };
}

export const flag: ValueRule = { allows: (value) => typeof value === 'boolean', expected: 'true or false' };

/** The same for a value that may be absent. */
export function optional({ allows, expected }: ValueRule): ValueRule {
  return { allows: (value) => value === undefined || allows(value), expected };
}

/** Fails with WL_INVALID_ARGUMENT as checkOptions() does, or for a value that its rule does not allow. */
export function checkRules<T extends object>(options: T, rules: OptionRules<T>, what: string): void {
  checkOptions(options, rules, what);
  for (const [name, rule] of Object.entries<ValueRule | true>(rules)) {
    const value: unknown = options[name as keyof T];
    if (rule !== true && !rule.allows(value)) throw invalidArgument(name, value, rule.expected);
  }
}
