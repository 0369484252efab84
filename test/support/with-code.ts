// The matcher of errors for assert.throws and assert.rejects.
import assert from 'node:assert/strict';
import { type ErrorCode, WeftlineError } from 'weftline';

/** True for a WeftlineError with this code whose message has all of the texts; anything else fails and shows the error. */
export function withCode(code: ErrorCode, ...texts: readonly (string | RegExp)[]): (error: unknown) => boolean {
  return (error) => {
    assert.ok(
      error instanceof WeftlineError,
      `no WeftlineError: ${error instanceof Error ? error.stack : String(error)}`,
    );
    assert.equal(error.code, code, error.message);
    for (const text of texts) {
      if (typeof text === 'string') assert.ok(error.message.includes(text), `"${text}" is not in: ${error.message}`);
      else assert.match(error.message, text);
    }
    return true;
  };
}
