// Slurm's short form of host names: "node[01-03,7],login" is node01, node02, node03, node7, login.
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';

const MAX_NODES = 65_536;

/** All names of a list, in its order. Fails with WL_CONFIG naming the variable that held it. */
export function expandNodeList(variable: string, list: string): string[] {
  const names = splitOutsideBrackets(list).flatMap((entry) => expandEntry(entry.trim()));
  if (names.length > 0 && names.length <= MAX_NODES && names.every((name) => /^[\w.:-]+$/.test(name))) return names;
  throw new WeftlineError(
    'WL_CONFIG',
    `Invalid environment variable ${variable}: expected a list of hosts such as node[01-04,7], got ${quote(list, 200)}`,
    { details: { variable, value: list } },
  );
}

function splitOutsideBrackets(list: string): string[] {
  return list.split(/,(?![^[]*\])/);
}

/** One entry may hold several brackets: rack[1-2]n[3-4]. An entry that is not well formed stays as it is. */
function expandEntry(entry: string): string[] {
  const match = /^([^[\]]*)\[([^[\]]+)\](.*)$/.exec(entry);
  if (match === null) return [entry];
  const [, head = '', ranges = '', tail = ''] = match;
  const tails = expandEntry(tail);
  const numbers = ranges.split(',').flatMap(expandRange);
  if (numbers.length * tails.length > MAX_NODES) return [entry];
  return numbers.flatMap((number) => tails.map((rest) => `${head}${number}${rest}`));
}

function expandRange(range: string): string[] {
  const match = /^([0-9]{1,9})-([0-9]{1,9})$/.exec(range.trim());
  if (match === null) return [/^[0-9]+$/.test(range.trim()) ? range.trim() : '['];
  const [, first = '', last = ''] = match;
  const count = Number(last) - Number(first) + 1;
  if (count < 1 || count > MAX_NODES) return ['['];
  return Array.from({ length: count }, (_, step) => String(Number(first) + step).padStart(first.length, '0'));
}
