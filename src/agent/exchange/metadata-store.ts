// Metadata under agents' names in a store that all of them reach.
import { remaining, startCall, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Store } from '../../world/store.ts';
import type { MetadataOptions } from '../agent-options.ts';
import type { Agent } from '../agent.ts';

const KEY_PREFIX = 'agent/';
const STALE_PAUSE_MS = 50;
/** The share of the time that is left that one life of an agent gets to answer: newer metadata may come while a dead one is silent. */
const ANSWER_SHARE = 1 / 4;
const MIN_ANSWER_MS = 1000;

/** Implementations: the world's store, etcd. */
export interface MetadataStore {
  /** A function that is returned takes back what nobody has replaced, when the agent closes; always the same of a name. */
  put(name: string, blob: Uint8Array): Promise<(() => Promise<void>) | void>;
  /** Waits until there is some. Fails with WL_TIMEOUT, naming the agent that is missing. */
  get(name: string, options: WaitOptions): Promise<Uint8Array>;
  /** Takes back what was published under a name. */
  delete(name: string): Promise<void>;
}

/**
 * Tells all agents that reach the store; again after memory was registered or a registration closed. In etcd they are gone when the
 * agent closes, and some time after its process has ended.
 * @param agent Whose metadata.
 * @param store Where to; each name has one entry.
 * @param options Which part of them.
 */
export async function publishMetadata(agent: Agent, store: MetadataStore, options?: MetadataOptions): Promise<void> {
  requireAgent(agent);
  requireStore(store);
  const release = await store.put(agent.name, agent.localMetadata(options));
  if (release === undefined) return;
  try {
    agent.closeWith(release);
  } catch (error) {
    // It was closed meanwhile, so what was published too late is taken back here.
    await release();
    throw error;
  }
}

/** What takes metadata: an agent, or what has one. */
interface MetadataLoader {
  readonly settings: Pick<Settings, 'timeoutMs'>;
  loadRemoteMetadata(blob: Uint8Array, options?: WaitOptions): Promise<string>;
}

/**
 * Loads what an agent has published, as soon as it has. Returns its name. While the store still holds what an earlier life
 * of the agent published than the one that is known here, it waits for newer ones, and fails with WL_STALE if none come.
 * @param agent Which learns them.
 * @param store Where from.
 * @param name Of the agent that published.
 * @param options How long to wait.
 */
export async function loadPublished(
  agent: MetadataLoader,
  store: MetadataStore,
  name: string,
  options?: WaitOptions,
): Promise<string> {
  requireCalls('agent', agent, ['loadRemoteMetadata'], 'an agent of Agent.create()');
  requireStore(store);
  if (typeof name !== 'string') throw invalidArgument('name', name, 'a string');
  const wait = startCall(options ?? {}, agent.settings.timeoutMs);
  for (;;) {
    const blob = await store.get(name, remaining(wait));
    const { leftMs } = wait.deadline;
    const timeoutMs = Math.ceil(Math.min(leftMs, Math.max(MIN_ANSWER_MS, leftMs * ANSWER_SHARE)));
    try {
      return await agent.loadRemoteMetadata(blob, { ...remaining(wait), timeoutMs });
    } catch (error) {
      const mayBeOld = error instanceof WeftlineError && (error.code === 'WL_STALE' || error.code === 'WL_TIMEOUT');
      if (!mayBeOld || STALE_PAUSE_MS > wait.deadline.leftMs) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, STALE_PAUSE_MS));
    wait.signal?.throwIfAborted();
  }
}

/**
 * Takes it back; agents that have loaded it keep it.
 * @param agent Whose metadata.
 * @param store Where they are.
 */
export async function withdrawMetadata(agent: Agent, store: MetadataStore): Promise<void> {
  requireAgent(agent);
  requireStore(store);
  await store.delete(agent.name);
}

/**
 * The rendezvous store of a world: `worldMetadataStore(world.store)`.
 * @param store `world.store`, or that of a group.
 */
export function worldMetadataStore(store: Store): MetadataStore {
  requireCalls('store', store, ['set', 'get', 'delete'], 'world.store, or the store of a group');
  return {
    put: (name, blob) => store.set(KEY_PREFIX + name, blob),
    get: (name, options) => store.get(KEY_PREFIX + name, options),
    delete: async (name) => void (await store.delete(KEY_PREFIX + name)),
  };
}

// Checks of the agent and the store that calls for metadata take, before anything is sent.

/** Fails with WL_INVALID_ARGUMENT for what has no metadata of its own, or takes none. */
export function requireAgent(agent: unknown): void {
  requireCalls('agent', agent, ['localMetadata', 'loadRemoteMetadata'], 'an agent of Agent.create()');
}

function requireStore(store: unknown): void {
  const expected =
    'a store of metadata: worldMetadataStore(world.store), etcdMetadataStore({ endpoint }), or one like them';
  requireCalls('store', store, ['put', 'get', 'delete'], expected);
}

function requireCalls(name: string, value: unknown, calls: readonly string[], expected: string): void {
  const given = typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
  if (!calls.every((call) => typeof given[call] === 'function')) throw invalidArgument(name, value, expected);
}
