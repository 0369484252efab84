// The rendezvous store as ranks see it: small values under names, waits with deadlines, collectives.
import { checkTimeout, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { MAX_KEY_LENGTH, type StoreReply, type StoreRequest } from './store-request.ts';

export interface KeyWaitOptions extends WaitOptions {
  /** The ranks that set the keys, so that an error can name them. Without it, any lost rank fails the wait. */
  readonly from?: readonly number[];
}

/**
 * Values are bytes, of at most the setting `storeMaxValueBytes`; keys have 1 to 1024 characters. Every call fails with
 * WL_CLOSED after close and WL_PEER_LOST when rank 0, which holds the store, is gone. Calls that wait fail with
 * WL_TIMEOUT when their time is up, and at once with WL_PEER_LOST or WL_PEER_FAILED, naming the rank, when a rank
 * they depend on has left the job.
 */
export interface Store {
  set(key: string, value: Uint8Array): Promise<void>;
  /** Waits until the key exists. The result is the caller's own copy. */
  get(key: string, options?: KeyWaitOptions): Promise<Uint8Array>;
  /** `set` with a value that JSON can express. */
  setJson(key: string, value: unknown): Promise<void>;
  getJson<T>(key: string, options?: KeyWaitOptions): Promise<T>;
  /** Waits until all keys exist. */
  wait(keys: readonly string[], options?: KeyWaitOptions): Promise<void>;
  /** Adds to the decimal number under the key, 0 if there is none, and returns the sum (a safe integer). */
  add(key: string, delta: number): Promise<number>;
  /** Sets the key to `desired` only if it holds `expected` (undefined: only if it does not exist). */
  compareAndSet(key: string, expected: Uint8Array | undefined, desired: Uint8Array): Promise<CompareAndSetResult>;
  /** True if the key existed. */
  delete(key: string): Promise<boolean>;
  /** Collective: returns once every rank has called it with this name. The name may be used again. */
  barrier(name: string, options?: WaitOptions): Promise<void>;
  /** Collective: result[r] is the value of rank r. The values of all ranks together are one value of the store. */
  allGather(name: string, value: Uint8Array, options?: WaitOptions): Promise<Uint8Array[]>;
}

export interface CompareAndSetResult {
  readonly swapped: boolean;
  /** What the key holds now; undefined if it does not exist. */
  readonly value: Uint8Array | undefined;
}

/** How requests reach the store: within the process, or over a socket. */
export interface StoreLink {
  request(request: StoreRequest, parts: readonly Uint8Array[], signal?: AbortSignal): Promise<StoreReply>;
}

export interface StoreLinkOptions {
  readonly timeoutMs: number;
  readonly maxValueBytes: number;
}

/** The store over a link: checks arguments, fills in deadlines. */
export class LinkedStore implements Store {
  readonly #link: StoreLink;
  readonly #options: StoreLinkOptions;

  constructor(link: StoreLink, options: StoreLinkOptions) {
    this.#link = link;
    this.#options = options;
  }

  async set(key: string, value: Uint8Array): Promise<void> {
    await this.#link.request({ op: 'set', key: checkKey(key) }, [this.#checkValue(value)]);
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
    if (keys.length > 0) await this.#waitForKeys(keys, false, options);
  }

  async add(key: string, delta: number): Promise<number> {
    if (!Number.isSafeInteger(delta)) throw invalidArgument('delta', delta, 'a safe integer');
    const { sum } = await this.#link.request({ op: 'add', key: checkKey(key), delta }, []);
    return sum ?? Number.NaN;
  }

  async compareAndSet(
    key: string,
    expected: Uint8Array | undefined,
    desired: Uint8Array,
  ): Promise<CompareAndSetResult> {
    const parts = expected === undefined ? [desired] : [expected, desired];
    for (const part of parts) this.#checkValue(part);
    const reply = await this.#link.request({ op: 'compareAndSet', key: checkKey(key) }, parts);
    const value = reply.parts[0];
    return { swapped: reply.done === true, value: value === undefined ? undefined : Uint8Array.from(value) };
  }

  async delete(key: string): Promise<boolean> {
    return (await this.#link.request({ op: 'delete', key: checkKey(key) }, [])).done === true;
  }

  async barrier(name: string, options: WaitOptions = {}): Promise<void> {
    const request = { op: 'barrier', name: checkKey(name), timeoutMs: this.#timeout(options) } as const;
    await this.#link.request(request, [], options.signal);
  }

  async allGather(name: string, value: Uint8Array, options: WaitOptions = {}): Promise<Uint8Array[]> {
    const request = { op: 'gather', name: checkKey(name), timeoutMs: this.#timeout(options) } as const;
    const { parts } = await this.#link.request(request, [this.#checkValue(value)], options.signal);
    return parts.map((part) => Uint8Array.from(part));
  }

  async #waitForKeys(keys: readonly string[], read: boolean, options: KeyWaitOptions): Promise<StoreReply> {
    const from = options.from === undefined || options.from.length === 0 ? {} : { from: options.from };
    const timeoutMs = this.#timeout(options);
    return this.#link.request({ op: 'wait', keys: keys.map(checkKey), read, ...from, timeoutMs }, [], options.signal);
  }

  #timeout(options: WaitOptions): number {
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
  const text = JSON.stringify(value) as string | undefined;
  if (text === undefined) throw invalidArgument('value', value, 'a value that JSON can express');
  return Buffer.from(text);
}

export function decodeJson(bytes: Uint8Array): unknown {
  return JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8'));
}

function onePart(parts: readonly Uint8Array[]): Uint8Array {
  if (parts[0] === undefined) throw new WeftlineError('WL_INTERNAL', 'The rendezvous store replied without the value');
  return parts[0];
}

function checkKey(key: string): string {
  if (typeof key === 'string' && key.length > 0 && key.length <= MAX_KEY_LENGTH) return key;
  throw invalidArgument('key', key, `a text of 1 to ${MAX_KEY_LENGTH} characters`);
}
