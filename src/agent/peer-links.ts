// Chooses the backend that carries a transfer and says why: plans the transfer, judges the backends, connects to the peer.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { type CallWait, deadlineOf } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { isLogged, log } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import type { FileProbe } from '../native/file-probe.ts';
import { type HostInterface, hostInterfaces, planRails } from '../rails/rail-list.ts';
import type { RailState } from '../transport/index.ts';
import type { ChannelParts, PeerOptions, PrepareOptions } from './agent-options.ts';
import type { BackendName, BackendSet, NamedBackend } from './backends/backend-table.ts';
import type { BackendLink, PathMemory, PlannedTransfer } from './backend.ts';
import { requireList } from './descriptors.ts';
import type { Registration, Registrations } from './registration.ts';
import type { LinkWait, RemoteAgent } from './remote-agent.ts';
import { type PlanSide, planTransfer, SelectionPlan } from './transfer-plan.ts';

interface PeerLinksOptions {
  readonly agent: string;
  readonly set: BackendSet;
  readonly registrations: Registrations;
  readonly timeoutMs: number;
}

type PeerRegion = RemoteAgent['memory'][number];

type Lists = Pick<PrepareOptions, 'local' | 'remote'>;

const listNames: OptionNames<Lists> = { local: true, remote: true };

/** Between two looks whether a peer has answered. */
const ANSWER_LOOK_MS = 5;

const NO_MEMORY: ChoiceMemory = { locals: [], remotes: [] };

export class PeerLinks {
  readonly #options: PeerLinksOptions;

  constructor(options: PeerLinksOptions) {
    this.#options = options;
  }

  /** The call's options with the deadline that its stages share. */
  waitOf(options: CallWait): LinkWait {
    const deadline = deadlineOf(options, this.#options.timeoutMs);
    return { deadline, timeoutMs: deadline.timeoutMs, signal: options.signal };
  }

  plan(peer: RemoteAgent, lists: Lists, merge: boolean): PlannedTransfer<Registration, PeerRegion> {
    const { local, remote } = this.#sides(peer, lists);
    return planTransfer(local, remote, { merge });
  }

  planSelections(peer: RemoteAgent, lists: Lists, merge: boolean): SelectionPlan<Registration, PeerRegion> {
    const { local, remote } = this.#sides(peer, lists);
    return new SelectionPlan(local, remote, { merge });
  }

  /** Every backend, and why it does not reach the peer; with lists, why it cannot carry them. */
  explain(peer: RemoteAgent, lists: Lists | undefined): readonly BackendVerdict[] {
    if (lists !== undefined) checkOptions(lists, listNames, 'lists of explain');
    const memory = lists === undefined ? NO_MEMORY : this.plan(peer, lists, true);
    return judgeBackends(this.#choice(peer, memory, {})).map((verdict) => {
      const rails = peer.openLink(verdict.backend)?.rails ?? [];
      return rails.length === 0 ? verdict : { ...verdict, rails: describeRails(rails) };
    });
  }

  /** Resolves once the peer itself has answered, and not what it left in memory. */
  async answer(peer: RemoteAgent, wait: LinkWait): Promise<void> {
    const { link } = await this.linkFor(peer, wait);
    const { deadline, signal } = wait;
    while (link.isAnswered === false) {
      link.checkPeer?.();
      if (link.error !== undefined) throw link.error;
      if (deadline.isOver) {
        const what = `Agent ${peer.name} did not react to a link within ${deadline.timeoutMs} ms`;
        throw new WeftlineError('WL_TIMEOUT', what, { details: { peer: peer.name, timeoutMs: deadline.timeoutMs } });
      }
      await new Promise((resolve) => setTimeout(resolve, Math.min(ANSWER_LOOK_MS, deadline.leftMs)));
      signal?.throwIfAborted();
    }
  }

