// What a rank says when it is asked what it waits for, and how the asker reads it.
import { type Meters, readMeters } from '../../core/meters.ts';
import { printable } from '../../core/quote.ts';
import { answeredNames, type ObjectState, objectStates, type PresentWait, presentWaits } from '../../core/waits.ts';

/** A rank's answer. Only a rank whose event loop runs gives one. */
export interface RankAnswer {
  readonly waits: readonly PresentWait[];
  readonly objects: readonly ObjectState[];
  /** Names of its agents, which waits of others give as peers. */
  readonly names: readonly string[];
  readonly meters: Meters;
  readonly rssBytes: number;
}

/** Of each list, so that an answer stays small. */
const MAX_ENTRIES = 64;
const MAX_TEXT = 300;

/** Never fails. */
export async function rankAnswer(): Promise<RankAnswer> {
  const waits = presentWaits().slice(0, MAX_ENTRIES);
  const objects = objectStates().slice(-MAX_ENTRIES);
  const names = answeredNames().slice(0, MAX_ENTRIES);
  return { waits, objects, names, meters: await readMeters(), rssBytes: process.memoryUsage.rss() };
}

/** Reads an answer that came over a wire: what is missing or of another type counts as empty, texts are printable. */
export function readRankAnswer(value: unknown): RankAnswer {
  const answer = fields(value);
  const meters = fields(answer['meters']);
  return {
    waits: list(answer['waits']).map(readWait),
    objects: list(answer['objects']).map(readObject),
    names: texts(answer['names']),
    meters: {
      sentBytes: number(meters['sentBytes']),
      receivedBytes: number(meters['receivedBytes']),
      sentPackets: number(meters['sentPackets']),
      retransmittedPackets: number(meters['retransmittedPackets']),
      windowBytes: number(meters['windowBytes']),
    },
    rssBytes: number(answer['rssBytes']),
  };
}

/** Of a rank, or of the store, which knows what ranks wait for there. */
export function readWait(value: unknown): PresentWait {
  const { operation, ageMs, ranks, peers, expected, seen, leftMs } = fields(value);
  return {
    operation: text(operation),
    ageMs: number(ageMs),
    ...(ranks === undefined ? {} : { ranks: numbers(ranks) }),
    ...(peers === undefined ? {} : { peers: texts(peers) }),
    ...(expected === undefined ? {} : { expected: number(expected) }),
    ...(seen === undefined ? {} : { seen: number(seen) }),
    ...(leftMs === undefined ? {} : { leftMs: number(leftMs) }),
  };
}

function readObject(value: unknown): ObjectState {
  const { object, ranks, calls, last, isRunning } = fields(value);
  return {
    object: text(object),
    ranks: numbers(ranks),
    calls: number(calls),
    last: last === undefined ? undefined : text(last),
    isRunning: isRunning === true,
  };
}

export function fields(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function text(value: unknown): string {
  return typeof value === 'string' ? printable(value, MAX_TEXT) : '';
}

export function number(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function numbers(value: unknown): readonly number[] {
  return list(value).map(number);
}

function texts(value: unknown): readonly string[] {
  return list(value).map(text);
}
