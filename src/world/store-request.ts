// The requests that the rendezvous store answers, and how one that came over a wire is checked.
import { WeftlineError } from '../core/errors.ts';
import type { Credentials } from '../meeting/credentials.ts';
import { protocolError } from '../meeting/frames.ts';
import type { HelloBody, HelloOptions } from '../meeting/hello.ts';

// What a rank, a node's launcher and the store say of themselves in the hello of their connection.

const VERSION = 3;
const MAX_HOST_LENGTH = 255;

/** Kinds of those who take part in a store: the ranks of the job, and the launchers of its nodes among themselves. */
export type MemberKind = 'rank' | 'node';

/** What a rank says, or a launcher of its node. */
interface RankIntroduction {
  readonly kind: MemberKind;
  readonly rank: number;
  readonly size: number;
  readonly pid: number;
  readonly host: string;
}

/** What somebody says who takes no part, but asks the members what they wait for. */
export const observerBody: HelloBody = { kind: 'observer' };

export function isObserver(body: HelloBody): boolean {
  return body['kind'] === observerBody['kind'];
}

export function storeHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-store', version: VERSION, credentials };
}

/**
 * Reads what a caller says; `sizes` holds how many members of each kind there are. Fails with WL_PROTOCOL for anything
 * else, WL_CONFIG_MISMATCH for a member of a job of another size.
 */
export function readRank(body: HelloBody, sizes: Readonly<Record<MemberKind, number>>): RankIntroduction {
  const { rank, pid, host } = body;
  const kind = body['kind'] === 'node' ? 'node' : 'rank';
  const size = sizes[kind];
  if (typeof rank !== 'number' || typeof body['size'] !== 'number') {
    throw protocolError('a greeting without rank and size');
  }
  if (body['size'] !== size || !Number.isInteger(rank) || rank < 0 || rank >= size) {
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      kind === 'rank'
        ? `Rank ${rank} of a world of ${body['size']} cannot join: rank 0 was started for a world of ${size}`
        : `Node ${rank} of ${body['size']} cannot join: node 0 was started with --nnodes ${size}; start all nodes with the same --nnodes`,
      { details: { rank, size: body['size'], expected: size } },
    );
  }
  return { kind, rank, size, pid: Number(pid), host: String(host).slice(0, MAX_HOST_LENGTH) };
}

/** `members`: world ranks of the group that waits, ascending, the caller among them; without it, all ranks. */
export type StoreRequest =
  | { readonly op: 'set' | 'delete'; readonly key: string }
  | { readonly op: 'add'; readonly key: string; readonly delta: number }
  /** Parts: [expected,] desired. Without `expected` the key must not exist. */
  | { readonly op: 'compareAndSet'; readonly key: string }
  /** Waits until all keys exist; `from` names the ranks that set them; replies with the values if `read`. */
  | {
      readonly op: 'wait';
      readonly keys: readonly string[];
      readonly read: boolean;
      readonly from?: readonly number[];
      readonly members?: readonly number[];
      readonly timeoutMs: number;
    }
  /** Collective: waits until every member came with its part; replies with all parts in the order of world ranks. */
  | {
      readonly op: 'gather' | 'barrier';
      readonly name: string;
      readonly members?: readonly number[];
      readonly timeoutMs: number;
    }
  /**
   * Waits until the members that live have come; replies with Survivors as JSON. `lost`: members whose process was lost since the
   * caller has the group.
   */
  | {
      readonly op: 'shrink';
      readonly name: string;
      readonly members?: readonly number[];
      readonly lost?: readonly number[];
      readonly timeoutMs: number;
    };

/** Name of that wait in errors. */
export const SHRINK = 'the agreement on the ranks that live';

/** The requests that may wait for other ranks. */
export type WaitingRequest = Extract<StoreRequest, { readonly timeoutMs: number }>;

