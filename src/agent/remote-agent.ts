// A peer as this agent knows it: its metadata, and the links to it.
import { Deadline, within } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import type { BackendLink, BackendPeer, BackendRemoteRegion, ConnectOptions, MemoryKind } from './backend.ts';
import type { BackendName, NamedBackend } from './backends/backend-table.ts';
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

/** Every stage of a call that needs a link has the deadline of the call. */
export type LinkWait = ConnectOptions & { readonly deadline: Deadline };

/** What is being connected, or is: all who ask meanwhile share it, and the first of them gave the deadline and the signal. */
interface PendingLink {
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
  readonly entry: Promise<LinkEntry>;
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
  /** Why the peer took no link by a backend: another one is chosen until its metadata are loaded again or a link succeeds. */
  readonly refusals = new Map<BackendName, string>();
  /** Ends what is being connected. */
  readonly #ending = new AbortController();
  /** Why nothing of it counts any more. */
  ended: WeftlineError | undefined;

  constructor({ name, incarnation, host, process }: AgentMetadata) {
    this.name = name;
    this.incarnation = incarnation;
    this.#host = host;
    this.#process = process;
  }

  /** Adds what the metadata tell; regions that they withdraw, or that whole metadata do not list, are gone. */
  learn({ isWhole, connections, regions, withdrawn }: AgentMetadata): void {
    for (const [name, info] of connections) this.#connections.set(name, info);
    const left = new Set(isWhole ? this.#regions.keys() : [...withdrawn, ...this.#unheard()]);
    for (const region of regions) {
      left.delete(region.number);
      this.#regions.set(region.number, region);
    }
    for (const number of left) this.#forget(number);
    // There may be room by now.
    this.refusals.clear();
  }

  /** This side needs the memory no more. */
  forget(numbers: readonly number[]): void {
    for (const number of numbers) this.#forget(number);
  }

  /** Memory of the peer, in the order of registration. */
  get memory(): readonly (RemoteMemory & { readonly info: RegionMetadata['info'] })[] {
    return [...this.#regions.values()]
      .toSorted((a, b) => a.number - b.number)
      .map(({ name, number, kind, address, bytes, info }) => ({ name, number, kind, address, length: bytes, info }));
  }

  /** What a backend needs to know to reach it; undefined if the peer does not have the backend. */
  peer(backend: BackendName): BackendPeer | undefined {
    const connectionInfo = this.#connections.get(backend);
    if (connectionInfo === undefined) return undefined;
    const { name, incarnation } = this;
    return { name, incarnation, host: this.#host, process: this.#process, connectionInfo };
  }

  /** The link of the backend: made at the first call, and again once it broke. */
  async link(backend: NamedBackend, options: LinkWait): Promise<BackendLink> {
    return (await this.#entry(backend, options)).link;
  }

  /** The link that is there, if it is usable. */
  openLink(backend: BackendName): BackendLink | undefined {
    const entry = this.#open.get(backend);
    return entry?.link.error === undefined ? entry?.link : undefined;
  }

  /** Whether a link to it works, as far as can be seen at once. */
  get isLinked(): boolean {
    for (const { link } of this.#open.values()) {
      link.checkPeer?.();
      if (link.error === undefined) return true;
    }
    return false;
  }

  /** A region as the backend's link knows it. */
  async region(backend: NamedBackend, number: number, options: LinkWait): Promise<BackendRemoteRegion> {
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
    this.ended ??= error;
    this.#ending.abort(this.ended);
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

  async #entry(backend: NamedBackend, options: LinkWait): Promise<LinkEntry> {
    if (this.ended !== undefined) throw this.ended;
    const open = this.#open.get(backend.name);
    if (open !== undefined) {
      if (open.link.error === undefined) return open;
      this.#open.delete(backend.name);
      this.#links.delete(backend.name);
      await within(open.link.close(), options, () => this.#late(backend.name, options.deadline));
    }
    for (let shared = this.#links.get(backend.name); shared !== undefined; shared = this.#links.get(backend.name)) {
      try {
        return await within(shared.entry, options, () => this.#late(backend.name, options.deadline));
      } catch (error) {
        // The first caller cancelled, or had less time; this caller goes on.
        if (!hasGivenUp(shared, options, error) || this.ended !== undefined) throw error;
      }
    }
    const { signal, deadline } = options;
    signal?.throwIfAborted();
    const pending = { entry: this.#connect(backend, options), signal, deadline };
    this.#links.set(backend.name, pending);
    // ORDER: before the waiting callers hear of it, so that they find the next one.
    pending.entry.catch(() => {
      if (this.#links.get(backend.name) === pending) this.#links.delete(backend.name);
    });
    return pending.entry;
  }

  #late(backend: BackendName, { timeoutMs }: Deadline): WeftlineError {
    return new WeftlineError(
      'WL_TIMEOUT',
      `Timed out linking to agent ${this.name} over ${backend} within ${timeoutMs} ms`,
      {
        details: { peer: this.name, backend, timeoutMs },
      },
    );
  }

  async #connect(backend: NamedBackend, options: LinkWait): Promise<LinkEntry> {
    const signals = [this.#ending.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const peer = this.peer(backend.name) as BackendPeer;
    let link: BackendLink;
    try {
      link = await backend.connect(peer, { ...options, signal: AbortSignal.any(signals) });
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT') throw error;
      // The backend knows an address, and not whose it is.
      const details = { ...error.details, peer: this.name, backend: backend.name };
      const what = `Timed out linking to agent ${this.name} over ${backend.name}: ${error.message}`;
      throw new WeftlineError('WL_TIMEOUT', what, { details, cause: error });
    }
    const entry = { link, regions: new Map<number, BackendRemoteRegion>() };
    if (this.ended !== undefined) {
      await link.close();
      throw this.ended;
    }
    log('agent', 'info', `linked to ${this.name} by ${backend.name}`);
    this.#open.set(backend.name, entry);
    this.refusals.delete(backend.name);
    return entry;
  }
}

/** True if the connect ended for a reason of its first caller that does not hold for those that share it. */
function hasGivenUp(first: PendingLink, own: LinkWait, error: unknown): boolean {
  if (own.deadline.isOver || own.signal?.aborted === true) return false;
  // A timer may be a little earlier than the clock says.
  const isLate = error instanceof WeftlineError && error.code === 'WL_TIMEOUT';
  const hadLess = isLate && first.deadline.endsAt < own.deadline.endsAt;
  return first.signal?.aborted === true || first.deadline.isOver || hadLess;
}

// The peers that an agent knows, one life of each.

/** Makes a link, and resolves once the peer of these metadata has answered itself. */
type Asking = (peer: RemoteAgent, wait: LinkWait) => Promise<unknown>;

/** How long the known life has to answer, or its link to break, before it counts as gone, or as there; half of the call at most. */
const KNOWN_LIFE_MS = 2000;
const LOOK_MS = 20;

/** Metadata to load. */
interface Load {
  readonly metadata: AgentMetadata;
  readonly wait: LinkWait;
  /** The peer itself told them just now, so it lives. */
  readonly isHeard: boolean;
}

export class RemoteAgents {
  readonly #ask: Asking;
  readonly #known = new Map<string, RemoteAgent>();
  /** Lives that are not known yet and are being asked: the known one is another. */
  readonly #asked = new Set<RemoteAgent>();
  /** Loads under way, by life. Metadata of one are taken in the order of their calls, as each adds to those before. */
  readonly #loading = new Map<string, Promise<unknown>>();
  #closed: WeftlineError | undefined;

  constructor(ask: Asking) {
    this.#ask = ask;
  }

  find(name: string): RemoteAgent | undefined {
    return this.#known.get(name);
  }

  /** Fails with WL_INVALID_ARGUMENT if there is none of the name, WL_CLOSED after close(); `asking` is this side's. */
  get(name: string, asking: string): RemoteAgent {
    if (this.#closed !== undefined) throw this.#closed;
    const found = this.#known.get(name);
    if (found !== undefined) return found;
    const known = [...this.#known.keys()].join(', ') || 'none yet';
    throw invalidArgument('peer', name, `one whose metadata agent ${asking} has loaded (${known})`);
  }

  /**
   * Returns the name. See Agent.loadRemoteMetadata. No clock tells which of two lives came later, as clocks are set back and
   * differ between hosts: one that is not the known one takes its place if it answers and the known one does not, or if it
   * was heard itself.
   */
  load(metadata: AgentMetadata, wait: LinkWait, isHeard = false): Promise<string> {
    const life = `${metadata.incarnation} ${metadata.name}`;
    const before = this.#loading.get(life);
    const load = { metadata, wait, isHeard };
    const own = before === undefined ? this.#take(load) : this.#takeAfter(before, load);
    const over = Promise.allSettled([before, own]).then(() => {
      if (this.#loading.get(life) === over) this.#loading.delete(life);
    });
    this.#loading.set(life, over);
    return own;
  }

  async forget(name: string): Promise<boolean> {
    if (this.#closed !== undefined) throw this.#closed;
    const known = this.#known.get(name);
    if (known === undefined) return false;
    this.#known.delete(name);
    await known.end(gone(name, 'was forgotten', 'load its metadata, then prepare its transfers anew'));
    return true;
  }

  async close(error: WeftlineError): Promise<void> {
    this.#closed = error;
    const all = [...this.#known.values(), ...this.#asked];
    this.#known.clear();
    await Promise.all(all.map((remote) => remote.end(error)));
  }

  async #takeAfter(before: Promise<unknown>, load: Load): Promise<string> {
    const { metadata, wait } = load;
    const { name } = metadata;
    const { timeoutMs } = wait.deadline;
    await within(before, wait, () => {
      const what = `Timed out loading metadata of agent ${name} within ${timeoutMs} ms: earlier ones are still being loaded`;
      return new WeftlineError('WL_TIMEOUT', what, { details: { peer: name, timeoutMs } });
    });
    return this.#take(load);
  }

  async #take(load: Load): Promise<string> {
    if (this.#closed !== undefined) throw this.#closed;
    const { metadata, wait, isHeard } = load;
    const { name, incarnation } = metadata;
    const known = this.#known.get(name);
    if (known?.incarnation === incarnation) {
      known.learn(metadata);
      return name;
    }
    const remote = new RemoteAgent(metadata);
    remote.learn(metadata);
    if (known !== undefined && !isHeard) {
      await this.#requireSuccessor(remote, known, wait);
      // Another call may have loaded a further life meanwhile, or this one, heard from the peer.
      if (this.#known.get(name) !== known) {
        await remote.end(gone(name, 'was loaded twice at a time', ANEW));
        return this.#take(load);
      }
    }
    this.#known.set(name, remote);
    await known?.end(gone(name, `has restarted: metadata of incarnation ${incarnation} were loaded`, ANEW));
    return name;
  }

  /** Fails with WL_STALE if the life is over, or that of `known` is not, as far as can be seen from here. */
  async #requireSuccessor(remote: RemoteAgent, known: RemoteAgent, wait: LinkWait): Promise<void> {
    const { name } = remote;
    this.#asked.add(remote);
    try {
      const failure = await this.#failureOf(remote, known.isLinked ? shareOf(wait) : wait);
      if (remote.ended !== undefined) throw remote.ended;
      // No failure will do, as most come before anybody is asked.
      if (failure !== undefined) {
        const how = 'if it is the later one all the same, forget the known one first (agent.forget)';
        throw stale(remote, known, `that of the metadata gives no link: ${failure.message}; ${how}`, failure);
      }
      if (await this.#isThere(known, shareOf(wait))) {
        const how = 'load again when its process has ended, or forget it first (agent.forget)';
        throw stale(remote, known, `that one is still there: ${how}`);
      }
    } catch (error) {
      await remote.end(gone(name, 'did not take the place of the life that is known', ANEW));
      throw error;
    } finally {
      this.#asked.delete(remote);
    }
  }

  /** Whether the known life is not over, as far as can be seen from here. */
  async #isThere(known: RemoteAgent, wait: LinkWait): Promise<boolean> {
    // The end of a peer may be seen here later than its next life is.
    while (known.isLinked) {
      if (wait.deadline.isOver) return true;
      await new Promise((resolve) => setTimeout(resolve, Math.min(LOOK_MS, wait.deadline.leftMs)));
      wait.signal?.throwIfAborted();
    }
    const failure = await this.#failureOf(known, wait);
    // There is no telling without room for a link, on whichever side.
    return failure === undefined || (failure instanceof WeftlineError && failure.code === 'WL_CAPACITY');
  }

  /** What the life did not answer for; undefined if it answered. */
  async #failureOf(remote: RemoteAgent, wait: LinkWait): Promise<Error | undefined> {
    try {
      await this.#ask(remote, wait);
      return undefined;
    } catch (error) {
      wait.signal?.throwIfAborted();
      return error instanceof Error ? error : new Error(String(error));
    }
  }
}

/** A part of the call's time, for what must not take all of it. */
function shareOf({ deadline, signal }: LinkWait): LinkWait {
  const timeoutMs = Math.ceil(Math.min(KNOWN_LIFE_MS, deadline.leftMs / 2));
  return { deadline: new Deadline(timeoutMs), timeoutMs, signal };
}

function stale(remote: RemoteAgent, known: RemoteAgent, why: string, cause?: Error): WeftlineError {
  const { name, incarnation } = remote;
  return new WeftlineError(
    'WL_STALE',
    `These metadata of agent ${name} are of incarnation ${incarnation}, but another one is known, ${known.incarnation}, and ${why}`,
    { details: { peer: name, incarnation, known: known.incarnation }, cause },
  );
}

/** What to do where the metadata of the present life are known. */
const ANEW = 'prepare its transfers anew';

function gone(name: string, what: string, advice: string): WeftlineError {
  return new WeftlineError('WL_STALE', `Agent ${name} ${what}: ${advice}`, {
    details: { peer: name },
  });
}
