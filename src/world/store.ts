// The rendezvous store as ranks see it: small values under names, waits with deadlines, collectives.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { checkSignal, checkTimeout, type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { MAX_KEY_LENGTH, type StoreReply, type StoreRequest } from './store-request.ts';
import type { Survivors } from './survivor-agreement.ts';
import type { JobAnswers } from './watching/job-observer.ts';

/** How long to wait for a key to be set. */
interface KeyWaitOptions extends WaitOptions {
  /** The ranks of the group that set the keys, so that an error can name them. Without it, any lost rank fails the wait. */
  readonly from?: readonly number[];
}

/**
 * The store of a world, or of a group of its ranks: each has keys and names of its own, and collectives of its ranks alone.
 * Values are bytes, of at most the setting `storeMaxValueBytes`; keys have 1 to 1024 characters. Every call fails with
 * WL_CLOSED after close and WL_PEER_LOST when the process that serves it is gone: the launcher, or rank 0. Calls that wait fail with
 * WL_TIMEOUT when their time is up, and at once with WL_PEER_LOST or WL_PEER_FAILED, naming the rank, when a rank
 * they depend on has left the job.
 */
export interface Store {
  /** Stores bytes under a key, at most `storeMaxValueBytes`; replaces what was there. */
  set(key: string, value: Uint8Array): Promise<void>;
  /** Waits until the key exists. The result is the caller's own copy. */
  get(key: string, options?: KeyWaitOptions): Promise<Uint8Array>;
  /** `set` with a value that JSON can express. */
  setJson(key: string, value: unknown): Promise<void>;
  /** The value of setJson(), once there is one. Fails with WL_TIMEOUT. */
  getJson<T>(key: string, options?: KeyWaitOptions): Promise<T>;
  /** Waits until all keys exist. */
  wait(keys: readonly string[], options?: KeyWaitOptions): Promise<void>;
  /** Adds to the decimal number under the key, 0 if there is none, and returns the sum (a safe integer). */
  add(key: string, delta: number): Promise<number>;
  /** Sets the key to `desired` only if it holds `expected` (undefined: only if it does not exist). */
  compareAndSet(key: string, expected: Uint8Array | undefined, desired: Uint8Array): Promise<CompareAndSetResult>;
  /** True if the key existed. */
  delete(key: string): Promise<boolean>;
  /** Collective over the group: returns once every rank has called it with this name. The name may be used again. */
  barrier(name: string, options?: WaitOptions): Promise<void>;
  /** Collective over the group: result[r] is the value of rank r. All values together are one value of the store. */
  allGather(name: string, value: Uint8Array, options?: WaitOptions): Promise<Uint8Array[]>;
}

/** Whether compareAndSet() took effect, and what the key holds now. */
interface CompareAndSetResult {
  readonly swapped: boolean;
  /** What the key holds now; undefined if it does not exist. */
  readonly value: Uint8Array | undefined;
}

/** How requests reach the store: within the process, or over a socket. */
export interface StoreLink {
  request(request: StoreRequest, parts: readonly Uint8Array[], signal?: AbortSignal): Promise<StoreReply>;
  /**
   * What the members wait for; resolves when `isEnough` says so of what has come, or after `patienceMs`. Fails with WL_TIMEOUT if
   * the store itself does not answer. Absent where nobody else is.
   */
  ask?(patienceMs: number, isEnough: (answers: JobAnswers) => boolean): Promise<JobAnswers>;
}

interface StoreLinkOptions {
  readonly timeoutMs: number;
  readonly maxValueBytes: number;
  /** Name of a group, which no other group of the job has, and the world ranks of its ranks. Without it, all ranks. */
  readonly group?: { readonly name: string; readonly ranks: readonly number[] };
}

const keyWaitNames: OptionNames<KeyWaitOptions> = { ...waitOptionNames, from: true };

/** The store over a link: checks arguments, fills in deadlines. */
export class LinkedStore implements Store {
  readonly #link: StoreLink;
  readonly #options: StoreLinkOptions;
  readonly #prefix: string;
  /** World ranks in ascending order, for requests; none for a world. */
  readonly #members: { readonly members?: readonly number[] };

  constructor(link: StoreLink, options: StoreLinkOptions) {
    const { group } = options;
    this.#link = link;
    this.#options = options;
    this.#prefix = group === undefined ? '' : `${group.name}/`;
    this.#members = group === undefined ? {} : { members: group.ranks.toSorted((left, right) => left - right) };
  }

  async set(key: string, value: Uint8Array): Promise<void> {
    await this.#link.request({ op: 'set', key: this.#key(key) }, [this.#checkValue(value)]);
  }

  async get(key: string, options: KeyWaitOptions = {}): Promise<Uint8Array> {
    const { parts } = await this.#waitForKeys([key], true, options);
    return Uint8Array.from(onePart(parts));
  }

  async setJson(key: string, value: unknown): Promise<void> {
    await this.set(key, encodeJson(value));
  }

  async getJson<T>(key: string, options: KeyWaitOptions = {}): Promise<T> {
    const { parts } = await this.#waitForKeys([key], true, options);
    return decodeJson(onePart(parts)) as T;
  }

  async wait(keys: readonly string[], options: KeyWaitOptions = {}): Promise<void> {
    if (!Array.isArray(keys)) throw invalidArgument('keys', keys, 'an array of keys');
    if (keys.length > 0) await this.#waitForKeys(keys, false, options);
  }

