// The peers that an agent knows, one life of each.
import { Deadline, within } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { AgentMetadata } from './metadata.ts';
import { type LinkWait, RemoteAgent } from './remote-agent.ts';

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
  /** Not known yet: of another life than the one that is, and being asked. */
  readonly #asked = new Set<RemoteAgent>();
  /** By life. Metadata of one are taken in the order of their calls, as each adds to those before. */
  readonly #loading = new Map<string, Promise<unknown>>();
  #closed: WeftlineError | undefined;

  constructor(ask: Asking) {
    this.#ask = ask;
  }

  /** Fails with WL_INVALID_ARGUMENT if there is none of the name; `asking` is this side's. */
  get(name: string, asking: string): RemoteAgent {
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
    const known = this.#known.get(name);
    if (known === undefined) return false;
    this.#known.delete(name);
    await known.end(gone(name, 'was invalidated'));
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
        await remote.end(gone(name, 'was loaded twice at a time'));
        return this.#take(load);
      }
    }
    this.#known.set(name, remote);
    await known?.end(gone(name, `has restarted: metadata of incarnation ${incarnation} were loaded`));
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
        const how = 'if it is the later one all the same, forget the known one first (agent.invalidate)';
        throw stale(remote, known, `that of the metadata gives no link: ${failure.message}; ${how}`, failure);
      }
      if (await this.#isThere(known, shareOf(wait))) {
        const how = 'load again when its process has ended, or forget it first (agent.invalidate)';
        throw stale(remote, known, `that one is still there: ${how}`);
      }
    } catch (error) {
      await remote.end(gone(name, 'did not take the place of the life that is known'));
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
    // Without room for a link, of whichever side, there is no telling.
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

/** For what must not take all the time of the call. */
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

function gone(name: string, what: string): WeftlineError {
  return new WeftlineError('WL_STALE', `Agent ${name} ${what}: prepare its transfers anew`, {
    details: { peer: name },
  });
}
