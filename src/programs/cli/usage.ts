// Mistakes of the command line that a command finds in what its flags say together: exit code 2, in the words of the flags.
import { type Command, Option } from 'commander';
import { WeftlineError } from '../../core/errors.ts';
import { settingsTable } from '../../settings/settings.ts';

/** What the user typed cannot work; nothing was started. */
export class UsageError extends WeftlineError {}

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

/** Of a setting by its name or its variable, if the command line has set it. */
function flagOfSetting(command: Command, setting: unknown): string | undefined {
  const found = Object.entries(settingsTable).find(([name, { env }]) => name === setting || env === setting);
  if (found === undefined) return undefined;
  const option = new Option(found[1].flag);
  return command.getOptionValueSource(option.attributeName()) === 'cli' ? option.long : undefined;
}
