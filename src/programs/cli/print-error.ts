// How an error that ends a command is shown.
import { CommanderError } from 'commander';
import { WeftlineError } from '../../core/errors.ts';
import { printTo } from '../../core/print.ts';
import { exitCodes } from './exit-codes.ts';
import { UsageError } from './usage.ts';

/** Prints what went wrong, unless commander has, and returns the exit code. */
export function printError(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? exitCodes.success.code : exitCodes.usage.code;
  printTo(process.stderr, `weftline: ${textOf(error)}\n`);
  return error instanceof UsageError ? exitCodes.usage.code : exitCodes.failure.code;
}

/** With its stack only where it may be a defect: what the system refuses (a full disk, a missing file) is none. */
function textOf(error: unknown): string {
  if (error instanceof WeftlineError) return `${error.code}: ${error.message}`;
  if (!(error instanceof Error)) return String(error);
  return 'syscall' in error ? error.message : (error.stack ?? error.message);
}
