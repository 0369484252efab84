// The way to one peer: the backend's own link, and lanes of the staging thread for what that cannot carry.
import type { WeftlineError } from '../../core/errors.ts';
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
} from '../backend.ts';
import { decodeStagedRegion } from './region-info.ts';
import { StagedChannel } from './staged-channel.ts';
import { AgentLane } from './agent-lane.ts';
import { type StagedRegion, StagedRemoteRegion } from './staged-region.ts';
import { StagedTransfer } from './staged-transfer.ts';
import type { RemoteMemoryName } from './staging-messages.ts';
import type { StagingThread } from './staging-thread.ts';

interface StagedLinkParts {
  readonly host: BackendLink;
  readonly peer: BackendPeer;
  readonly timeoutMs: number;
  readonly thread: () => Promise<StagingThread>;
}

export class StagedLink implements BackendLink {
  readonly #parts: StagedLinkParts;
  /** By what they lead to, and whether a GPU of this side takes part. */
  readonly #lanes = new Map<string, Promise<AgentLane>>();
  readonly #open: AgentLane[] = [];
  /** Of memory of the peer that is not staged there: how its backend named it. */
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
    { locals, remotes, parts }: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<BackendTransfer> {
    const regions = locals as readonly StagedRegion[];
    const hosts = regions.flatMap(({ host }) => (host === undefined ? [] : [host]));
    const [remote] = remotes;
    const isStagedThere = remote instanceof StagedRemoteRegion;
    if (!isStagedThere && hosts.length === regions.length) {
      return this.#parts.host.prepare(operation, { locals: hosts, remotes, parts });
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