  async add(key: string, delta: number): Promise<number> {
    if (!Number.isSafeInteger(delta)) throw invalidArgument('delta', delta, 'a safe integer');
    const { sum } = await this.#link.request({ op: 'add', key: this.#key(key), delta }, []);
    return sum ?? Number.NaN;
  }

  async compareAndSet(
    key: string,
    expected: Uint8Array | undefined,
    desired: Uint8Array,
  ): Promise<CompareAndSetResult> {
    const parts = expected === undefined ? [desired] : [expected, desired];
    for (const part of parts) this.#checkValue(part);
    const reply = await this.#link.request({ op: 'compareAndSet', key: this.#key(key) }, parts);
    const value = reply.parts[0];
    return { swapped: reply.done === true, value: value === undefined ? undefined : Uint8Array.from(value) };
  }

  async delete(key: string): Promise<boolean> {
    return (await this.#link.request({ op: 'delete', key: this.#key(key) }, [])).done === true;
  }

  async barrier(name: string, options: WaitOptions = {}): Promise<void> {
    checkOptions(options, waitOptionNames, 'options of barrier');
    await this.#collect('barrier', name, [], options);
  }

  async allGather(name: string, value: Uint8Array, options: WaitOptions = {}): Promise<Uint8Array[]> {
    checkOptions(options, waitOptionNames, 'options of allGather');
    const { parts } = await this.#collect('gather', name, [this.#checkValue(value)], options);
    const { members } = this.#members;
    const { ranks = [] } = this.#options.group ?? {};
    const ordered = members === undefined ? parts : ranks.map((rank) => parts[members.indexOf(rank)]!);
    return ordered.map((part) => Uint8Array.from(part));
  }

  /** Collective over the ranks that live, see RankGroup.shrink(). `lost`: world ranks of the group that are known to be lost. */
  async shrink(lost: readonly number[], options: WaitOptions): Promise<Survivors> {
    const known = lost.length === 0 ? {} : { lost };
    const name = this.#key('weftline/shrink');
    const request = { op: 'shrink', name, ...this.#members, ...known, timeoutMs: this.#timeout(options) } as const;
    const { parts } = await this.#link.request(request, [], options.signal);
    return decodeJson(onePart(parts)) as Survivors;
  }

  #collect(
    op: 'barrier' | 'gather',
    name: string,
    parts: readonly Uint8Array[],
    options: WaitOptions,
  ): Promise<StoreReply> {
    const request = { op, name: this.#key(name), ...this.#members, timeoutMs: this.#timeout(options) };
    return this.#link.request(request, parts, options.signal);
  }

  async #waitForKeys(keys: readonly string[], read: boolean, options: KeyWaitOptions): Promise<StoreReply> {
    checkOptions(options, keyWaitNames, 'options of a wait for keys');
    const { from = [], signal } = options;
    if (!Array.isArray(from)) throw invalidArgument('from', from, 'an array of ranks');
    const known = from.length === 0 ? {} : { from: from.map((rank) => this.#worldRank(rank)) };
    const timeoutMs = this.#timeout(options);
    const names = keys.map((key) => this.#key(key));
    return this.#link.request({ op: 'wait', keys: names, read, ...known, ...this.#members, timeoutMs }, [], signal);
  }

  #worldRank(rank: number): number {
    const { group } = this.#options;
    const worldRank = group === undefined ? rank : group.ranks[rank];
    if (worldRank !== undefined) return worldRank;
    throw invalidArgument('from', rank, `ranks of the group, 0 to ${(group?.ranks.length ?? 1) - 1}`);
  }

  #key(key: string): string {
    const max = MAX_KEY_LENGTH - this.#prefix.length;
    if (typeof key === 'string' && key.length > 0 && key.length <= max) return this.#prefix + key;
    throw invalidArgument('key', key, `a string of 1 to ${max} characters`);
  }

  #timeout(options: WaitOptions): number {
    checkSignal(options.signal);
    return checkTimeout(options.timeoutMs ?? this.#options.timeoutMs);
  }

  #checkValue(value: Uint8Array): Uint8Array {
    const { maxValueBytes } = this.#options;
    if (!(value instanceof Uint8Array)) throw invalidArgument('value', value, 'a Uint8Array');
    if (value.byteLength <= maxValueBytes) return value;
    throw new WeftlineError(
      'WL_CAPACITY',
      `A value of ${value.byteLength} bytes does not fit the rendezvous store: at most ${maxValueBytes} (setting storeMaxValueBytes)`,
      { details: { bytes: value.byteLength, allowed: maxValueBytes } },
    );
  }
}

export function encodeJson(value: unknown): Uint8Array {
  const text = toJson(value);
  if (text === undefined) throw invalidArgument('value', value, 'a value that JSON can express');
  return Buffer.from(text);
}

/** Undefined for what it cannot express: functions, symbols, circles. Fails with WL_INVALID_ARGUMENT for a bigint, by its name. */
function toJson(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    requireNoBigint('value', value, []);
    return undefined;
  }
}

function requireNoBigint(name: string, value: unknown, above: readonly unknown[]): void {
  if (typeof value === 'bigint') throw invalidArgument(name, value, 'a number: JSON cannot express a bigint');
  if (typeof value !== 'object' || value === null || above.includes(value)) return;
  for (const [key, part] of Object.entries(value)) requireNoBigint(key, part, [...above, value]);
}

export function decodeJson(bytes: Uint8Array): unknown {
  return JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8'));
}

function onePart(parts: readonly Uint8Array[]): Uint8Array {
  if (parts[0] === undefined) throw new WeftlineError('WL_INTERNAL', 'The rendezvous store replied without the value');
  return parts[0];
}
