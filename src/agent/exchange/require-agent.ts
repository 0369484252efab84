// Checks of the agent and the store that calls for metadata take, before anything is sent.
import { invalidArgument } from '../../core/errors.ts';

/** Fails with WL_INVALID_ARGUMENT for what has no metadata of its own, or takes none. */
export function requireAgent(agent: unknown): void {
  requireCalls('agent', agent, ['localMetadata', 'loadRemoteMetadata'], 'an agent of Agent.create()');
}

/** Of what only takes metadata. */
export function requireLoader(agent: unknown): void {
  requireCalls('agent', agent, ['loadRemoteMetadata'], 'an agent of Agent.create()');
}

export function requireStore(store: unknown): void {
  const expected =
    'a store of metadata: worldMetadataStore(world.store), etcdMetadataStore({ endpoint }), or one like them';
  requireCalls('store', store, ['put', 'get', 'delete'], expected);
}

export function requireText(name: string, value: unknown): void {
  if (typeof value !== 'string') throw invalidArgument(name, value, 'a string');
}

export function requireCalls(name: string, value: unknown, calls: readonly string[], expected: string): void {
  const given = typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
  if (!calls.every((call) => typeof given[call] === 'function')) throw invalidArgument(name, value, expected);
}
