// A peer as this agent knows it: its metadata, and the links to it.
import { WeftlineError } from '../core/errors.ts';
import { checkTimeout } from '../world/store.ts';
import type { MemoryKind } from './agent-memory.ts';
import type { Backend, BackendLink, BackendName, BackendPeer, BackendRemoteRegion, ConnectOptions } from './backend.ts';
import type { Addressed } from './descriptors.ts';
import type { AgentMetadata, RegionMetadata } from './metadata.ts';

/** Memory of a peer, as its metadata name it. */
export interface RemoteMemory extends Addressed {
  readonly name: string;
  readonly number: number;
  readonly kind: MemoryKind;
}

interface LinkEntry {
  readonly link: BackendLink;
  readonly regions: Map<number, BackendRemoteRegion>;
}

/** What is being connected, or is: all who ask meanwhile share it, and the first of them gave the signal. */
interface PendingLink {
  readonly entry: Promise<LinkEntry>;
  readonly signal: AbortSignal | undefined;
}

export class RemoteAgent {
  readonly name: string;
  readonly incarnation: string;
  readonly #host: string;
  readonly #process: number;
  readonly #connections = new Map<BackendName, Uint8Array>();
  readonly #regions = new Map<number, RegionMetadata>();
  readonly #links = new Map<BackendName, PendingLink>();
  readonly #open = new Map<BackendName, LinkEntry>();
  /** Why the peer took no link by a backend. */
  readonly #refusals = new Map<BackendName, string>();
  /** Ends what is being connected. */
  readonly #ending = new AbortController();
  /** Why nothing of it counts any more. */
  #ended: WeftlineError | undefined;

  constructor({ name, incarnation, host, process }: AgentMetadata) {
    this.name = name;
    this.incarnation = incarnation;
    this.#host = host;
    this.#process = process;
  }

  get ended(): WeftlineError | undefined {
    return this.#ended;
  }

