// The peers that an agent knows, one life of each.
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { CallWait } from '../core/deadline.ts';
import type { AgentMetadata } from './metadata.ts';
import { RemoteAgent } from './remote-agent.ts';

/** Makes a link, which proves that the peer of these metadata is the one that answers. */
export type Asking = (peer: RemoteAgent, wait: CallWait) => Promise<unknown>;

export class RemoteAgents {
  readonly #ask: Asking;
  readonly #known = new Map<string, RemoteAgent>();
  /** Not known yet: of another life than the one that is, and being asked. */
  readonly #asked = new Set<RemoteAgent>();

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
   * differ between hosts: one that is not the known one must give a link before it takes its place. No failure will do, as
   * most come before anybody is asked.
   */
  async load(metadata: AgentMetadata, wait: CallWait): Promise<string> {
    const { name, incarnation } = metadata;
    const known = this.#known.get(name);
    if (known?.incarnation === incarnation) {
      known.learn(metadata);
      return name;
    }
    const remote = new RemoteAgent(metadata);
    remote.learn(metadata);
    if (known !== undefined) {
      await this.#requireAnswer(remote, known, wait);
      // Another call may have loaded this life meanwhile, or a further one.
      if (this.#known.get(name) !== known) {
        await remote.end(gone(name, 'was loaded twice at a time'));
        return this.load(metadata, wait);
      }
    }
    this.#known.set(name, remote);
    await known?.end(gone(name, `has restarted: metadata of incarnation ${incarnation} were loaded`));
    return name;
  }

  async forget(name: string): Promise<boolean> {
    const known = this.#known.get(name);
    if (known === undefined) return false;
    this.#known.delete(name);
    await known.end(gone(name, 'was invalidated'));
    return true;
  }

  async close(error: WeftlineError): Promise<void> {
    const all = [...this.#known.values(), ...this.#asked];
    this.#known.clear();
    await Promise.all(all.map((remote) => remote.end(error)));
  }

  /** Fails with WL_STALE if the life gives no link. */
  async #requireAnswer(remote: RemoteAgent, known: RemoteAgent, wait: CallWait): Promise<void> {
    const { name, incarnation } = remote;
    this.#asked.add(remote);
    try {
      await this.#ask(remote, wait);
    } catch (cause) {
      if (remote.ended !== undefined) throw remote.ended;
      wait.signal?.throwIfAborted();
      await remote.end(gone(name, 'gave no link'));
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new WeftlineError(
        'WL_STALE',
        `These metadata of agent ${name} are of incarnation ${incarnation}, but another one is known, ${known.incarnation}, and that of the metadata gives no link: ${why}; if it is the later one all the same, forget the known one first (agent.invalidate)`,
        { details: { peer: name, incarnation, known: known.incarnation }, cause },
      );
    } finally {
      this.#asked.delete(remote);
    }
  }
}

function gone(name: string, what: string): WeftlineError {
  return new WeftlineError('WL_STALE', `Agent ${name} ${what}: prepare its transfers anew`, {
    details: { peer: name },
  });
}
