// The backends there are, each loaded when an agent first wants it.
import { type BackendName, backendNames, type CreateBackend } from '../backend.ts';

const loaders: Readonly<Partial<Record<BackendName, () => Promise<CreateBackend>>>> = {
  local: async () => (await import('./local/local-backend.ts')).createBackend,
};

/** The names that `loadBackend` knows, in the order of preference. */
export function knownBackends(): readonly BackendName[] {
  return backendNames.filter((name) => loaders[name] !== undefined);
}

export async function loadBackend(name: BackendName): Promise<CreateBackend | undefined> {
  return loaders[name]?.();
}