  /** Adds what the metadata tell; regions that they withdraw, or that whole metadata do not list, are gone. */
  learn({ isWhole, connections, regions, withdrawn }: AgentMetadata): void {
    for (const [name, info] of connections) this.#connections.set(name, info);
    const gone = new Set(isWhole ? this.#regions.keys() : [...withdrawn, ...this.#unheard()]);
    for (const region of regions) {
      gone.delete(region.number);
      this.#regions.set(region.number, region);
    }
    for (const number of gone) this.#forget(number);
    // There may be room by now.
    this.#refusals.clear();
  }

  /** Until its metadata are loaded again or a link by that backend succeeds, another backend is chosen. */
  noteRefusal(backend: BackendName, why: string): void {
    this.#refusals.set(backend, why);
  }

  refusalOf(backend: BackendName): string | undefined {
    return this.#refusals.get(backend);
  }

  /** In the order of registration. */
  get memory(): readonly (RemoteMemory & { readonly info: RegionMetadata['info'] })[] {
    return [...this.#regions.values()]
      .toSorted((a, b) => a.number - b.number)
      .map(({ name, number, kind, address, bytes, info }) => ({ name, number, kind, address, length: bytes, info }));
  }

  /** What a backend needs to know to reach it; undefined if the peer has not got the backend. */
  peer(backend: BackendName): BackendPeer | undefined {
    const connectionInfo = this.#connections.get(backend);
    if (connectionInfo === undefined) return undefined;
    const { name, incarnation } = this;
    return { name, incarnation, host: this.#host, process: this.#process, connectionInfo };
  }

  /** The link of the backend: made at the first call, and again once it broke. */
  async link(backend: Backend, options: ConnectOptions): Promise<BackendLink> {
    return (await this.#entry(backend, options)).link;
  }

  /** The link that is there, if it is usable. */
  openLink(backend: BackendName): BackendLink | undefined {
    const entry = this.#open.get(backend);
    return entry?.link.error === undefined ? entry?.link : undefined;
  }

  /** A region as the backend's link knows it. */
  async region(backend: Backend, number: number, options: ConnectOptions): Promise<BackendRemoteRegion> {
    const entry = await this.#entry(backend, options);
    const known = entry.regions.get(number);
    if (known !== undefined) return known;
    const region = this.#regions.get(number);
    if (region === undefined) {
      throw new WeftlineError('WL_UNAUTHORIZED', `Agent ${this.name} has taken back its memory ${number}`, {
        details: { peer: this.name, region: number },
      });
    }
    const { info, kind, bytes } = region;
    const imported = entry.link.importRegion(info.get(backend.name) as Uint8Array, { kind, bytes });
    entry.regions.set(number, imported);
    return imported;
  }

  /** All links close, and all later calls fail with the error. */
  async end(error: WeftlineError): Promise<void> {
    this.#ended ??= error;
    this.#ending.abort(this.#ended);
    const links = [...this.#links.values()];
    this.#links.clear();
    this.#open.clear();
    await Promise.allSettled(links.map(async ({ entry }) => (await entry).link.close()));
  }

  /** Regions that the peer has taken back, as its links see. */
  *#unheard(): Generator<number> {
    for (const { link, regions } of this.#open.values()) {
      for (const [number, region] of regions) if (link.isWithdrawn?.(region) === true) yield number;
    }
  }

  #forget(number: number): void {
    this.#regions.delete(number);
    for (const { link, regions } of this.#open.values()) {
      const imported = regions.get(number);
      regions.delete(number);
      if (imported !== undefined) link.releaseRegion?.(imported);
    }
  }

  async #entry(backend: Backend, options: ConnectOptions): Promise<LinkEntry> {
    if (this.#ended !== undefined) throw this.#ended;
    const open = this.#open.get(backend.name);
    if (open !== undefined) {
      if (open.link.error === undefined) return open;
      this.#open.delete(backend.name);
      this.#links.delete(backend.name);
      await open.link.close();
    }
    for (let shared = this.#links.get(backend.name); shared !== undefined; shared = this.#links.get(backend.name)) {
      try {
        return await this.#share(shared, backend.name, options);
      } catch (error) {
        // Whoever asked first was to have it cancelled; this caller was not.
        if (shared.signal?.aborted !== true || shared.signal === options.signal || this.#ended !== undefined)
          throw error;
      }
    }
    const { signal } = options;
    signal?.throwIfAborted();
    const pending = { entry: this.#connect(backend, options), signal };
    this.#links.set(backend.name, pending);
    // ORDER: before those hear of it who wait, so that they find the next one.
    pending.entry.catch(() => {
      if (this.#links.get(backend.name) === pending) this.#links.delete(backend.name);
    });
    return pending.entry;
  }

  /** A connect that another caller began, until this one's own deadline or signal. */
  #share({ entry }: PendingLink, backend: BackendName, { timeoutMs, signal }: ConnectOptions): Promise<LinkEntry> {
    checkTimeout(timeoutMs);
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      const settle = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
      };
      const fail = (error: unknown): void => {
        settle();
        reject(error);
      };
      const abort = (): void => fail(signal?.reason);
      signal?.addEventListener('abort', abort);
      const timer = setTimeout(() => fail(this.#late(backend, timeoutMs)), timeoutMs);
      entry.then(resolve, reject).finally(settle);
    });
  }

  #late(backend: BackendName, timeoutMs: number): WeftlineError {
    return new WeftlineError(
      'WL_TIMEOUT',
      `Timed out linking to agent ${this.name} by ${backend} after ${timeoutMs} ms`,
      {
        details: { peer: this.name, backend, timeoutMs },
      },
    );
  }

  async #connect(backend: Backend, options: ConnectOptions): Promise<LinkEntry> {
    const signals = [this.#ending.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const peer = this.peer(backend.name) as BackendPeer;
    const link = await backend.connect(peer, { ...options, signal: AbortSignal.any(signals) });
    const entry = { link, regions: new Map<number, BackendRemoteRegion>() };
    if (this.#ended !== undefined) {
      await link.close();
      throw this.#ended;
    }
    this.#open.set(backend.name, entry);
    this.#refusals.delete(backend.name);
    return entry;
  }
}
