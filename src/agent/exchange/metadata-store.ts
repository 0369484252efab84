// Metadata under agents' names in a store that all of them reach.
import type { Store, WaitOptions } from '../../world/store.ts';
import type { Agent } from '../agent.ts';
import type { MetadataOptions } from '../agent-options.ts';

const KEY_PREFIX = 'agent/';

/** Implementations: the world's store, etcd. */
export interface MetadataStore {
  put(name: string, blob: Uint8Array): Promise<void>;
  /** Waits until there is some. Fails with WL_TIMEOUT, naming the agent that is missing. */
  get(name: string, options: WaitOptions): Promise<Uint8Array>;
  delete(name: string): Promise<void>;
}

/** Tells all agents that reach the store; again after memory was registered or deregistered. */
export async function publishMetadata(agent: Agent, store: MetadataStore, options?: MetadataOptions): Promise<void> {
  await store.put(agent.name, agent.localMetadata(options));
}

/** Loads what an agent has published, as soon as it has. Returns its name. */
export async function loadPublished(
  agent: Agent,
  store: MetadataStore,
  name: string,
  options?: WaitOptions,
): Promise<string> {
  return agent.loadRemoteMetadata(await store.get(name, { timeoutMs: agent.settings.timeoutMs, ...options }));
}

/** Takes it back; who has loaded it keeps it. */
export async function withdrawMetadata(agent: Agent, store: MetadataStore): Promise<void> {
  await store.delete(agent.name);
}

/** The rendezvous store of a world: `worldMetadataStore(world.store)`. */
export function worldMetadataStore(store: Store): MetadataStore {
  return {
    put: (name, blob) => store.set(KEY_PREFIX + name, blob),
    get: (name, options) => store.get(KEY_PREFIX + name, options),
    delete: async (name) => void (await store.delete(KEY_PREFIX + name)),
  };
}
