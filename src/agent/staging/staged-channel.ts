// A channel between any memory: by the backend's own channel, or by lanes of the staging thread; in order over all of them.
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { PartTable } from '../../transport/part-table.ts';
import type {
  BackendChannel,
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  ChannelOptions,
  PutPlace,
  SharedParts,
} from '../backend.ts';
import { type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import { NO_MESSAGE, STAGED_OPERATIONS } from './staging-board.ts';
import { type AgentLane, giveUp, type RemoteMemoryName } from './staging-thread.ts';

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