  /** A link that can carry this memory. */
  linkFor(peer: RemoteAgent, options: PeerOptions, memory: ChoiceMemory = NO_MEMORY): Promise<ChosenLink> {
    return chooseLink(this.#choice(peer, memory, options), this.waitOf(options));
  }

  /** The link for a message: one that was asked for by name and is open need not be chosen anew. */
  async messageLink(peer: RemoteAgent, options: PeerOptions): Promise<BackendLink> {
    const open = options.backend === undefined ? undefined : peer.openLink(options.backend);
    return open ?? (await this.linkFor(peer, options)).link;
  }

  /** What a channel for puts from this memory to the peer's memory of that number needs. */
  async channelParts(
    peer: RemoteAgent,
    { local, remote }: { readonly local: Registration; readonly remote: number },
    options: PeerOptions,
  ): Promise<ChannelParts> {
    const memory = peer.memory.filter(({ number }) => number === remote);
    if (memory.length === 0) throw invalidArgument('remote', remote, `the number of memory of agent ${peer.name}`);
    const wait = this.waitOf(options);
    const wanted = { ...wait, backend: options.backend };
    const { backend, link } = await this.linkFor(peer, wanted, { locals: [local], remotes: memory });
    const region = await peer.region(backend, remote, wait);
    return { backend: backend.name, link, local: local.regionBy(backend.name), remote: region };
  }

  #sides(
    peer: RemoteAgent,
    { local, remote }: Lists,
  ): { readonly local: PlanSide<Registration>; readonly remote: PlanSide<PeerRegion> } {
    const { agent, registrations } = this.#options;
    requireList('local', local);
    requireList('remote', remote);
    return {
      local: { list: local, regions: registrations.all, owner: `agent ${agent}` },
      // The newer of two regions at one address is meant: the peer may have taken the older one back before this side heard of it.
      remote: { list: remote, regions: peer.memory.toReversed(), owner: `agent ${peer.name}` },
    };
  }

  #choice(peer: RemoteAgent, memory: ChoiceMemory, { backend }: PeerOptions): ChoiceOptions {
    const { backends, missing } = this.#options.set;
    return { backends, missing, peer, memory, forced: backend };
  }
}

// Chooses the link for a transfer: the first backend that can carry it and by which the peer accepts another link.

interface ChosenLink {
  readonly backend: NamedBackend;
  readonly link: BackendLink;
}

/**
 * Where a peer takes no further link by a backend (WL_CAPACITY), the next one carries it; `explain` then tells why. Fails
 * with what the backend failed with if none is left, or if it was asked for by name.
 */
export async function chooseLink(choice: ChoiceOptions, options: LinkWait): Promise<ChosenLink> {
  const { peer, forced } = choice;
  let backend = chooseBackend(choice);
  for (;;) {
    try {
      const link = await peer.link(backend, options);
      if (isLogged('agent', 'debug')) log('agent', 'debug', `to ${peer.name} by ${describe(choice, backend)}`);
      return { backend, link };
    } catch (error) {
      if (forced !== undefined || !(error instanceof WeftlineError) || error.code !== 'WL_CAPACITY') throw error;
      log('agent', 'warn', `to ${peer.name} not by ${backend.name}: ${error.message}`);
      peer.refusals.set(backend.name, error.message);
      if (!judgeBackends(choice).some(({ isUsable }) => isUsable)) throw error;
      backend = chooseBackend(choice);
    }
  }
}

/** "verbs (GPU memory by dmabuf: …; not local: it is on another host)" */
function describe(choice: ChoiceOptions, chosen: NamedBackend): string {
  const verdicts = judgeBackends(choice);
  const how = verdicts.find(({ backend }) => backend === chosen.name)?.how;
  const others = verdicts.filter(({ backend, why }) => backend !== chosen.name && why !== undefined);
  const reasons = others.map(({ backend, why }) => `not ${backend}: ${why}`);
  const notes = how === undefined ? reasons : [how, ...reasons];
  return notes.length === 0 ? chosen.name : `${chosen.name} (${notes.join('; ')})`;
}

// A transfer goes by the first backend of a fixed order that both sides have and that takes both memories.

/** Whether a backend can reach a peer, and why not. */
export interface BackendVerdict {
  readonly backend: BackendName;
  readonly isUsable: boolean;
  /** Why not, as the end of a sentence; undefined if it is usable. */
  readonly why: string | undefined;
  /** What is special about its way: "staged through pinned memory". Left out: nothing. */
  readonly how?: string;
  /** Network cards of this host with those of the peer, of an open link over such. Left out before there is one. */
  readonly rails?: readonly LinkRail[];
}

/** The memory that a transfer touches. */
type ChoiceMemory = Pick<PlannedTransfer<Registration, PeerRegion>, 'locals' | 'remotes'>;