export interface StoreReply {
  /** The sum after `add`. */
  readonly sum?: number;
  /** Whether `compareAndSet` swapped or `delete` found the key. */
  readonly done?: boolean;
  readonly parts: readonly Uint8Array[];
}

export const MAX_KEY_LENGTH = 1024;
const MAX_KEYS = 4096;
const MAX_TIMEOUT_MS = 2 ** 31 - 1;

/** Checks a header that came over a wire. Fails with WL_PROTOCOL naming the field. */
export function parseRequest(header: Readonly<Record<string, unknown>>): StoreRequest {
  const op = header['op'];
  switch (op) {
    case 'set':
    case 'delete':
    case 'compareAndSet':
      return { op, key: text(header, 'key') };
    case 'add':
      return { op, key: text(header, 'key'), delta: integer(header, 'delta') };
    case 'gather':
    case 'barrier':
      return { op, name: text(header, 'name'), ...members(header), timeoutMs: timeout(header) };
    case 'shrink': {
      const lost = header['lost'] === undefined ? {} : { lost: list(header, 'lost', isRank) };
      return { op, name: text(header, 'name'), ...members(header), ...lost, timeoutMs: timeout(header) };
    }
    case 'wait': {
      const from = header['from'] === undefined ? {} : { from: list(header, 'from', isRank) };
      const keys = list(header, 'keys', isText);
      return { op, keys, read: header['read'] === true, ...from, ...members(header), timeoutMs: timeout(header) };
    }
    default:
      throw protocolError('an unknown request');
  }
}

function members(header: Readonly<Record<string, unknown>>): { readonly members?: readonly number[] } {
  if (header['members'] === undefined) return {};
  const ranks = list(header, 'members', isRank);
  if (ranks.every((rank, index) => index === 0 || rank > ranks[index - 1]!)) return { members: ranks };
  throw protocolError('a request whose members are not in ascending order');
}

/** Checks a reply that came over a wire. */
export function parseReply(header: Readonly<Record<string, unknown>>, parts: readonly Uint8Array[]): StoreReply {
  const { sum, done } = header;
  return {
    ...(typeof sum === 'number' ? { sum } : {}),
    ...(typeof done === 'boolean' ? { done } : {}),
    parts,
  };
}

const isText = (value: unknown): value is string =>
  typeof value === 'string' && value.length > 0 && value.length <= MAX_KEY_LENGTH;
const isRank = (value: unknown): value is number => Number.isInteger(value) && (value as number) >= 0;

function text(header: Readonly<Record<string, unknown>>, field: string): string {
  const value = header[field];
  if (isText(value)) return value;
  throw protocolError(`a request whose ${field} is not a string of 1 to ${MAX_KEY_LENGTH} characters`);
}

function integer(header: Readonly<Record<string, unknown>>, field: string): number {
  const value = header[field];
  if (Number.isSafeInteger(value)) return value as number;
  throw protocolError(`a request whose ${field} is not an integer`);
}

function timeout(header: Readonly<Record<string, unknown>>): number {
  const value = header['timeoutMs'];
  if (typeof value === 'number' && value >= 0 && value <= MAX_TIMEOUT_MS) return value;
  throw protocolError('a request whose timeoutMs is out of range');
}

function list<T>(
  header: Readonly<Record<string, unknown>>,
  field: string,
  is: (value: unknown) => value is T,
): readonly T[] {
  const value = header[field];
  if (Array.isArray(value) && value.length > 0 && value.length <= MAX_KEYS && value.every(is)) return value;
  throw protocolError(`a request whose ${field} is not a list of 1 to ${MAX_KEYS} entries`);
}

/** What a rank waits for and where its objects stand, or its metrics. */
export type Question = 'state' | 'metrics';

/** The one who asks: one and the same object each time, and what takes the answers to it. */
export interface Asker {
  readonly asker: object;
  readonly send: (header: Readonly<Record<string, unknown>>, parts: readonly Uint8Array[]) => void;
}

export function isQuestion(value: unknown): value is Question {
  return value === 'state' || value === 'metrics';
}
