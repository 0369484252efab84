// The one error type of the package: a stable code, the failed action, the offending value, and what to do.

import { printable, quote } from './quote.ts';

/** Every code a WeftlineError can carry, with the situation it stands for. Codes never change meaning. */
export const errorCodes = {
  WL_INVALID_ARGUMENT: 'an argument has the wrong type, shape, dtype or value; nothing was changed',
  WL_CONFIG: 'a setting or an environment variable has a value outside its range',
  WL_CONFIG_MISMATCH: 'ranks called the same collective with different configurations',
  WL_CAPACITY: 'a request does not fit the capacity that was configured, now or later',
  WL_BUSY: 'there is no room now, because earlier requests are under way or were not taken: try again later',
  WL_MEMORY: 'the memory or address space of this rank is exhausted',
  WL_SHARED_MEMORY: 'shared memory is missing, too small or not what a peer announced',
  WL_TIMEOUT: 'a deadline passed; details name who is missing',
  WL_PEER_LOST: 'a rank ended or its connection broke',
  WL_INACTIVE:
    'this rank is not active: the others go on without it, and where it can come back, until it connects again',
  WL_STALE:
    'what is known of a peer is of an earlier life of it: load the metadata of the present one and prepare transfers anew',
  WL_PEER_FAILED: 'another rank reported an error and the group cannot go on',
  WL_RANK_TAKEN: 'another process already uses this rank number',
  WL_UNAUTHORIZED: 'a peer does not hold the token of this job',
  WL_PROTOCOL: 'a peer sent bytes that are not of this protocol or version',
  WL_LAUNCH: 'a process could not be started or ended with an error',
  WL_FILE: 'a file cannot be read or written',
  WL_FILE_FORMAT: 'a file is not what its name or header claims',
  WL_CHECK: 'a result differs from its reference by more than the tolerance',
  WL_UNSUPPORTED: 'this machine or build cannot do what was asked',
  WL_NATIVE: 'a native function failed; details hold its name and errno',
  WL_CUDA: 'a call of the CUDA driver failed; details hold the call, its status and whether the device is lost',
  WL_COMPILE: 'a GPU kernel could not be compiled, or is not among those compiled ahead of time',
  WL_CLOSED: 'the object was closed',
  WL_INTERNAL: 'a defect of weftline itself; please report it',
} as const;

/** One of the keys of errorCodes. */
export type ErrorCode = keyof typeof errorCodes;

/** The values that an error's message mentions, by name. */
export type ErrorDetails = Readonly<Record<string, unknown>>;

export interface ErrorOptions {
  readonly details?: ErrorDetails;
  readonly cause?: unknown;
  /** The rank where the error began, when it came from another rank. */
  readonly rank?: number;
  /** The stack of the original, when it came from another thread or process. */
  readonly remoteStack?: string;
}

const brand = Symbol.for('weftline.error');

/** Limits of what a message shows of an offending value. */
const MAX_SHOWN_TEXT = 200;
const MAX_SHOWN_ELEMENTS = 16;
const MAX_SHOWN_DEPTH = 2;

/** An error with a stable `code` to switch on; `details` holds the values that the message mentions. */
export class WeftlineError extends Error {
  override readonly name: string = 'WeftlineError';
  readonly code: ErrorCode;
  readonly details: ErrorDetails;
  // Fields of their own only where there is a value: Node prints all fields of an error that nobody catches.
  declare readonly rank: number | undefined;
  declare readonly remoteStack: string | undefined;

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = Object.freeze({ ...options.details });
    if (options.rank !== undefined) this.rank = options.rank;
    if (options.remoteStack !== undefined) this.remoteStack = options.remoteStack;
    Object.defineProperty(this, brand, { value: true });
  }

  /** True for an error of any copy of this package in the process, so that `instanceof` survives duplicates. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    // A subclass inherits this method but must accept its own instances only.
    if (this !== WeftlineError) return Function.prototype[Symbol.hasInstance].call(this, value);
    return typeof value === 'object' && value !== null && brand in value;
  }
}

/** What was thrown, as the library's own error: anything else becomes the cause of a WL_INTERNAL. */
export function asWeftlineError(thrown: unknown): WeftlineError {
  if (thrown instanceof WeftlineError) return thrown;
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return new WeftlineError('WL_INTERNAL', message, { cause: thrown });
}

/** The ranks that an error says it came from: those that were missing or lost, or where it began. */
export function blamedRanks(error: unknown): readonly number[] {
  if (!(error instanceof WeftlineError)) return [];
  for (const field of ['ranks', 'missing', 'blamed']) {
    const ranks = error.details[field];
    if (Array.isArray(ranks) && ranks.length > 0 && ranks.every((rank) => Number.isInteger(rank))) return ranks;
  }
  return error.rank === undefined ? [] : [error.rank];
}

