// The files that the processes of a job leave beside the trace that was asked for, each with the rings of one.
import { existsSync, readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

const PART = '.part';

/** For a trace that goes to `file`. `more` tells several of one process number apart. */
export function partPath(file: string, host: string, pid: number, more?: string): string {
  return `${file}.${host}.${pid}${more === undefined ? '' : `.${more}`}${PART}`;
}

/** Those that are there, in order of their names. */
export function partsOf(file: string): string[] {
  const folder = dirname(file);
  if (!existsSync(folder)) return [];
  const begin = `${basename(file)}.`;
  const names = readdirSync(folder).filter((name) => name.startsWith(begin) && name.endsWith(PART));
  return names.toSorted().map((name) => join(folder, name));
}
