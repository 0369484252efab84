// The file in which ranks of a launcher note why they end, before others can suffer from it: its order is that of events.
import { readFileSync, writeFileSync } from 'node:fs';
import { type ErrorCode, errorCodes } from '../core/errors.ts';
import { filePrefixOf, SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';

/** What a rank notes. */
export interface FailureNote {
  readonly rank: number;
  /** Milliseconds since 1970. */
  readonly time: number;
  /** The ranks whose failure or absence caused this one. */
  readonly because: readonly number[];
  /** Absent if the rank ended with an exit code and no error. */
  readonly error?: NotedError;
  /** The code that the rank ends with, if it is known yet. */
  readonly exitCode?: number;
}

/** What an error of a rank says, as the launcher keeps and prints it. */
export interface NotedError {
  readonly code?: ErrorCode;
  readonly message: string;
}

/** A note is one write: notes of ranks that fail together do not mix. */
const MAX_MESSAGE_LENGTH = 2_000;

export function failureLogOf(jobPrefix: string): string {
  return `${SHARED_MEMORY_FOLDER}/${filePrefixOf(jobPrefix)}-failures`;
}

/** Adds a note and returns those before it; undefined if the file cannot be written. */
export function noteFailure(path: string, note: FailureNote): FailureNote[] | undefined {
  const { error } = note;
  const brief = error === undefined ? note : { ...note, error: { ...error, message: cut(error.message) } };
  const line = JSON.stringify(brief);
  try {
    writeFileSync(path, `${line}\n`, { flag: 'a', mode: 0o600 });
    const lines = readLines(path);
    return lines.slice(0, lines.indexOf(line)).flatMap(parseNote);
  } catch {
    return undefined;
  }
}

/** All notes, in the order in which they were made; none if no rank has noted anything. */
export function readFailures(path: string): FailureNote[] {
  try {
    return readLines(path).flatMap(parseNote);
  } catch {
    return [];
  }
}

function readLines(path: string): string[] {
  return readFileSync(path, 'utf8').split('\n').slice(0, -1);
}

function cut(text: string): string {
  return text.length > MAX_MESSAGE_LENGTH ? `${text.slice(0, MAX_MESSAGE_LENGTH)}…` : text;
}

/** None for a line that no rank wrote. */
function parseNote(line: string): FailureNote[] {
  try {
    const { rank, time, because, error, exitCode } = JSON.parse(line) as Partial<FailureNote>;
    if (!isIndex(rank) || !isIndex(time) || !Array.isArray(because) || !because.every(isIndex)) return [];
    const known = parseError(error);
    return [
      {
        rank,
        time,
        because,
        ...(known === undefined ? {} : { error: known }),
        ...(isIndex(exitCode) ? { exitCode } : {}),
      },
    ];
  } catch {
    return [];
  }
}

function parseError(error: Partial<NotedError> | undefined): NotedError | undefined {
  if (typeof error?.message !== 'string') return undefined;
  const { code, message } = error;
  return code !== undefined && Object.hasOwn(errorCodes, code) ? { code, message } : { message };
}

function isIndex(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}
