// The exit codes of the weftline command: one table, for the code and for its documentation, and which error ends it with which.
import { type Command, CommanderError, Option } from 'commander';
import { WeftlineError } from '../../core/errors.ts';
import { printTo } from '../../core/print.ts';
import { settingsTable } from '../../settings/settings.ts';

export const exitCodes = {
  success: { code: 0, meaning: 'The command did what it was asked to do.' },
  failure: {
    code: 1,
    meaning:
      'The command failed, its result differs from what was expected, or weftline why found a rank that is silent or overdue; of a failure, the last line of stderr is "weftline: WL_CODE: reason".',
  },
  usage: {
    code: 2,
    meaning:
      'The command line is wrong (unknown option, missing or invalid value, values that do not fit together); nothing was started.',
  },
  rank: { code: '1 to 255', meaning: 'weftline run: the exit code of the first rank that failed.' },
  signal: {
    code: '128 + n',
    meaning:
      'weftline run: signal n stopped the job, such as 130 for Ctrl-C (SIGINT), or ended the first rank that failed, such as 137 for SIGKILL.',
  },
} as const;

// How an error that ends a command is shown.

/** Prints what went wrong, unless commander has, and returns the exit code. */
export function printError(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? exitCodes.success.code : exitCodes.usage.code;
  printTo(process.stderr, `weftline: ${textOf(error)}\n`);
  return error instanceof UsageError ? exitCodes.usage.code : exitCodes.failure.code;
}

/** The error's text, with its stack only where it may be a defect: what the system refuses (a full disk, a missing file) is none. */
function textOf(error: unknown): string {
  if (error instanceof WeftlineError) return `${error.code}: ${error.message}`;
  if (!(error instanceof Error)) return String(error);
  return 'syscall' in error ? error.message : (error.stack ?? error.message);
}

// Mistakes of the command line that a command finds in what its flags say together: exit code 2, in the words of the flags.

/** What the user typed cannot work; nothing was started. */
class UsageError extends WeftlineError {}

/**
 * Runs what checks the command line. Where it fails with WL_INVALID_ARGUMENT, or with WL_CONFIG for a setting whose flag was
 * given, a UsageError is thrown in its place, which names the flag. Other errors stay as they are.
 */
export function checkUsage<T>(command: Command, check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw asUsageError(command, error);
  }
}

/** The same for what checks by reading files. */
export async function checkUsageOf<T>(command: Command, check: Promise<T>): Promise<T> {
  try {
    return await check;
  } catch (error) {
    throw asUsageError(command, error);
  }
}

function asUsageError(command: Command, thrown: unknown): unknown {
  if (!(thrown instanceof WeftlineError)) return thrown;
  const { code, message, details } = thrown;
  if (code === 'WL_INVALID_ARGUMENT') {
    return new UsageError(code, withFlag(message, flagOfArgument(command, details['argument'])), { details });
  }
  const flag = code === 'WL_CONFIG' ? flagOfSetting(command, details['setting']) : undefined;
  return flag === undefined ? thrown : new UsageError(code, withFlag(message, flag), { details });
}

/** "Invalid topk: expected …" becomes "Invalid --topk: expected …". */
function withFlag(message: string, flag: string | undefined): string {
  return flag === undefined ? message : message.replace(/^Invalid [^:]*:/, `Invalid ${flag}:`);
}

function flagOfArgument(command: Command, argument: unknown): string | undefined {
  const flag = `--${String(argument)}`;
  return command.options.find(({ long }) => long === flag)?.long;
}

/** The flag of a setting that is known by its name or its variable, if the command line has set it. */
function flagOfSetting(command: Command, setting: unknown): string | undefined {
  const found = Object.entries(settingsTable).find(([name, { env }]) => name === setting || env === setting);
  if (found === undefined) return undefined;
  const option = new Option(found[1].flag);
  return command.getOptionValueSource(option.attributeName()) === 'cli' ? option.long : undefined;
}
