// Metadata in etcd, under leases that end with the processes that published them.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { Deadline, startCall, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { EtcdClient, type EtcdWait } from './etcd-client.ts';
import type { MetadataStore } from './metadata-store.ts';

/** Where etcd is, and how long it keeps what a process that ended has published. */
export interface EtcdOptions {
  /** Such as "http://10.0.0.7:2379"; without user and password, which are refused. */
  readonly endpoint: string;
  /** Before each name; "/weftline/agents/" by default. */
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
  /** By name: the last change that was begun. */
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
