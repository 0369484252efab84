// The way to one peer: the backend's own link, and lanes of the staging thread for what that cannot carry.
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { RailState } from '../../transport/index.ts';
import { PartTable } from '../../transport/part-table.ts';
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
import { decodeStagedRegion, type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import { CANCEL, NO_MESSAGE, STAGED_OPERATIONS, stagedStates } from './staging-board.ts';
import {
  AgentLane,
  giveUp,
  type LaneOptions,
  type RemoteMemoryName,
  type StagedPlan,
  type StagingThread,
} from './staging-thread.ts';

const names: readonly TransferState[] = ['idle', 'pending', 'done', 'failed'];

/** A transfer that the staging thread carries out: posted with one command. Hot path of post and state: no allocation. */
export class StagedTransfer implements BackendTransfer {
  readonly #lane: AgentLane;
  readonly #number: number;
  #isReleased = false;
  #releasing: Promise<void> | undefined;
  /** What it had come to when it was released. */
  #last: Pick<BackendTransfer, 'state' | 'error'> | undefined;

  static async prepare(lane: AgentLane, plan: Omit<StagedPlan, 'lane' | 'number'>): Promise<StagedTransfer> {
    const { thread, number } = lane;
    return new StagedTransfer(
      lane,
      await thread.take((taken) => thread.call('prepare', { ...plan, lane: number, number: taken })),
    );
  }

  private constructor(lane: AgentLane, number: number) {
    this.#lane = lane;
    this.#number = number;
  }

  get state(): TransferState {
    if (this.#last !== undefined) return this.#last.state;
    const { thread } = this.#lane;
    const state = Atomics.load(thread.board.states, this.#number);
    if (state === stagedStates.pending && thread.failure !== undefined) return 'failed';
    return names[state] as TransferState;
  }

  get error(): WeftlineError | undefined {
    if (this.#last !== undefined) return this.#last.error;
    return this.state === 'failed' ? this.#lane.thread.errorOf(this.#number) : undefined;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    const lane = this.#lane;
    const error = lane.link.error ?? lane.error;
    if (error !== undefined) throw error;
    const { thread } = lane;
    const { hasRoom } = thread.board;
    if (!hasRoom || (message !== undefined && !lane.messages.write(message))) throw this.#busy(hasRoom);
    thread.board.states[this.#number] = stagedStates.pending;
    thread.push(this.#number, message === undefined ? NO_MESSAGE : message.length);
  }

  cancel(): void {
    const { thread } = this.#lane;
    if (this.state === 'pending' && thread.board.hasRoom) thread.push(this.#number, CANCEL);
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
    await giveUp(thread, 'close', this.#number);
    const { state, error } = this;
    this.#last = { state, error };
    thread.giveBack(this.#number);
  }

  #busy(hasRoom: boolean): WeftlineError {
    const { peer } = this.#lane;
    const why = hasRoom ? `${peer} has not taken earlier messages` : 'too many operations are under way';
    return new WeftlineError('WL_BUSY', `Cannot post to ${peer}: ${why}; wait for earlier ones`, { details: { peer } });
  }
}

/** What a channel needs of its link. */
interface ChannelLink {
  readonly error: WeftlineError | undefined;
  laneTo(region: BackendRemoteRegion, isPinned: boolean): Promise<AgentLane>;
  nameOf(region: BackendRemoteRegion): RemoteMemoryName;
}

/** A channel of the staging thread, on one of its lanes. */
class Route {
  readonly lane: AgentLane;
  /** A row for each operation, in turn. */
  readonly rows: PartTable;
  /** The peer's memory by what rows call it. */
  readonly remotes = new Map<BackendRemoteRegion, number>();
  posted = 0;
  readonly #number: number;

  static async open(lane: AgentLane): Promise<Route> {
    const { thread } = lane;
    const rows = PartTable.ofCount(STAGED_OPERATIONS);
    const options = { lane: lane.number, rows: rows.buffer };
    const number = await thread.take(async (taken) => thread.call('openChannel', { ...options, number: taken }));
    return new Route(lane, rows, number);
  }

  private constructor(lane: AgentLane, rows: PartTable, number: number) {
    this.lane = lane;
    this.rows = rows;
    this.#number = number;
  }

  get delivered(): number {
    const known = Atomics.load(this.lane.thread.board.delivered, this.#number);
    // The word wraps; fewer are under way than half of it counts.
    return this.posted - ((this.posted - known) >>> 0);
  }

  get error(): WeftlineError | undefined {
    return this.lane.thread.errorOf(this.#number);
  }

  async import(remote: BackendRemoteRegion, name: RemoteMemoryName): Promise<void> {
    if (this.remotes.has(remote)) return;
    const number = await this.lane.thread.call('importRemote', { channel: this.#number, remote: name });
    this.remotes.set(remote, number);
  }

  /** The row of the next operation, which is to be filled in and pushed. -1 if there is no room now. */
  begin(remote: BackendRemoteRegion, offset: number, bytes: number): number {
    if (this.posted - this.delivered >= STAGED_OPERATIONS || !this.lane.thread.board.hasRoom) return -1;
    const { rows } = this;
    const row = this.posted % STAGED_OPERATIONS;
    rows.remote[row] = this.remotes.get(remote)!;
    rows.remoteOffset[row] = offset;
    rows.bytes[row] = bytes;
    return row;
  }

  push(): void {
    this.posted++;
    this.lane.thread.push(this.#number, NO_MESSAGE);
  }

  async close(): Promise<void> {
    await giveUp(this.lane.thread, 'close', this.#number);
    this.lane.thread.giveBack(this.#number);
  }
}

/** The way that operations go now; another is taken only when all of its operations are delivered. */
type Way = Route | BackendChannel;

/** A channel between any memory: by the backend's own channel, or by lanes of the staging thread; in order over all of them. */
export class StagedChannel implements BackendChannel {
  readonly #link: ChannelLink;
  readonly #hostLink: BackendLink;
  readonly #options: ChannelOptions | undefined;
  #host: BackendChannel | undefined;
  readonly #routes: Route[] = [];
  readonly #opening = new Map<AgentLane, Promise<Route>>();
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

  async prepare(local: BackendRegion | undefined, remote: BackendRemoteRegion): Promise<void> {
    const from = local as StagedRegion | undefined;
    if (from?.host !== undefined && !(remote instanceof StagedRemoteRegion)) return;
    await from?.staged();
    const lane = await this.#link.laneTo(remote, from?.isPinned === true);
    let opening = this.#opening.get(lane);
    if (opening === undefined) {
      opening = Route.open(lane);
      this.#opening.set(lane, opening);
      opening.then(
        (route) => this.#routes.push(route),
        () => this.#opening.delete(lane),
      );
    }
    await (await opening).import(remote, this.#link.nameOf(remote));
  }

  put(place: PutPlace): boolean {
    this.#check();
    if (place.bytes === 0) return true;
    const { remote } = place;
    const from = place.local as StagedRegion;
    if (from.host !== undefined && !(remote instanceof StagedRemoteRegion)) return this.#putByHost(place, from.host);
    const route = this.#routeTo(remote, from.isPinned);
    if (route === undefined || from.number < 0) return this.#prepareLater(from, remote);
    const row = this.#mayTake(route) ? route.begin(remote, place.remoteOffset, place.bytes) : -1;
    if (row < 0) return false;
    route.rows.local[row] = from.number;
    route.rows.localOffset[row] = place.localOffset;
    route.push();
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number, sum = -1): boolean {
    this.#check();
    const route = this.#routeTo(remote, false);
    if (route === undefined) {
      if (remote instanceof StagedRemoteRegion) return this.#prepareLater(undefined, remote);
      return this.#mayTake(this.#byHost()) && this.#byHost().signal(remote, offset, add);
    }
    const row = this.#mayTake(route) ? route.begin(remote, offset, 0) : -1;
    if (row < 0) return false;
    route.rows.localStride[row] = add;
    route.rows.remoteStride[row] = sum;
    route.push();
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
    const place = Object.assign((this.#place ??= { ...given }), given);
    place.local = local;
    return host.put(place);
  }

  /** The present one if it leads there. Memory of GPUs goes through pinned memory only, other memory through any. */
  #routeTo(remote: BackendRemoteRegion, isPinned: boolean): Route | undefined {
    const way = this.#way;
    if (way instanceof Route && leadsTo(way, remote, isPinned)) return way;
    return this.#routes.find((route) => leadsTo(route, remote, isPinned));
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

  /** False: there is room when it is prepared. */
  #prepareLater(local: BackendRegion | undefined, remote: BackendRemoteRegion): false {
    if (this.#isPreparing) return false;
    this.#isPreparing = true;
    this.prepare(local, remote).then(
      () => (this.#isPreparing = false),
      (error: unknown) => (this.#error ??= asWeftlineError(error)),
    );
    return false;
  }
}

function leadsTo({ remotes, lane }: Route, remote: BackendRemoteRegion, isPinned: boolean): boolean {
  return remotes.has(remote) && (lane.isPinned || !isPinned);
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
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<BackendTransfer> {
    const { remotes, parts, isBySelection } = plan;
    const regions = plan.locals as readonly StagedRegion[];
    const hosts = regions.flatMap(({ host }) => (host === undefined ? [] : [host]));
    const remote = remotes[0]!;
    if (!(remote instanceof StagedRemoteRegion) && hosts.length === regions.length) {
      return this.#parts.host.prepare(operation, { ...plan, locals: hosts });
    }
    const isPinned = regions.some((region) => region.isPinned);
    return StagedTransfer.prepare(await this.laneTo(remote, isPinned), {
      operation,
      locals: await Promise.all(regions.map((region) => region.staged())),
      remotes: remotes.map((region) => this.nameOf(region)),
      parts: parts.buffer,
      isBySelection,
    });
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
    await Promise.allSettled(this.#lanes.values());
    await Promise.allSettled(this.#open.map((lane) => lane.close()));
    await this.#parts.host.close();
  }

  /** A lane to the peer's staging thread, or to its host memory, whichever has the region; a GPU needs one that is pinned. */
  async laneTo(region: BackendRemoteRegion, isPinned: boolean): Promise<AgentLane> {
    const connectionInfo = region instanceof StagedRemoteRegion ? region.name.connectionInfo : undefined;
    const to = connectionInfo === undefined ? 'host' : 'staged';
    const key = `${to} ${isPinned}`;
    let opening = this.#lanes.get(key) ?? this.#lanes.get(`${to} true`);
    if (opening === undefined) {
      opening = this.#openLane({ connectionInfo, isPinned });
      this.#lanes.set(key, opening);
      opening.catch(() => this.#lanes.delete(key));
    }
    return opening;
  }

  nameOf(region: BackendRemoteRegion): RemoteMemoryName {
    if (region instanceof StagedRemoteRegion) return { number: region.name.number, key: region.name.key };
    return { info: this.#hostInfo.get(region)!, bytes: region.bytes };
  }

  async #openLane(to: Pick<LaneOptions, 'connectionInfo' | 'isPinned'>): Promise<AgentLane> {
    const { peer, timeoutMs, thread } = this.#parts;
    const lane = await AgentLane.open(await thread(), this, { ...to, peer, timeoutMs });
    this.#open.push(lane);
    return lane;
  }

  get #laneError(): WeftlineError | undefined {
    for (const lane of this.#open) if (lane.error !== undefined) return lane.error;
    return undefined;
  }
}
