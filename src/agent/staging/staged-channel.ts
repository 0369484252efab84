// Puts and signals in order, whichever memory they go between: by the backend's own channel, or by the staging thread.
import type { PartTable } from '../../transport/part-table.ts';
import { STAGED_OPERATIONS, stagingCommandField, stagingCommandKinds } from './board-layout.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type {
  BackendChannel,
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  ChannelOptions,
  PutPlace,
  SharedParts,
} from '../backend.ts';
import type { AgentLane } from './agent-lane.ts';
import { type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import type { RemoteMemoryName } from './staging-messages.ts';

/** What a channel needs of its link. */
interface ChannelLink {
  readonly error: WeftlineError | undefined;
  /** To the peer's staging thread, or without a region of it to its host memory. */
  lane(region: StagedRemoteRegion | undefined, isPinned: boolean): Promise<AgentLane>;
  nameOf(region: BackendRemoteRegion): RemoteMemoryName;
}

/** A channel of the staging thread, on one of its lanes. */
class Route {
  readonly lane: AgentLane;
  readonly channel: number;
  readonly isStagedThere: boolean;
  readonly isPinned: boolean;
  /** By what the command names them. */
  readonly remotes = new Map<BackendRemoteRegion, number>();
  posted = 0;

  constructor(
    lane: AgentLane,
    channel: number,
    { isStagedThere, isPinned }: Pick<Route, 'isStagedThere' | 'isPinned'>,
  ) {
    this.lane = lane;
    this.channel = channel;
    this.isStagedThere = isStagedThere;
    this.isPinned = isPinned;
  }

  get delivered(): number {
    const known = Atomics.load(this.lane.thread.board.delivered, this.channel);
    // The word wraps; fewer are under way than half of it counts.
    return this.posted - ((this.posted - known) >>> 0);
  }

  get error(): WeftlineError | undefined {
    const { thread } = this.lane;
    if (Atomics.load(thread.board.failed, this.channel) !== 0) return thread.channelError(this.channel);
    return thread.failure;
  }

  async close(): Promise<void> {
    const { thread } = this.lane;
    if (thread.failure !== undefined) return;
    await thread.call('closeChannel', this.channel);
    thread.giveChannelBack(this.channel);
  }
}

/** The way that operations go now; another is taken only when all of its operations are delivered. */
type Way = Route | BackendChannel;

export class StagedChannel implements BackendChannel {
  readonly #link: ChannelLink;
  readonly #hostLink: BackendLink;
  readonly #options: ChannelOptions | undefined;
  #host: BackendChannel | undefined;
  readonly #routes: Route[] = [];
  readonly #opening = new Map<string, Promise<Route>>();
  #way: Way | undefined;
  /** Operations of ways before this one, and what this one had posted when it began. */
  #before = 0;
  #startedAt = 0;
  /** Something is prepared because an operation came before. */
  #isPreparing = false;
  #error: WeftlineError | undefined;
  #closing: Promise<void> | undefined;
  /** For the backend, which knows its own regions only. */
  #place: PutPlace | undefined;

  /** `options` are those of the backend's own channel. */
  constructor(link: ChannelLink, hostLink: BackendLink, options?: ChannelOptions) {
    this.#link = link;
    this.#options = options;
    this.#hostLink = hostLink;
  }

  get posted(): number {
    return this.#way === undefined ? this.#before : this.#before + this.#way.posted - this.#startedAt;
  }

  get delivered(): number {
    return this.#way === undefined ? this.#before : this.#before + this.#way.delivered - this.#startedAt;
  }

  get error(): WeftlineError | undefined {
    this.#error ??= this.#way?.error ?? this.#link.error;
    return this.#error;
  }

  get needsCalls(): boolean {
    const way = this.#way;
    return way !== undefined && !(way instanceof Route) && way.needsCalls === true;
  }

  async prepare(local: BackendRegion, remote: BackendRemoteRegion): Promise<void> {
    const from = local as StagedRegion;
    const isStagedThere = remote instanceof StagedRemoteRegion;
    if (from.host !== undefined && !isStagedThere) return;
    await from.staged();
    const route = await this.#open(isStagedThere ? remote : undefined, from.isPinned);
    if (route.remotes.has(remote)) return;
    await this.#import(route, remote);
  }

  put(place: PutPlace): boolean {
    this.#check();
    if (place.bytes === 0) return true;
    const { local, remote } = place;
    const from = local as StagedRegion;
    const isStagedThere = remote instanceof StagedRemoteRegion;
    if (from.host !== undefined && !isStagedThere) return this.#putByHost(place, from.host);
    const route = this.#routeTo(remote, from.isPinned);
    const number = route?.remotes.get(remote);
    if (route === undefined || number === undefined || from.number < 0) return this.#prepareLater(local, remote);
    const at = this.#begin(route);
    if (at < 0) return false;
    const { commands } = route.lane.thread.board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.put;
    commands[at + stagingCommandField.local] = from.number;
    commands[at + stagingCommandField.localOffset] = place.localOffset;
    commands[at + stagingCommandField.remote] = number;
    commands[at + stagingCommandField.remoteOffset] = place.remoteOffset;
    commands[at + stagingCommandField.bytes] = place.bytes;
    this.#commit(route);
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number, sum = -1): boolean {
    this.#check();
    const route = this.#routeTo(remote, false);
    const number = route?.remotes.get(remote);
    if (route === undefined || number === undefined) {
      if (remote instanceof StagedRemoteRegion) return this.#prepareLater(undefined, remote);
      return this.#mayTake(this.#byHost()) && this.#byHost().signal(remote, offset, add);
    }
    const at = this.#begin(route);
    if (at < 0) return false;
    const { commands } = route.lane.thread.board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.signal;
    commands[at + stagingCommandField.remote] = number;
    commands[at + stagingCommandField.remoteOffset] = offset;
    commands[at + stagingCommandField.add] = add;
    commands[at + stagingCommandField.sum] = sum;
    this.#commit(route);
    return true;
  }

  /** Between host memory of both sides only. */
  async shareParts(
    table: PartTable,
    local: BackendRegion,
    remote: BackendRemoteRegion,
  ): Promise<SharedParts | undefined> {
    this.#check();
    const from = (local as StagedRegion).host;
    if (from === undefined || remote instanceof StagedRemoteRegion) return undefined;
    const parts = await this.#byHost().shareParts?.(table, from, remote);
    if (parts === undefined) return undefined;
    return {
      put: (first, count) => {
        this.#check();
        return this.#mayTake(this.#byHost()) && parts.put(first, count);
      },
      release: () => parts.release(),
    };
  }

  send(): void {
    this.#host?.send?.();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#error = this.error ?? new WeftlineError('WL_CLOSED', 'The channel was closed');
    await Promise.allSettled(this.#opening.values());
    const ends = await Promise.allSettled([...this.#routes.map((route) => route.close()), this.#host?.close()]);
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  #check(): void {
    const { error } = this;
    if (error !== undefined) throw error;
  }

  #byHost(): BackendChannel {
    return (this.#host ??= this.#hostLink.openChannel(this.#options));
  }

  #putByHost(given: PutPlace, local: BackendRegion): boolean {
    const host = this.#byHost();
    if (!this.#mayTake(host)) return false;
    const place = (this.#place ??= { ...given });
    place.local = local;
    place.localOffset = given.localOffset;
    place.remote = given.remote;
    place.remoteOffset = given.remoteOffset;
    place.bytes = given.bytes;
    return host.put(place);
  }

  /** The present one if it leads there. Memory of GPUs goes through pinned memory only, other memory through any. */
  #routeTo(remote: BackendRemoteRegion, isPinned: boolean): Route | undefined {
    const leadsThere = (known: Route): boolean => known.remotes.has(remote) && (known.isPinned || !isPinned);
    const present = this.#way instanceof Route ? this.#way : undefined;
    return present !== undefined && leadsThere(present) ? present : this.#routes.find(leadsThere);
  }

  /** Where the command goes; -1 if there is no room now. */
  #begin(route: Route): number {
    if (!this.#mayTake(route) || route.posted - route.delivered >= STAGED_OPERATIONS) return -1;
    return route.lane.thread.board.place;
  }

  #commit(route: Route): void {
    const { thread } = route.lane;
    thread.board.commands[thread.board.place + stagingCommandField.number] = route.channel;
    route.posted++;
    thread.push();
  }

  /** ORDER: operations of different ways would overtake each other. */
  #mayTake(way: Way): boolean {
    if (this.#way === way) return true;
    if (this.delivered < this.posted) return false;
    this.#before = this.posted;
    this.#way = way;
    this.#startedAt = way.posted;
    return true;
  }

  async #import({ lane, channel, remotes }: Route, remote: BackendRemoteRegion): Promise<void> {
    remotes.set(remote, await lane.thread.call('importRemote', { channel, remote: this.#link.nameOf(remote) }));
  }

  /** False: there is room when it is prepared. */
  #prepareLater(local: BackendRegion | undefined, remote: BackendRemoteRegion): false {
    if (this.#isPreparing) return false;
    this.#isPreparing = true;
    const preparing = local === undefined ? this.#importFor(remote as StagedRemoteRegion) : this.prepare(local, remote);
    preparing.then(
      () => (this.#isPreparing = false),
      (error: unknown) => (this.#error ??= asWeftlineError(error)),
    );
    return false;
  }

  /** For signals alone. */
  async #importFor(remote: StagedRemoteRegion): Promise<void> {
    const route = this.#routes.find(({ isStagedThere }) => isStagedThere) ?? (await this.#open(remote, false));
    if (route.remotes.has(remote)) return;
    await this.#import(route, remote);
  }

  #open(remote: StagedRemoteRegion | undefined, isPinned: boolean): Promise<Route> {
    const isStagedThere = remote !== undefined;
    const key = `${isStagedThere} ${isPinned}`;
    let opening = this.#opening.get(key) ?? this.#opening.get(`${isStagedThere} true`);
    if (opening === undefined) {
      opening = this.#openRoute(remote, isPinned);
      this.#opening.set(key, opening);
      opening.catch(() => this.#opening.delete(key));
    }
    return opening;
  }

  async #openRoute(remote: StagedRemoteRegion | undefined, isPinned: boolean): Promise<Route> {
    const lane = await this.#link.lane(remote, isPinned);
    const { thread } = lane;
    const channel = thread.takeChannel();
    try {
      await thread.call('openChannel', { lane: lane.number, channel });
    } catch (error) {
      thread.giveChannelBack(channel);
      throw error;
    }
    const route = new Route(lane, channel, { isStagedThere: remote !== undefined, isPinned });
    this.#routes.push(route);
    return route;
  }
}
