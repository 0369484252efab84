// What a failed C function says: the error with the call, the name of its errno, and what was being done.
import { WeftlineError } from '../core/errors.ts';
import { loadKoffi } from './library.ts';

/** The error of a call that returned a negative errno. */
export function nativeError(call: string, what: string, result: number): WeftlineError {
  const errno = -result;
  const name = errnoName(errno);
  return new WeftlineError('WL_NATIVE', `${call} failed with ${name}: ${what}`, { details: { call, errno, name } });
}

function errnoName(errno: number): string {
  const names = Object.entries(loadKoffi().os.errno);
  return names.find(([, value]) => value === errno)?.[0] ?? `errno ${errno}`;
}
