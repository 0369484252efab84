// The backends there are, in the order of preference, each loaded when an agent first wants it. A new one is a folder of its
// own and a line here: agents, metadata, commands and the tests that all backends pass take their names from this table.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { requirePackageFiles } from '../../core/package-file.ts';
import { quote } from '../../core/quote.ts';
import { activeRdmaPorts, localFiles } from '../../native/file-probe.ts';
import type { Backend, BackendContext, CreateBackend } from '../backend.ts';
import { withDeviceMemory } from '../staging/staged-backend.ts';

interface BackendEntry<Name extends string> {
  readonly load: () => Promise<CreateBackend<Name>>;
  /** It carries host memory; other memory is staged. */
  readonly isStaged?: boolean;
  /** Why an agent that was given no list of backends does not start it, as the end of a sentence; undefined if it does. */
  readonly whyOnlyListed?: () => string | undefined;
}

type BackendTable<Name extends string> = { readonly [Key in Name]: BackendEntry<Key> };

const table = tableOf({
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
export type BackendName = keyof typeof table;

/** Names of all backends, in the order of preference. */
export const backendNames = Object.keys(table) as readonly BackendName[];

/** A backend of the table. */
export type NamedBackend = Backend<BackendName>;

/** The backend itself, for the thread that stages for it. */
export function loadHostBackend(name: string): Promise<CreateBackend<BackendName>> {
  return table[name as BackendName].load();
}

/** These open ports of their own, so they are not even loaded where they would not be chosen. */
function whyNoRdma(): string | undefined {
  if (activeRdmaPorts(localFiles()).length > 0) return undefined;
  return 'this host has no RDMA device with an active port; to use it all the same, name it in the option backends of Agent.create';
}

/** Each name is that of its backend. Declarations of the package then show the names and no module of a backend. */
function tableOf<Name extends string>(entries: BackendTable<Name>): BackendTable<Name> {
  return entries;
}

// The backends of one agent: created together, looked at together, closed together.

export class BackendSet {
  /** The backends that work here, in the order of preference. */
  readonly backends: readonly NamedBackend[];
  /** The backends that are not there, with the reason. */
  readonly missing: ReadonlyMap<BackendName, string>;

  /**
   * The backends that were named, all of which must work: fails with the error of the first that does not. Without names,
   * those that work here and that `whyOnlyListed` does not leave out.
   */
  static async create(names: readonly BackendName[] | undefined, context: BackendContext): Promise<BackendSet> {
    // Backends that cannot work are left out, which would hide this.
    requirePackageFiles();
    if (names !== undefined && !Array.isArray(names)) {
      throw invalidArgument('backends', names, `a list of names: ${backendNames.join(', ')}`);
    }
    for (const name of names ?? []) {
      if (backendNames.includes(name)) continue;
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        `There is no backend ${quote(name)}: known are ${backendNames.join(', ')}`,
      );
    }
    const wanted = backendNames.filter((name) => (names ?? backendNames).includes(name));
    const backends: NamedBackend[] = [];
    const missing = new Map<BackendName, string>();
    for (const name of wanted) {
      const entry: BackendEntry<BackendName> = table[name];
      const why = names === undefined ? entry.whyOnlyListed?.() : undefined;
      if (why !== undefined) {
        missing.set(name, `not started: ${why}`);
        continue;
      }
      try {
        const create = await entry.load();
        backends.push(await (entry.isStaged === true ? withDeviceMemory(create) : create)(context));
      } catch (error) {
        const isOptional = names === undefined && error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED';
        if (!isOptional) {
          await Promise.allSettled(backends.map((backend) => backend.close()));
          throw error;
        }
        missing.set(name, error.message);
      }
    }
    return new BackendSet(backends, missing);
  }

  /** Takes backends that have been created. */
  constructor(backends: readonly NamedBackend[], missing: ReadonlyMap<BackendName, string> = new Map()) {
    this.backends = backends;
    this.missing = missing;
  }

  /** What peers need to connect. */
  get connections(): ReadonlyMap<BackendName, Uint8Array> {
    return new Map(this.backends.map(({ name, connectionInfo }) => [name, connectionInfo]));
  }

  /** Hot path. True if anything happened. */
  poll(): boolean {
    let hasNews = false;
    for (const backend of this.backends) if (backend.poll()) hasNews = true;
    return hasNews;
  }

  /** Hot path. True if polling for long brings what peers do sooner than a sleep. */
  get prefersPolling(): boolean {
    for (const backend of this.backends) if (backend.prefersPolling === true) return true;
    return false;
  }

  /** Hot path. Lends this thread to backends that have something to do. True if they had. */
  help(): boolean {
    let hasHelped = false;
    for (const backend of this.backends) if (backend.help?.() === true) hasHelped = true;
    return hasHelped;
  }

  /** How long the agent may sleep before the next `poll`, in ms. */
  prepareSleep(): number {
    let pause = Number.POSITIVE_INFINITY;
    for (const backend of this.backends) pause = Math.min(pause, backend.prepareSleep());
    return pause;
  }

  /** Blocks this thread for so many ms at most: a backend that has no thread of its own sleeps until there is work for it. */
  nap(milliseconds: number): void {
    for (const backend of this.backends) if (backend.nap?.(milliseconds) === true) return;
  }

  /** See Backend. */
  unref(): void {
    for (const backend of this.backends) backend.unref?.();
  }

  async close(): Promise<void> {
    const ends = await Promise.allSettled(this.backends.map((backend) => backend.close()));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }
}