interface ChoiceOptions {
  readonly backends: readonly NamedBackend[];
  /** Backends that could not be created, with the reason. */
  readonly missing: ReadonlyMap<BackendName, string>;
  readonly peer: RemoteAgent;
  readonly memory: ChoiceMemory;
  /** Asked for by name: this one or none. */
  readonly forced?: BackendName | undefined;
}

/** Every backend in the order of preference, with why it is not chosen. */
function judgeBackends(options: ChoiceOptions): BackendVerdict[] {
  const { backends, missing, forced, memory } = options;
  const touchedBy = ({ name }: NamedBackend): PathMemory[] => [
    ...memory.locals.map(({ kind, regions }) => ({ kind, local: regions.get(name) })),
    ...memory.remotes.map(({ kind, info }) => ({ kind, remote: info.get(name) })),
  ];
  const verdicts = backends.map((backend) => {
    const why = whyNot(backend, options);
    const how = why === undefined ? backend.describePath?.(touchedBy(backend)) : undefined;
    return { backend: backend.name, isUsable: why === undefined, why, ...(how === undefined ? {} : { how }) };
  });
  const absent = [...missing].map(([backend, why]) => ({ backend, isUsable: false, why }));
  return [...verdicts, ...absent].filter(({ backend }) => forced === undefined || backend === forced);
}

/** Fails with WL_UNSUPPORTED, telling why not for each. */
function chooseBackend(options: ChoiceOptions): NamedBackend {
  const verdicts = judgeBackends(options);
  const chosen = verdicts.find(({ isUsable }) => isUsable);
  const found = options.backends.find(({ name }) => name === chosen?.backend);
  if (found !== undefined) return found;
  const reasons = verdicts.map(({ backend, why }) => `${backend}: ${why}`);
  const { forced, peer } = options;
  if (reasons.length === 0)
    reasons.push(`this agent has no backend ${forced === undefined ? 'at all' : quote(forced)}`);
  throw new WeftlineError('WL_UNSUPPORTED', `No backend can carry this to agent ${peer.name}: ${reasons.join('; ')}`, {
    details: { peer: peer.name, verdicts },
  });
}

function whyNot(backend: NamedBackend, { peer, memory, forced }: ChoiceOptions): string | undefined {
  const found = peer.peer(backend.name);
  if (found === undefined) return `agent ${peer.name} does not offer it`;
  const unreachable = backend.whyNotPeer(found);
  if (unreachable !== undefined) return unreachable;
  const refusal = forced === undefined ? peer.refusals.get(backend.name) : undefined;
  if (refusal !== undefined) return refusal;
  for (const registration of memory.locals) {
    if (registration.regions.has(backend.name)) continue;
    const failure = registration.failures.get(backend.name);
    if (failure !== undefined) return `it could not register the local memory: ${failure}`;
    return backend.whyNotMemory(registration.memory) ?? 'the local memory is not registered with it';
  }
  for (const { kind, info } of memory.remotes) {
    const region = info.get(backend.name);
    const why = backend.whyNotRemote(kind, region === undefined ? undefined : { peer: found, info: region });
    if (why !== undefined) return why;
    if (region === undefined) return `agent ${peer.name} has not registered the memory with it`;
  }
  return undefined;
}

// What an agent says of the network cards that a link to a peer goes over.

/** A network card of this host, and the one of the peer that packets from it go to, with how it stands. */
interface LinkRail extends RailState {
  /** Name of this host's network interface; left out if no interface has the address any more. */
  readonly name?: string;
  /** PCI addresses of the GPUs that are nearer to it than to the other rails of the link. */
  readonly gpus: readonly string[];
}

/** `files` and `interfaces`: those of this host if missing. */
export function describeRails(
  pairs: readonly RailState[],
  files?: FileProbe,
  interfaces: readonly HostInterface[] = hostInterfaces(),
): readonly LinkRail[] {
  const known = pairs.filter(({ local }) => interfaces.some(({ addresses }) => addresses.includes(local)));
  const list = known.map(({ local }) => local).join();
  const plan = list === '' ? { rails: [], gpus: [] } : planRails(list, files, interfaces);
  return pairs.map((pair) => {
    const rail = plan.rails.find(({ address }) => address === pair.local);
    const gpus = plan.gpus.filter((gpu) => rail !== undefined && gpu.rail === rail.name).map(({ gpu }) => gpu);
    return { ...pair, ...(rail === undefined ? {} : { name: rail.name }), gpus };
  });
}
