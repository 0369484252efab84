// The peers that an agent knows, one life of each.
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { AgentMetadata } from './metadata.ts';
import { RemoteAgent } from './remote-agent.ts';

export class RemoteAgents {
  readonly #known = new Map<string, RemoteAgent>();

  /** Fails with WL_INVALID_ARGUMENT if there is none of the name; `asking` is this side's. */
  get(name: string, asking: string): RemoteAgent {
    const found = this.#known.get(name);
    if (found !== undefined) return found;
    const known = [...this.#known.keys()].join(', ') || 'none yet';
    throw invalidArgument('peer', name, `one whose metadata agent ${asking} has loaded (${known})`);
  }

  /** Returns the name. See Agent.loadRemoteMetadata. */
  async load(metadata: AgentMetadata): Promise<string> {
    const { name, incarnation } = metadata;
    const known = this.#known.get(name);
    if (known !== undefined && incarnation < known.incarnation) {
      throw new WeftlineError(
        'WL_STALE',
        `These metadata of agent ${name} are of incarnation ${incarnation}, but a later one is known, ${known.incarnation}`,
        { details: { peer: name, incarnation, known: known.incarnation } },
      );
    }
    if (known?.incarnation === incarnation) {
      known.learn(metadata);
      return name;
    }
    const remote = new RemoteAgent(metadata);
    remote.learn(metadata);
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
    const all = [...this.#known.values()];
    this.#known.clear();
    await Promise.all(all.map((remote) => remote.end(error)));
  }
}

function gone(name: string, what: string): WeftlineError {
  return new WeftlineError('WL_STALE', `Agent ${name} ${what}: prepare its transfers anew`, {
    details: { peer: name },
  });
}
