// What commands that look at running jobs share: the argument that names a job, and how long ranks may take.
import { type Command, Option } from 'commander';
import { ANSWER_MS } from '../../world/watching/explain-signal.ts';
import { asWeftlineError } from '../../core/errors.ts';
import { integerArgument } from './argument-values.ts';

export interface WatchFlags {
  readonly wait: number;
  readonly json?: boolean;
}

/** Runs `look`; a job that is not there, or is not this user's, is a wrong command line. */
export async function orUsage<T>(command: Command, look: () => T | Promise<T>): Promise<T> {
  try {
    return await look();
  } catch (error) {
    const { code, message } = asWeftlineError(error);
    if (code !== 'WL_INVALID_ARGUMENT' && code !== 'WL_UNAUTHORIZED') throw error;
    return command.error(`error: ${message}`);
  }
}

const MAX_WAIT_MS = 60_000;

export function addJobArgument(command: Command): Command {
  return command.argument(
    '[job]',
    'the begin of its id, or the process id of its launcher or of a rank; all of this user by default',
  );
}

export function waitOption(): Option {
  return new Option('--wait <ms>', 'how long a rank that is not stopped may take to answer')
    .argParser(integerArgument(1, MAX_WAIT_MS))
    .default(ANSWER_MS);
}

export function addWatchOptions(command: Command): Command {
  return addJobArgument(command).addOption(waitOption()).option('--json', 'print JSON to stdout');
}
