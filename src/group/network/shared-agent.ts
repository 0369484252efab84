// The agent that the collective objects of a world share on this rank, because its engines and their threads are dear:
// opened with the first of them, closed with the last.
import { Agent } from '../../agent/agent.ts';
import type { Settings } from '../../settings/settings.ts';
import type { RankGroup } from '../../world/rank-group.ts';

interface Shared {
  readonly opening: Promise<Agent>;
  users: number;
  /** How many users know each peer. */
  readonly peers: Map<string, number>;
}

/** Agents by the settings of a world, which its groups share. */
const open = new Map<Settings, Shared>();
/** Peers tell by the name the agents apart that this rank opens one after the other. */
let opened = 0;

/** One object's use of the agent. */
export class SharedAgent {
  readonly agent: Agent;
  readonly #settings: Settings;
  readonly #shared: Shared;
  /** Memory of each peer that this object uses. */
  readonly #peers = new Map<string, Set<number>>();
  #closing: Promise<void> | undefined;

  /** Fails as Agent.create does. */
  static async open({ settings, worldRank }: Pick<RankGroup, 'settings' | 'worldRank'>): Promise<SharedAgent> {
    const shared = open.get(settings) ?? {
      opening: openAgent(`rank-${worldRank}-${opened++}`, settings),
      users: 0,
      peers: new Map<string, number>(),
    };
    open.set(settings, shared);
    shared.users++;
    try {
      return new SharedAgent(await shared.opening, settings, shared);
    } catch (error) {
      leave(settings, shared);
      throw error;
    }
  }

  /** @internal Objects of groups with these settings use this agent, which is closed with the last of them unless still lent. Returns how to end that. */
  static lend(settings: Settings, agent: Agent): () => void {
    const shared = { opening: Promise.resolve(agent), users: 1, peers: new Map<string, number>() };
    open.set(settings, shared);
    return () => void leave(settings, shared);
  }

  private constructor(agent: Agent, settings: Settings, shared: Shared) {
    this.agent = agent;
    this.#settings = settings;
    this.#shared = shared;
  }

  /** True while no other object uses the agent: closing this use closes it. */
  get isLast(): boolean {
    return this.#shared.users === 1;
  }

  /** Learns the metadata that a peer told in a meeting, of which the object will use the memory of these numbers. */
  async load(peer: string, metadata: Uint8Array, memory: readonly number[]): Promise<void> {
    const known = this.#peers.get(peer);
    if (known === undefined) {
      // ORDER: before anything is waited for, so that no other object's end makes the agent forget the peer.
      const { peers } = this.#shared;
      peers.set(peer, (peers.get(peer) ?? 0) + 1);
    }
    const kept = new Set(memory);
    this.#peers.set(peer, kept);
    await this.agent.loadRemoteMetadata(metadata, { heard: true });
    const replaced = [...(known ?? [])].filter((number) => !kept.has(number));
    this.agent.forgetMemory(peer, replaced);
  }

  /** The object must have taken back its memory and closed its channels, unless it is the last. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (leave(this.#settings, this.#shared)) return this.agent.close();
    const { peers } = this.#shared;
    const unknown: string[] = [];
    for (const [name, memory] of this.#peers) {
      const users = peers.get(name)! - 1;
      peers.set(name, users);
      if (users > 0) {
        this.agent.forgetMemory(name, [...memory]);
        continue;
      }
      peers.delete(name);
      unknown.push(name);
    }
    await Promise.all(unknown.map((name) => this.agent.forget(name)));
  }
}

/** What a program leaves open does not keep its process from ending. */
async function openAgent(name: string, settings: Settings): Promise<Agent> {
  const agent = await Agent.create(name, { settings });
  agent.unref();
  return agent;
}

/** True for the last user. */
function leave(settings: Settings, shared: Shared): boolean {
  shared.users--;
  if (shared.users > 0) return false;
  if (open.get(settings) === shared) open.delete(settings);
  return true;
}