/** An error as plain JSON, to cross a worker thread, a socket or a process boundary. */
export interface EncodedError {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
  readonly rank?: number;
  readonly stack?: string;
  readonly cause?: EncodedError;
}

/** Longest chain of causes that is encoded; a cause may lead back to its own error. */
const CAUSE_DEPTH = 8;

/**
 * Turns any thrown value into plain JSON; a foreign error keeps its message and stack under WL_INTERNAL. Never throws.
 * @param error Anything that was thrown.
 * @param rank Where it was thrown; an error that already names a rank keeps it.
 */
export function encodeError(error: unknown, rank?: number): EncodedError {
  return encodeChain(error, rank, CAUSE_DEPTH);
}

function encodeChain(error: unknown, rank: number | undefined, depth: number): EncodedError {
  const at = error instanceof WeftlineError ? (error.rank ?? rank) : rank;
  const known = error instanceof WeftlineError;
  const stack = known ? (error.remoteStack ?? error.stack) : error instanceof Error ? error.stack : undefined;
  const inner = error instanceof Error && depth > 0 ? error.cause : undefined;
  const cause = inner === undefined ? undefined : encodeChain(inner, undefined, depth - 1);
  return {
    code: known ? error.code : 'WL_INTERNAL',
    message: error instanceof Error ? error.message : typeof error === 'string' ? error : show(error),
    details: known ? jsonSafe(error.details) : {},
    ...(at === undefined ? {} : { rank: at }),
    ...(stack === undefined ? {} : { stack }),
    ...(cause === undefined ? {} : { cause }),
  };
}

/**
 * The reverse of encodeError; an unknown code (a newer peer) becomes WL_INTERNAL and keeps the code in details.
 * @param encoded What encodeError() returned, here or elsewhere.
 */
export function decodeError(encoded: EncodedError): WeftlineError {
  return decodeChain(encoded, CAUSE_DEPTH);
}

function decodeChain(encoded: EncodedError, depth: number): WeftlineError {
  if (typeof encoded !== 'object' || encoded === null || typeof encoded.message !== 'string') {
    throw invalidArgument('encoded', encoded, 'what encodeError() returned');
  }
  const known = typeof encoded.code === 'string' && Object.hasOwn(errorCodes, encoded.code);
  return new WeftlineError(known ? encoded.code : 'WL_INTERNAL', encoded.message, {
    details: known ? encoded.details : { ...encoded.details, code: encoded.code },
    ...(encoded.rank === undefined ? {} : { rank: encoded.rank }),
    ...(encoded.stack === undefined ? {} : { remoteStack: encoded.stack }),
    ...(encoded.cause === undefined || depth === 0 ? {} : { cause: decodeChain(encoded.cause, depth - 1) }),
  });
}

/** WL_INVALID_ARGUMENT that names the argument, what was expected and the value. */
export function invalidArgument(argument: string, value: unknown, expected: string): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid ${argument}: expected ${expected}, got ${show(value)}`, {
    details: { argument, value, expected },
  });
}

/** A value that a caller passed, for a message: also what has no text of its own. */
export function show(value: unknown): string {
  try {
    return shown(value, 0);
  } catch {
    // A getter or a proxy of the caller failed.
    return typeof value;
  }
}

function shown(value: unknown, depth: number): string {
  if (depth > MAX_SHOWN_DEPTH) return '…';
  if (typeof value === 'string') return quote(value, MAX_SHOWN_TEXT);
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value)) {
    const more = value.length > MAX_SHOWN_ELEMENTS ? [`… ${value.length} in all`] : [];
    return `[${[...value.slice(0, MAX_SHOWN_ELEMENTS).map((element) => shown(element, depth + 1)), ...more].join(', ')}]`;
  }
  if (typeof value === 'object' && value !== null) {
    const name: unknown = value.constructor?.name;
    return typeof name === 'string' ? printable(name) : 'object';
  }
  // The text of a function or a symbol is the caller's.
  return printable(String(value));
}

function jsonSafe(details: ErrorDetails): ErrorDetails {
  try {
    return JSON.parse(
      JSON.stringify(details, (_key, value: unknown) => (typeof value === 'bigint' ? Number(value) : value)),
    ) as ErrorDetails;
  } catch {
    // A circular value: the error itself matters more than its details.
    return Object.fromEntries(Object.entries(details).map(([name, value]) => [name, show(value)]));
  }
}
