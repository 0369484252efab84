// The backends there are, each loaded when an agent first wants it.
import { type BackendName, backendNames, type CreateBackend } from '../backend.ts';

const loaders: Readonly<Partial<Record<BackendName, () => Promise<CreateBackend>>>> = {
  local: async () => (await import('./local/local-backend.ts')).createBackend,
  ucx: async () => (await import('./ucx/ucx-backend.ts')).createUcxBackend,
  multipath: async () => (await import('./multipath/multipath-backend.ts')).createBackend,
};

/** In the order of preference. */
export function knownBackends(): readonly BackendName[] {
  return backendNames.filter((name) => loaders[name] !== undefined);
}

/** One of `knownBackends`. */
export function loadBackend(name: BackendName): CreateBackend {
  return async (context) => (await (loaders[name] as () => Promise<CreateBackend>)())(context);
}
