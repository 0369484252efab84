// The backends there are, in the order of preference, each loaded when an agent first wants it. A new one is a folder of its
// own and a line here: agents, metadata, commands and the tests that all backends pass take their names from this table.
import { activeRdmaPorts, localFiles } from '../../native/file-probe.ts';
import type { Backend, CreateBackend } from '../backend.ts';
import { withDeviceMemory } from '../staging/staged-backend.ts';

interface BackendEntry<Name extends string> {
  readonly load: () => Promise<CreateBackend<Name>>;
  /** It carries host memory; other memory is staged. */
  readonly isStaged?: boolean;
  /** See `whyOnlyListed`. Left out: never. */
  readonly whyOnlyListed?: () => string | undefined;
}

type BackendTable<Name extends string> = { readonly [Key in Name]: BackendEntry<Key> };

const backends = tableOf({
  local: { load: async () => (await import('./local/local-backend.ts')).createBackend },
  verbs: {
    load: async () => (await import('./verbs/verbs-backend.ts')).createBackend,
    isStaged: true,
    whyOnlyListed: whyNoRdma,
  },
  ucx: {
    load: async () => (await import('./ucx/ucx-backend.ts')).createBackend,
    isStaged: true,
    whyOnlyListed: whyNoRdma,
  },
  multipath: { load: async () => (await import('./multipath/multipath-backend.ts')).createBackend, isStaged: true },
});

/** What can move the bytes of an agent. */
export type BackendName = keyof typeof backends;

/** Names of all backends, in the order of preference. */
export const backendNames = Object.keys(backends) as readonly BackendName[];

/** A backend of the table. */
export type NamedBackend = Backend<BackendName>;

/**
 * Why an agent that was given no list of backends does not start this one, as the end of a sentence; undefined if it
 * does.
 */
export function whyOnlyListed(name: BackendName): string | undefined {
  return backends[name].whyOnlyListed?.();
}

export function loadBackend(name: BackendName): CreateBackend<BackendName> {
  const entry: BackendEntry<BackendName> = backends[name];
  return async (context) => {
    const createBackend = await entry.load();
    return (entry.isStaged === true ? withDeviceMemory(createBackend) : createBackend)(context);
  };
}

/** The backend itself, for the thread that stages for it. */
export function loadHostBackend(name: string): Promise<CreateBackend<BackendName>> {
  return backends[name as BackendName].load();
}

/** These open ports of their own, so they are not even loaded where they would not be chosen. */
function whyNoRdma(): string | undefined {
  if (activeRdmaPorts(localFiles()).length > 0) return undefined;
  return 'this host has no RDMA device with an active port; to use it all the same, name it in the option backends of Agent.create';
}

/** Each name is that of its backend. Declarations of the package then show the names and no module of a backend. */
function tableOf<Name extends string>(table: BackendTable<Name>): BackendTable<Name> {
  return table;
}
