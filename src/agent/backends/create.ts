// The backends there are, each loaded when an agent first wants it.
import { type BackendName, backendNames, type CreateBackend } from '../backend.ts';

type Loader = () => Promise<{ readonly create: CreateBackend }>;

const loaders: Readonly<Partial<Record<BackendName, Loader>>> = {
  local: async () => ({ create: (await import('./local/local-backend.ts')).createBackend }),
  multipath: async () => ({ create: (await import('./multipath/multipath-backend.ts')).createMultipathBackend }),
};

/** In the order of preference. */
export function knownBackends(): readonly BackendName[] {
  return backendNames.filter((name) => loaders[name] !== undefined);
}

/** One of `knownBackends`. */
export function loadBackend(name: BackendName): CreateBackend {
  return async (context) => (await (loaders[name] as Loader)()).create(context);
}
