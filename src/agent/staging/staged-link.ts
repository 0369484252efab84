// The way to one peer: the backend's own link, and lanes of the staging thread for what that cannot carry.
import { WeftlineError } from '../../core/errors.ts';
import type { RailState } from '../../transport/index.ts';
import type {
  BackendLink,
  BackendPeer,
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  ChannelOptions,
  LinkState,
  MemoryKind,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from '../backend.ts';
import { StagedChannel } from './staged-channel.ts';
import { decodeStagedRegion, type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import { CANCEL, NO_MESSAGE, stagedStates } from './staging-board.ts';
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
