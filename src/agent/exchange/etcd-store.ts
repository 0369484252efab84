// Metadata in etcd, under leases that end with the processes that published them.
import { z } from '#zod';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { Deadline, startCall, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { printable } from '../../core/quote.ts';
import type { MetadataStore } from './metadata-exchange.ts';

// Requests to etcd through the JSON gateway of its version 3 interface.

/** The time in which a request is answered; several may share a deadline. */
interface EtcdWait {
  readonly deadline: Deadline;
  readonly signal?: AbortSignal | undefined;
}

const rangeAnswer = z.object({ kvs: z.array(z.object({ value: z.string().optional() })).optional() });
const leaseAnswer = z.object({ ID: z.string() });
/** An answer without a time to live says that the lease has expired. */
const keepAliveAnswer = z.object({ result: z.object({ TTL: z.string().optional() }) });

/** Each call fails with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if something else answers. */
export class EtcdClient {
  /** The origin of etcd, such as "http://10.0.0.7:2379". */
  readonly origin: string;

  /** Fails with WL_INVALID_ARGUMENT for an endpoint that is no origin of http or https. */
  constructor(endpoint: string) {
    this.origin = originOf(endpoint);
  }

  /** Undefined if there is none. */
  async get(key: string, wait: EtcdWait): Promise<Uint8Array | undefined> {
    const { kvs } = check(rangeAnswer, await this.#ask('kv/range', { key: encode(key) }, wait));
    const value = kvs?.[0]?.value;
    return value === undefined ? undefined : new Uint8Array(Buffer.from(value, 'base64'));
  }

  /** The key goes when the lease does. */
  async put(key: string, what: { readonly value: Uint8Array; readonly lease: string }, wait: EtcdWait): Promise<void> {
    const value = Buffer.from(what.value).toString('base64');
    await this.#ask('kv/put', { key: encode(key), value, lease: what.lease }, wait);
  }

  async delete(key: string, wait: EtcdWait): Promise<void> {
    await this.#ask('kv/deleterange', { key: encode(key) }, wait);
  }

  /** Returns the lease's name. */
  async grant(seconds: number, wait: EtcdWait): Promise<string> {
    return check(leaseAnswer, await this.#ask('lease/grant', { TTL: seconds }, wait)).ID;
  }

  /** False if it has expired. */
  async keepAlive(lease: string, wait: EtcdWait): Promise<boolean> {
    const { TTL = '0' } = check(keepAliveAnswer, await this.#ask('lease/keepalive', { ID: lease }, wait)).result;
    return Number(TTL) > 0;
  }

  async revoke(lease: string, wait: EtcdWait): Promise<void> {
    await this.#ask('lease/revoke', { ID: lease }, wait);
  }

  async #ask(path: string, body: unknown, { deadline, signal }: EtcdWait): Promise<unknown> {
    const url = new URL(`/v3/${path}`, this.origin);
    const late = AbortSignal.timeout(Math.ceil(deadline.leftMs));
    let answer: Response;
    let text: string;
    try {
      answer = await fetch(url, {
        method: 'POST',
        body: JSON.stringify(body),
        signal: signal === undefined ? late : AbortSignal.any([late, signal]),
      });
      text = await answer.text();
    } catch (cause) {
      signal?.throwIfAborted();
      const why = late.aborted ? `no answer within ${deadline.timeoutMs} ms` : String((cause as Error).cause ?? cause);
      throw new WeftlineError('WL_PEER_LOST', `Cannot reach etcd at ${url.origin}: ${why}`, {
        details: { endpoint: url.origin },
        cause,
      });
    }
    if (!answer.ok) throw notEtcd(url, `status ${answer.status}: ${printable(text, 200)}`);
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw notEtcd(url, 'an answer that is not JSON');
    }
  }
}

/** Credentials are refused, and not shown: fetch() takes no URL with them, and its error would quote them. */
function originOf(endpoint: unknown): string {
  const expected = 'http or https, a host and a port, such as "http://10.0.0.7:2379", without user, password and path';
  const url = typeof endpoint === 'string' && URL.canParse(endpoint) ? new URL(endpoint) : undefined;
  const isHttp = url !== undefined && (url.protocol === 'http:' || url.protocol === 'https:');
  // A URL that has more than an origin differs from it: user, password, path, query or fragment.
  if (isHttp && url.href === `${url.origin}/`) return url.origin;
  const shown = typeof endpoint === 'string' ? endpoint.replace(/^.*@/s, '…@').replace(/[?#].*$/s, '…') : endpoint;
  throw invalidArgument('endpoint', shown, expected);
}

function encode(key: string): string {
  return Buffer.from(key).toString('base64');
}

function check<T>(schema: z.ZodType<T>, answer: unknown): T {
  const parsed = schema.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new WeftlineError('WL_PROTOCOL', 'etcd answered a request with something else');
}

function notEtcd(url: URL, what: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `${url.href} does not answer as etcd does: ${what}`, {
    details: { url: url.href },
  });
}

/** The place of etcd, and how long it keeps what a process that ended has published. */
export interface EtcdOptions {
  /** The origin of etcd, such as "http://10.0.0.7:2379"; without user and password, which are refused. */
  readonly endpoint: string;
  /** A text before each name; "/weftline/agents/" by default. */
  readonly prefix?: string;
  /** How long publishing and withdrawing may take, in ms; 5000 by default. */
  readonly requestMs?: number;
  /**
   * How long metadata stay when the process that published them has ended, or has not come to renew them because a call
   * blocks its thread; then they come back with the next turn of its event loop. In ms; two minutes by default.
   */
  readonly leaseMs?: number;
}

const etcdOptionNames: OptionNames<EtcdOptions> = { endpoint: true, prefix: true, requestMs: true, leaseMs: true };

const REQUEST_MS = 5000;
const LEASE_MS = 120_000;
/** A lease outlives two failed renewals. */
const RENEWALS_PER_LEASE = 3;
/** No timer holds more. */
const MAX_MS = 2 ** 31 - 1;
const FIRST_PAUSE_MS = 20;
const LAST_PAUSE_MS = 500;

/**
 * Fails with WL_INVALID_ARGUMENT. The calls of the store fail with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if
 * something else answers.
 * @param options Where etcd is.
 */
export function etcdMetadataStore(options: EtcdOptions): MetadataStore {
  checkOptions(options, etcdOptionNames, 'options of etcdMetadataStore');
  return new EtcdStore(options);
}

/** What this process has published under a name. */
interface Held {
  blob: Uint8Array;
  lease: string;
  readonly timer: NodeJS.Timeout;
  /** The same function for every put, so that callers need to keep only one. */
  readonly release: () => Promise<void>;
}

class EtcdStore implements MetadataStore {
  readonly #client: EtcdClient;
  readonly #prefix: string;
  readonly #requestMs: number;
  readonly #leaseMs: number;
  readonly #held = new Map<string, Held>();
  /** The last change that was begun, by name. */
  readonly #turns = new Map<string, Promise<unknown>>();

  constructor({ endpoint, prefix = '/weftline/agents/', requestMs = REQUEST_MS, leaseMs = LEASE_MS }: EtcdOptions) {
    this.#client = new EtcdClient(endpoint);
    if (typeof prefix !== 'string') throw invalidArgument('prefix', prefix, 'a string');
    checkDuration('requestMs', requestMs);
    checkDuration('leaseMs', leaseMs);
    this.#prefix = prefix;
    this.#requestMs = requestMs;
    this.#leaseMs = leaseMs;
  }

  put(name: string, blob: Uint8Array): Promise<() => Promise<void>> {
    return this.#inTurn(name, async (wait) => {
      const lease = await this.#store(name, blob, wait);
      const held = this.#held.get(name) ?? this.#hold(name, lease);
      const before = held.lease;
      held.blob = blob;
      held.lease = lease;
      if (before !== lease) await this.#client.revoke(before, wait).catch(() => {});
      return held.release;
    });
  }

  delete(name: string): Promise<void> {
    return this.#inTurn(name, async (wait) => {
      await this.#client.delete(this.#prefix + name, wait);
      await this.#release(name, wait);
    });
  }

  async get(name: string, options: WaitOptions): Promise<Uint8Array> {
    const wait = startCall(options, this.#requestMs);
    const { deadline, signal } = wait;
    // A timeout of 0 asks for one look, which takes as long as a request may.
    const look = deadline.timeoutMs === 0 ? { ...wait, deadline: new Deadline(this.#requestMs) } : wait;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(LAST_PAUSE_MS, pause * 1.5)) {
      const isFirst = pause === FIRST_PAUSE_MS;
      let value: Uint8Array | undefined;
      try {
        value = await this.#client.get(this.#prefix + name, look);
      } catch (error) {
        // It has answered before: what is missing is the agent.
        if (isFirst || signal?.aborted === true || !deadline.isOver) throw error;
      }
      if (value !== undefined) return value;
      if (pause > deadline.leftMs) throw missing(name, this.#client.origin, deadline.timeoutMs);
      await new Promise((resolve) => setTimeout(resolve, pause));
      signal?.throwIfAborted();
    }
  }

  /** Returns the lease. */
  async #store(name: string, blob: Uint8Array, wait: EtcdWait): Promise<string> {
    const lease = await this.#client.grant(Math.ceil(this.#leaseMs / 1000), wait);
    await this.#client.put(this.#prefix + name, { value: blob, lease }, wait);
    return lease;
  }

  /**
   * One change of a name at a time: the lease that is renewed must be that of what was stored last. The time for a change
   * begins here, so that changes behind one that gets no answer do not add up.
   */
  #inTurn<T>(name: string, change: (wait: EtcdWait) => Promise<T>): Promise<T> {
    const wait = { deadline: new Deadline(this.#requestMs) };
    const begin = (): Promise<T> => change(wait);
    const turn = (this.#turns.get(name) ?? Promise.resolve()).then(begin, begin);
    this.#turns.set(name, turn);
    return turn;
  }

  #hold(name: string, lease: string): Held {
    const renew = (): void => void this.#inTurn(name, (wait) => this.#renew(name, wait)).catch(() => {});
    const timer = setInterval(renew, this.#leaseMs / RENEWALS_PER_LEASE);
    timer.unref();
    const release = (): Promise<void> => this.#inTurn(name, (wait) => this.#release(name, wait));
    const held = { blob: new Uint8Array(0), lease, timer, release };
    this.#held.set(name, held);
    return held;
  }

  /** A failure is left to the next one. */
  async #renew(name: string, wait: EtcdWait): Promise<void> {
    const held = this.#held.get(name);
    if (held === undefined || (await this.#client.keepAlive(held.lease, wait))) return;
    held.lease = await this.#store(name, held.blob, wait);
  }

  /** A value that another process has published under the name since then stays. */
  async #release(name: string, wait: EtcdWait): Promise<void> {
    const held = this.#held.get(name);
    if (held === undefined) return;
    this.#held.delete(name);
    clearInterval(held.timer);
    await this.#client.revoke(held.lease, wait);
  }
}

function checkDuration(name: string, ms: number): void {
  if (typeof ms === 'number' && ms >= 1 && ms <= MAX_MS) return;
  throw invalidArgument(name, ms, `a number of milliseconds from 1 to ${MAX_MS}`);
}

function missing(name: string, endpoint: string, timeoutMs: number): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `Agent ${name} has published nothing in etcd at ${endpoint} within ${timeoutMs} ms, or its process has ended`,
    { details: { peer: name, endpoint, timeoutMs } },
  );
}
