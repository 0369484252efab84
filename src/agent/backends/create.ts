// The backends there are, each loaded when an agent first wants it.
import { localFiles } from '../../native/file-probe.ts';
import { activeRdmaPorts } from '../../native/rdma-ports.ts';
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

/**
 * Why an agent that was given no list of backends does not start this one, as the end of a sentence; undefined if it
 * does. UCX opens ports and shared memory of its own, so it is not even loaded where it would not be chosen.
 */
export function whyOnlyListed(name: BackendName): string | undefined {
  if (name !== 'ucx' || activeRdmaPorts(localFiles()).length > 0) return undefined;
  return 'this host has no RDMA device with an active port; to use it all the same, name it in the option backends of Agent.create';
}

/** One of `knownBackends`. */
export function loadBackend(name: BackendName): CreateBackend {
  return async (context) => (await (loaders[name] as () => Promise<CreateBackend>)())(context);
}
