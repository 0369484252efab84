// Which backend carries a transfer: the first of a fixed order that both sides have and that takes both memories.
import { WeftlineError } from '../core/errors.ts';
import type { BackendName, NamedBackend } from './backends/backend-table.ts';
import type { MemoryKind } from './agent-memory.ts';
import type { LinkRail } from './link-rails.ts';
import type { RegionMetadata } from './metadata.ts';
import type { Registration } from './registration.ts';
import type { RemoteAgent } from './remote-agent.ts';

/** Whether a backend can reach a peer, and why not. */
export interface BackendVerdict {
  readonly backend: BackendName;
  readonly isUsable: boolean;
  /** Why not, as the end of a sentence; undefined if it is usable. */
  readonly why: string | undefined;
  /** What is special about its way: "staged through pinned memory". Left out: nothing. */
  readonly how?: string;
  /** Of an open link over network cards: those of this host with those of the peer. Left out before there is one. */
  readonly rails?: readonly LinkRail[];
}

export interface ChoiceMemory {
  readonly local: readonly Registration[];
  readonly remote: readonly { readonly kind: MemoryKind; readonly info: RegionMetadata['info'] }[];
}

export interface ChoiceOptions {
  readonly backends: readonly NamedBackend[];
  /** Those that could not be created, with the reason. */
  readonly missing: ReadonlyMap<BackendName, string>;
  readonly peer: RemoteAgent;
  readonly memory: ChoiceMemory;
  /** Asked for by name: this one or none. */
  readonly forced?: BackendName | undefined;
}

/** Every backend in the order of preference, with why it is not chosen. */
export function judgeBackends(options: ChoiceOptions): BackendVerdict[] {
  const { backends, missing, forced } = options;
  const verdicts = backends.map((backend) => {
    const why = whyNot(backend, options);
    const how = why === undefined ? describePath(backend, options) : undefined;
    return { backend: backend.name, isUsable: why === undefined, why, ...(how === undefined ? {} : { how }) };
  });
  const absent = [...missing].map(([backend, why]) => ({ backend, isUsable: false, why }));
  return [...verdicts, ...absent].filter(({ backend }) => forced === undefined || backend === forced);
}

/** Fails with WL_UNSUPPORTED, telling why not for each. */
export function chooseBackend(options: ChoiceOptions): NamedBackend {
  const verdicts = judgeBackends(options);
  const chosen = verdicts.find(({ isUsable }) => isUsable);
  const found = options.backends.find(({ name }) => name === chosen?.backend);
  if (found !== undefined) return found;
  const reasons = verdicts.map(({ backend, why }) => `${backend}: ${why}`);
  const { forced, peer } = options;
  if (reasons.length === 0) reasons.push(`this agent has no backend ${forced ?? 'at all'}`);
  throw new WeftlineError('WL_UNSUPPORTED', `No backend can carry this to agent ${peer.name}: ${reasons.join('; ')}`, {
    details: { peer: peer.name, verdicts },
  });
}

function describePath(backend: NamedBackend, { memory: { local, remote } }: ChoiceOptions): string | undefined {
  return backend.describePath?.([...local, ...remote].map(({ kind }) => kind));
}

function whyNot(backend: NamedBackend, { peer, memory, forced }: ChoiceOptions): string | undefined {
  const found = peer.peer(backend.name);
  if (found === undefined) return `agent ${peer.name} does not offer it`;
  const unreachable = backend.whyNotPeer(found);
  if (unreachable !== undefined) return unreachable;
  const refusal = forced === undefined ? peer.refusalOf(backend.name) : undefined;
  if (refusal !== undefined) return refusal;
  for (const registration of memory.local) {
    if (registration.regions.has(backend.name)) continue;
    const failure = registration.failureOf(backend.name);
    if (failure !== undefined) return `it could not register the local memory: ${failure}`;
    return backend.whyNotMemory(registration.memory) ?? 'the local memory is not registered with it';
  }
  for (const { kind, info } of memory.remote) {
    const region = info.get(backend.name);
    const why = backend.whyNotRemote(kind, region === undefined ? undefined : { peer: found, info: region });
    if (why !== undefined) return why;
    if (region === undefined) return `agent ${peer.name} has not registered the memory with it`;
  }
  return undefined;
}
