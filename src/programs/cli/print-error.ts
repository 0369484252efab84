// How an error that ends a command is shown.
import { CommanderError } from 'commander';
import { WeftlineError } from '../../core/errors.ts';

const USAGE_EXIT_CODE = 2;

/** Prints what went wrong, unless commander has, and returns the exit code. */
export function printError(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : USAGE_EXIT_CODE;
  if (error instanceof WeftlineError) process.stderr.write(`weftline: ${error.code}: ${error.message}\n`);
  else process.stderr.write(`weftline: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  return 1;
}
