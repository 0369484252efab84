// Metadata in etcd, under leases that end with the processes that published them.
import { WeftlineError } from '../../core/errors.ts';
import type { WaitOptions } from '../../world/store.ts';
import { EtcdClient } from './etcd-client.ts';
import type { MetadataStore } from './metadata-store.ts';

export interface EtcdOptions {
  /** Such as "http://10.0.0.7:2379". */
  readonly endpoint: string;
  /** Before each name; "/weftline/agents/" by default. */
  readonly prefix?: string;
  /** Of one request, in ms; 5000 by default. */
  readonly requestMs?: number;
  /**
   * How long metadata stay when the process that published them has ended, or has not come to renew them because a call
   * blocks its thread; then they come back with the next turn of its event loop. In ms; two minutes by default.
   */
  readonly leaseMs?: number;
}

const REQUEST_MS = 5000;
const LEASE_MS = 120_000;
/** A lease outlives two renewals that come to nothing. */
const RENEWALS_PER_LEASE = 3;
const FIRST_PAUSE_MS = 20;
const LAST_PAUSE_MS = 500;

/** Fails with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if something else answers. */
export function etcdMetadataStore(options: EtcdOptions): MetadataStore {
  return new EtcdStore(options);
}

/** What this process has published under a name. */
interface Held {
  blob: Uint8Array;
  lease: string;
  readonly timer: NodeJS.Timeout;
  /** The same function for every put, so that whoever is to call it can keep one. */
  readonly release: () => Promise<void>;
}

class EtcdStore implements MetadataStore {
  readonly #client: EtcdClient;
  readonly #endpoint: string;
  readonly #prefix: string;
  readonly #requestMs: number;
  readonly #leaseMs: number;
  readonly #held = new Map<string, Held>();
  /** By name: the last change that was begun. */
  readonly #turns = new Map<string, Promise<unknown>>();

  constructor({ endpoint, prefix = '/weftline/agents/', requestMs = REQUEST_MS, leaseMs = LEASE_MS }: EtcdOptions) {
    this.#client = new EtcdClient({ endpoint, requestMs });
    this.#endpoint = endpoint;
    this.#prefix = prefix;
    this.#requestMs = requestMs;
    this.#leaseMs = leaseMs;
  }

  put(name: string, blob: Uint8Array): Promise<() => Promise<void>> {
    return this.#inTurn(name, async () => {
      const lease = await this.#store(name, blob);
      const held = this.#held.get(name) ?? this.#hold(name, lease);
      const before = held.lease;
      held.blob = blob;
      held.lease = lease;
      if (before !== lease) await this.#client.revoke(before).catch(() => {});
      return held.release;
    });
  }

  delete(name: string): Promise<void> {
    return this.#inTurn(name, async () => {
      await this.#client.delete(this.#prefix + name);
      await this.#release(name);
    });
  }

  async get(name: string, { timeoutMs = this.#requestMs, signal }: WaitOptions): Promise<Uint8Array> {
    const end = performance.now() + timeoutMs;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(LAST_PAUSE_MS, pause * 1.5)) {
      const value = await this.#client.get(this.#prefix + name, signal);
      if (value !== undefined) return value;
      if (performance.now() + pause > end) throw missing(name, this.#endpoint, timeoutMs);
      await new Promise((resolve) => setTimeout(resolve, pause));
      signal?.throwIfAborted();
    }
  }

  /** Returns the lease. */
  async #store(name: string, blob: Uint8Array): Promise<string> {
    const lease = await this.#client.grant(Math.ceil(this.#leaseMs / 1000));
    await this.#client.put(this.#prefix + name, blob, lease);
    return lease;
  }

  /** One change of a name at a time: the lease that is renewed must be that of what was stored last. */
  #inTurn<T>(name: string, change: () => Promise<T>): Promise<T> {
    const turn = (this.#turns.get(name) ?? Promise.resolve()).then(change, change);
    this.#turns.set(name, turn);
    return turn;
  }

  #hold(name: string, lease: string): Held {
    const renew = (): void => void this.#inTurn(name, () => this.#renew(name)).catch(() => {});
    const timer = setInterval(renew, this.#leaseMs / RENEWALS_PER_LEASE);
    timer.unref();
    const release = (): Promise<void> => this.#inTurn(name, () => this.#release(name));
    const held = { blob: new Uint8Array(0), lease, timer, release };
    this.#held.set(name, held);
    return held;
  }

  /** A failure is left to the next one. */
  async #renew(name: string): Promise<void> {
    const held = this.#held.get(name);
    if (held === undefined || (await this.#client.keepAlive(held.lease))) return;
    held.lease = await this.#store(name, held.blob);
  }

  /** What another process has published under the name since stays. */
  async #release(name: string): Promise<void> {
    const held = this.#held.get(name);
    if (held === undefined) return;
    this.#held.delete(name);
    clearInterval(held.timer);
    await this.#client.revoke(held.lease);
  }
}

function missing(name: string, endpoint: string, timeoutMs: number): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `Agent ${name} has published nothing in etcd at ${endpoint} within ${timeoutMs} ms, or its process has ended`,
    { details: { peer: name, endpoint, timeoutMs } },
  );
}
