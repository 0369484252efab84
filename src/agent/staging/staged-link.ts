// The way to one peer: the backend's own link, and lanes of the staging thread for what that cannot carry.
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { RailState } from '../../transport/index.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type {
  BackendChannel,
  BackendLink,
  BackendPeer,
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  ChannelOptions,
  LinkState,
  MemoryKind,
  PlannedTransfer,
  PutPlace,
  SharedParts,
  TransferOperation,
  TransferState,
} from '../backend.ts';
import { StagedMessages } from './staged-messages.ts';
import { decodeStagedRegion, type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import { STAGED_OPERATIONS, stagedStates, stagingCommandField, stagingCommandKinds } from './staging-board.ts';
import type { RemoteMemoryName, StagedPlan } from './staging-messages.ts';
import type { StagingThread } from './staging-thread.ts';

interface AgentLaneOptions {
  /** That it belongs to. */
  readonly link: Pick<BackendLink, 'error'>;
  readonly peer: BackendPeer;
  readonly connectionInfo: Uint8Array | undefined;
  readonly isPinned: boolean;
  readonly timeoutMs: number;
}

/** A lane as the agent's thread has it: its number, and the ring of messages of its transfers. */
export class AgentLane {
  readonly thread: StagingThread;
  readonly number: number;
  readonly peer: string;
  readonly messages: StagedMessages;
  readonly link: Pick<BackendLink, 'error'>;
  #isClosed = false;

  static async open(thread: StagingThread, options: AgentLaneOptions): Promise<AgentLane> {
    const { link, peer, connectionInfo, isPinned, timeoutMs } = options;
    const messages = new StagedMessages();
    const plain = { peer, connectionInfo, isPinned, timeoutMs, messages: messages.buffer };
    const number = await thread.call('openLane', plain);
    return new AgentLane({ thread, number, peer: peer.name, messages, link });
  }

  private constructor(parts: Pick<AgentLane, 'thread' | 'number' | 'peer' | 'messages' | 'link'>) {
    this.thread = parts.thread;
    this.number = parts.number;
    this.peer = parts.peer;
    this.messages = parts.messages;
    this.link = parts.link;
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    return this.thread.laneError(this.number);
  }

  async close(): Promise<void> {
    if (this.#isClosed || this.thread.failure !== undefined) return;
    this.#isClosed = true;
    await this.thread.call('closeLane', this.number);
  }
}

const names: readonly TransferState[] = ['idle', 'pending', 'done', 'failed'];

/** A transfer that the staging thread carries out: posted with one command. Hot path of post and state: no allocation. */
export class StagedTransfer implements BackendTransfer {
  readonly #lane: AgentLane;
  readonly #number: number;
  #isReleased = false;
  #releasing: Promise<void> | undefined;
  /** What it had come to when it was released. */
  #last: TransferState | undefined;
  #lastError: WeftlineError | undefined;

  static async prepare(lane: AgentLane, plan: Omit<StagedPlan, 'lane' | 'transfer'>): Promise<StagedTransfer> {
    const { thread } = lane;
    const transfer = thread.takeTransfer();
    try {
      await thread.call('prepare', { ...plan, lane: lane.number, transfer });
    } catch (error) {
      thread.giveTransferBack(transfer);
      throw error;
    }
    return new StagedTransfer(lane, transfer);
  }

  private constructor(lane: AgentLane, number: number) {
    this.#lane = lane;
    this.#number = number;
  }

  get state(): TransferState {
    if (this.#last !== undefined) return this.#last;
    const state = Atomics.load(this.#lane.thread.board.states, this.#number);
    if (state === stagedStates.pending && this.#lane.thread.failure !== undefined) return 'failed';
    return names[state] as TransferState;
  }

  get error(): WeftlineError | undefined {
    if (this.#last !== undefined) return this.#lastError;
    return this.state === 'failed' ? this.#lane.thread.transferError(this.#number) : undefined;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    const lane = this.#lane;
    const error = lane.link.error ?? lane.error;
    if (error !== undefined) throw error;
    const { thread } = lane;
    const { board } = thread;
    const at = board.place;
    if (at < 0 || (message !== undefined && !lane.messages.write(message))) throw this.#busy(at < 0);
    const { commands } = board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.post;
    commands[at + stagingCommandField.number] = this.#number;
    commands[at + stagingCommandField.message] = message === undefined ? -1 : message.length;
    board.states[this.#number] = stagedStates.pending;
    thread.push();
  }

  cancel(): void {
    const { thread } = this.#lane;
    const at = thread.board.place;
    if (this.state !== 'pending' || at < 0) return;
    const { commands } = thread.board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.cancel;
    commands[at + stagingCommandField.number] = this.#number;
    thread.push();
  }

  release(): Promise<void> {
    this.#isReleased = true;
    // A device that is late now may be done when it is released again.
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  async #release(): Promise<void> {
    const { thread } = this.#lane;
    try {
      if (thread.failure === undefined) await thread.call('unprepare', this.#number);
    } catch (error) {
      if (thread.failure === undefined) throw error;
    }
    const { state, error } = this;
    this.#last = state;
    this.#lastError = error;
    thread.giveTransferBack(this.#number);
  }

  #busy(isFull: boolean): WeftlineError {
    const { peer } = this.#lane;
    const why = isFull ? 'too many operations are under way' : `${peer} has not taken earlier messages`;
    return new WeftlineError('WL_BUSY', `Cannot post to ${peer}: ${why}; wait for earlier ones`, { details: { peer } });
  }
}

/** What a channel needs of its link. */
interface ChannelLink {
  readonly error: WeftlineError | undefined;
  /** A lane to the peer's staging thread, or without a region of it to its host memory. */
  lane(region: StagedRemoteRegion | undefined, isPinned: boolean): Promise<AgentLane>;
  nameOf(region: BackendRemoteRegion): RemoteMemoryName;
}

/** A channel of the staging thread, on one of its lanes. */
class Route {
  readonly lane: AgentLane;
  readonly channel: number;
  readonly isStagedThere: boolean;
  readonly isPinned: boolean;
  /** Regions by what the command names them. */
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

/** Puts and signals in order, between any memory: by the backend's own channel, or by the staging thread. */
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
  /** The place as the backend gets it, which knows its own regions only. */
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

  /** The place of the next command; -1 if there is no room now. */
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

  /** Imports a region for signals alone. */
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

interface StagedLinkParts {
  readonly host: BackendLink;
  readonly peer: BackendPeer;
  readonly timeoutMs: number;
  readonly thread: () => Promise<StagingThread>;
}

export class StagedLink implements BackendLink {
  readonly #parts: StagedLinkParts;
  /** Lanes by what they lead to, and whether a GPU of this side takes part. */
  readonly #lanes = new Map<string, Promise<AgentLane>>();
  readonly #open: AgentLane[] = [];
  /** Names that the backend gave to memory of the peer that is not staged there. */
  readonly #hostInfo = new WeakMap<BackendRemoteRegion, Uint8Array>();
  #closing: Promise<void> | undefined;

  constructor(parts: StagedLinkParts) {
    this.#parts = parts;
  }

  get state(): LinkState {
    const { host } = this.#parts;
    if (host.state !== 'open') return host.state;
    const error = this.#laneError;
    if (error === undefined) return 'open';
    return error.code === 'WL_CLOSED' ? 'closed' : 'dead';
  }

  get error(): WeftlineError | undefined {
    return this.#parts.host.error ?? this.#laneError;
  }

  importRegion(info: Uint8Array, about: { readonly kind: MemoryKind; readonly bytes: number }): BackendRemoteRegion {
    const staged = decodeStagedRegion(info);
    if (staged !== undefined) return new StagedRemoteRegion(about.bytes, staged);
    const region = this.#parts.host.importRegion(info, about);
    this.#hostInfo.set(region, info);
    return region;
  }

  releaseRegion(region: BackendRemoteRegion): void {
    if (!(region instanceof StagedRemoteRegion)) this.#parts.host.releaseRegion?.(region);
  }

  isWithdrawn(region: BackendRemoteRegion): boolean {
    return !(region instanceof StagedRemoteRegion) && this.#parts.host.isWithdrawn?.(region) === true;
  }

  async prepare(
    operation: TransferOperation,
    { locals, remotes, parts, isBySelection }: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<BackendTransfer> {
    const regions = locals as readonly StagedRegion[];
    const hosts = regions.flatMap(({ host }) => (host === undefined ? [] : [host]));
    const [remote] = remotes;
    const isStagedThere = remote instanceof StagedRemoteRegion;
    if (!isStagedThere && hosts.length === regions.length) {
      return this.#parts.host.prepare(operation, { locals: hosts, remotes, parts, isBySelection });
    }
    const lane = await this.lane(
      isStagedThere ? remote : undefined,
      regions.some(({ isPinned }) => isPinned),
    );
    const plan = {
      operation,
      locals: await Promise.all(regions.map((region) => region.staged())),
      remotes: remotes.map((region) => this.nameOf(region)),
      parts: parts.buffer,
      isBySelection,
    };
    return StagedTransfer.prepare(lane, plan);
  }

  notify(message: Uint8Array): void {
    this.#parts.host.notify(message);
  }

  get rails(): readonly RailState[] {
    return this.#parts.host.rails ?? [];
  }

  get lanes(): number {
    return this.#parts.host.lanes ?? 1;
  }

  unstaged(local: BackendRegion, remote: BackendRemoteRegion): ReturnType<NonNullable<BackendLink['unstaged']>> {
    const { host } = local as StagedRegion;
    if (host === undefined || remote instanceof StagedRemoteRegion) return undefined;
    return { link: this.#parts.host, local: host };
  }

  openChannel(options?: ChannelOptions): StagedChannel {
    return new StagedChannel(this, this.#parts.host, options);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const lanes = await Promise.allSettled(this.#lanes.values());
    const open = lanes.flatMap((lane) => (lane.status === 'fulfilled' ? [lane.value] : []));
    await Promise.allSettled(open.map((lane) => lane.close()));
    await this.#parts.host.close();
  }

  lane(region: StagedRemoteRegion | undefined, isPinned: boolean): Promise<AgentLane> {
    const to = region === undefined ? 'host' : 'staged';
    const key = `${to} ${isPinned}`;
    let opening = this.#lanes.get(key) ?? this.#lanes.get(`${to} true`);
    if (opening === undefined) {
      opening = this.#openLane(region?.name.connectionInfo, isPinned);
      this.#lanes.set(key, opening);
      opening.catch(() => this.#lanes.delete(key));
    }
    return opening;
  }

  nameOf(region: BackendRemoteRegion): RemoteMemoryName {
    const { bytes } = region;
    if (!(region instanceof StagedRemoteRegion)) return { info: this.#hostInfo.get(region) as Uint8Array, bytes };
    const { number, key } = region.name;
    return { number, key, bytes };
  }

  async #openLane(connectionInfo: Uint8Array | undefined, isPinned: boolean): Promise<AgentLane> {
    const { peer, timeoutMs, thread } = this.#parts;
    const lane = await AgentLane.open(await thread(), { link: this, peer, connectionInfo, isPinned, timeoutMs });
    this.#open.push(lane);
    return lane;
  }

  get #laneError(): WeftlineError | undefined {
    for (const lane of this.#open) if (lane.error !== undefined) return lane.error;
    return undefined;
  }
}
