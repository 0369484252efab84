// The seam between the agent and what moves its bytes: one Backend per kind of path, one BackendLink per peer.
import type { Deadline } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { HostAccess } from '../device/tensor.ts';
import type { Settings } from '../settings/settings.ts';
import type { WakeWord } from '../threads/wake-word.ts';
import type { RailState } from '../transport/index.ts';
import type { PartTable } from '../transport/part-table.ts';
import type { SharedMemory } from '../windows/shared-memory.ts';

// Memory as an agent registers it: where it lies, and how a process of the same host could map it.

/** Kinds of memory, in the order of their numbers in descriptors and metadata. */
export const memoryKinds = ['host', 'cuda'] as const;

/** Memory of the host, or of a GPU. */
export type MemoryKind = (typeof memoryKinds)[number];

/** It stays where it is, and allocated, until it is deregistered. */
export interface AgentMemory {
  readonly kind: MemoryKind;
  /** Native address of the first byte: of this process for 'host', a device pointer for 'cuda'. */
  readonly address: number;
  readonly bytes: number;
  /** The bytes themselves, of 'host'. */
  readonly view: Uint8Array | undefined;
  /** The device that owns it, of 'cuda'. */
  readonly device: HostAccess | undefined;
  /** The memory that other processes of this host can map, and where in it this begins, if `agent.allocate` gave it. */
  readonly shared: { readonly memory: SharedMemory; readonly offset: number } | undefined;
}

/** A write moves local bytes to the peer, a read brings them. */
export type TransferOperation = 'read' | 'write';

/**
 * The longest message of `post` and `notify`, in bytes, on every backend. The agent refuses longer ones, so backends need not
 * check; each carries this much as soon as the peer has taken what was sent before.
 */
export const MAX_NOTIFICATION_BYTES = 32_760;

/** What the agent gives to a backend that it creates. */
export interface BackendContext {
  readonly agentName: string;
  /** 16 hexadecimal digits, new for each Agent.create: tells a restarted agent from its predecessor. */
  readonly incarnation: string;
  readonly settings: Settings;
  /** Peers must prove that they hold it; if it is empty, that they run as the same user on the same host. */
  readonly token: string;
  /** The numeric address that peers reach this host by, to listen at. */
  readonly host: string;
  /** True: progress happens on a thread of the backend's own. False: inside `poll`, for latency. */
  readonly ownThread: boolean;
  /**
   * To be rung, from any thread, after a transfer or channel operation ended, a notification or a signal came, or a link
   * broke.
   */
  readonly wake: WakeWord;
  /** Host memory is staged as memory of a device is, for tests, which have no GPU. */
  readonly stagesHostMemory?: boolean;
  /** Called inside `poll` only. The bytes become the agent's; the peer is named as its own agent is. */
  readonly deliver: (peer: string, message: Uint8Array) => void;
  /**
   * Hot path. False while the unread notifications of that peer are at their limit: further messages of it stay with the
   * backend, in order, until senders have no more room and fail with WL_BUSY. `wake` is rung when there is room again.
   */
  readonly mayDeliver: (peer: string) => boolean;
}

/** `create` fails with WL_UNSUPPORTED, saying what is missing, where the backend cannot run. */
export type CreateBackend<Name extends string = string> = (context: BackendContext) => Promise<Backend<Name>>;

/** Memory that a transfer would touch: this side's region of it, or what the peer's backend published of it. */
export interface PathMemory {
  readonly kind: MemoryKind;
  readonly local?: BackendRegion | undefined;
  readonly remote?: Uint8Array | undefined;
}

/** A peer as its metadata describes it. */
export interface BackendPeer {
  readonly name: string;
  readonly incarnation: string;
  /** `hostIdentity()` of the peer. */
  readonly host: string;
  readonly process: number;
  /** What the peer's backend of the same name published. */
  readonly connectionInfo: Uint8Array;
}

/** Memory of a peer as its metadata describe it. */
export interface RemoteRegionInfo {
  readonly peer: BackendPeer;
  /** What the peer's backend of the same name published of the region. */
  readonly info: Uint8Array;
}

export interface ConnectOptions {
  readonly timeoutMs: number;
  /** The deadline of the call that needs the link, in place of `timeoutMs`. */
  readonly deadline?: Deadline | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Agent's thread only. Nothing but `poll` and `post` is a hot path. */
export interface Backend<Name extends string = string> {
  /** The name in the table of backends. */
  readonly name: Name;
  /** What peers need to connect. Fixed once created. */
  readonly connectionInfo: Uint8Array;
  /** Why it cannot use such memory here, as the end of a sentence: "it has no GPU support"; undefined if it can. */
  whyNotMemory(memory: AgentMemory): string | undefined;
  /** Why it cannot reach the peer, in the same way. Looks at what is known, connects to nobody. */
  whyNotPeer(peer: BackendPeer): string | undefined;
  /** Why memory of this kind cannot be used on the peer's side, in the same way; `region` says which it is, where it is known. */
  whyNotRemote(kind: MemoryKind, region?: RemoteRegionInfo): string | undefined;
  /** What is special about how it carries transfers between such memory: "staged through pinned memory". */
  describePath?(memory: readonly PathMemory[]): string | undefined;
  /** How many lanes its links have at most. One where it is left out. */
  readonly lanes?: number;
  /** True: where it cannot register such memory, though it may, the agent goes on with other backends that have. */
  isOptionalFor?(memory: AgentMemory): boolean;
  register(memory: AgentMemory): Promise<BackendRegion>;
  /**
   * Fails with WL_TIMEOUT, WL_PEER_LOST (nobody is there any more), WL_STALE (another incarnation of the peer answered),
   * WL_UNAUTHORIZED (another token).
   */
  connect(peer: BackendPeer, options: ConnectOptions): Promise<BackendLink>;
  /**
   * Hot path. Takes in what has happened: updates states of transfers and channels, delivers notifications; without a
   * thread of its own also moves data. Never waits. True if anything happened.
   */
  poll(): boolean;
  /**
   * True while peers write directly to where `poll` looks: a blocking wait then polls for longer. With a thread of the
   * backend in between, polling would only take its processor. Backends leave it out if that is never so.
   */
  readonly prefersPolling?: boolean;
  /**
   * Hot path, of waits that block the thread anyway: does a little of what a thread of the backend does meanwhile. True if
   * that brought something forward.
   */
  help?(): boolean;
  /**
   * To be called before the agent sleeps on `wake`, after a `poll` that brought nothing and a look at `wake.seen` before
   * it: how long it may, in ms. Until the next `poll` the backend rings `wake` for whatever comes sooner. 0: there is
   * something already, or work to do in `poll`: do not sleep.
   */
  prepareSleep(): number;
  /**
   * Sleeps in place of the agent for so many ms, no longer than `prepareSleep` has said, and less if something comes that
   * only this thread can take in. False, at once, of a backend that rings `wake` for all that comes; such may leave it out.
   */
  nap?(milliseconds: number): boolean;
  /** It keeps the process alive no longer, except while calls wait. Left out by backends that never do otherwise. */
  unref?(): void;
  /** Closes links and frees everything. Awaited, idempotent. */
  close(): Promise<void>;
}

/** Registered memory of this side. Backends return a class of their own and get it back in `prepare`. */
export interface BackendRegion {
  /** What peers need to use it: handles, keys. Goes into the metadata. */
  readonly info: Uint8Array;
  /**
   * The memory is the caller's again: once it has resolved, no peer and no device reads or writes it; those that still try
   * get an error. Peers that died do not hold it up. Fails with WL_TIMEOUT, naming a peer that is still copying: the
   * region then takes nothing new, and `release` may be called again. Idempotent.
   */
  release(): Promise<void>;
}

/** A region of the peer as imported from its `info`. Backends return a class of their own. */
export interface BackendRemoteRegion {
  readonly bytes: number;
}

/**
 * `open`: usable. `closed`: this side closed it, or the peer closed its link or agent. `dead`: the peer's process ended, fell
 * silent or is out of reach, or the link broke; waits for the peer cannot succeed. A link never opens again.
 */
export type LinkState = 'open' | 'closed' | 'dead';

/** The way to one peer. Every backend notices the death of the peer without a call of the agent but `poll`. */
export interface BackendLink {
  readonly state: LinkState;
  /** Why it is unusable: WL_CLOSED if its state is `closed`, WL_PEER_LOST if `dead`; undefined while it is `open`. */
  readonly error: WeftlineError | undefined;
  /** Looks now whether the peer still lives. Left out by backends that hear of its end without looking. */
  checkPeer?(): boolean;
  /** Whether the peer has reacted to the link, by now. Left out by backends that make none without an answer of the peer. */
  readonly isAnswered?: boolean;
  /** `kind` and `bytes` are what the peer's metadata say of the region. Fails with WL_PROTOCOL if info is not understood. */
  importRegion(info: Uint8Array, about: { readonly kind: MemoryKind; readonly bytes: number }): BackendRemoteRegion;
  /**
   * The peer has taken the region back, or this side needs it no more: its mappings and descriptors go as soon as nothing
   * touches it. Transfers on it fail from their next post on. Idempotent. Left out by backends that hold nothing of a region.
   */
  releaseRegion?(region: BackendRemoteRegion): void;
  /** True if the peer has deregistered the region, for backends that notice it without a message. */
  isWithdrawn?(region: BackendRemoteRegion): boolean;
  /** Makes all native argument blocks, in linear time: there may be a million parts. */
  prepare(
    operation: TransferOperation,
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<BackendTransfer>;
  /**
   * Bytes to the peer's agent, after the data of all transfers that were done before the call. Copied. Fails with WL_BUSY,
   * having sent nothing, if the peer has not taken earlier messages.
   */
  notify(message: Uint8Array): void;
  /** Addresses of this host's network cards with those of the peer's between which it goes; left out where it uses none. */
  readonly rails?: readonly RailState[];
  /** How many ways of the link carry bytes side by side. One where it is left out. */
  readonly lanes?: number;
  /**
   * The link and the region that carry between these two where nothing has to be staged; undefined where it has. Channels of
   * that link and of this one are not in order with each other. Left out by backends that stage nothing.
   */
  unstaged?(local: BackendRegion, remote: BackendRemoteRegion): UnstagedParts | undefined;
  /** Ordered puts and signals whose places are known only when they are posted. Fails with the link's error if it has one. */
  openChannel(options?: ChannelOptions): BackendChannel;
  /** Pending transfers and channels fail with WL_CLOSED. Idempotent. */
  close(): Promise<void>;
}

/** What carries between two regions without staging, and what that calls the local one. */
interface UnstagedParts {
  readonly link: BackendLink;
  readonly local: BackendRegion;
}

/** A transfer as the agent hands it to a backend. Each part lies inside both of its regions and is not empty. */
export interface PlannedTransfer<L, R> {
  /** Regions that the transfer touches, each once; `parts` holds indices into these lists. */
  readonly locals: readonly L[];
  readonly remotes: readonly R[];
  readonly parts: PartTable;
  /** The table has no rows yet: they are written anew before each post, while no other is under way. */
  readonly isBySelection: boolean;
}

/** `idle`: never posted. `failed`: see `error`; may be posted again if the link is usable. */
export type TransferState = 'idle' | 'pending' | 'done' | 'failed';

/** A prepared transfer. One post at a time; as many transfers of a link as wanted may be pending together. */
export interface BackendTransfer {
  /**
   * Hot path: no allocation, no promise, never waits. The message, which is copied, is delivered at the peer after all
   * data of this post is visible there (of a read: has been read), with no further call on this side needed, and not at
   * all if the transfer fails. Fails with WL_BUSY, having posted nothing, if the peer has not taken earlier messages.
   */
  post(message?: Uint8Array): void;
  /** Hot path. As of the last `poll`. Done means delivered: all bytes are visible at their destination. */
  readonly state: TransferState;
  /** Why it failed. */
  readonly error: WeftlineError | undefined;
  /**
   * Ends a pending post early, as failed with WL_CLOSED, if it can; what was moved stays moved. It stays pending while anything of it
   * may still read the table of parts, or read or write memory of either side.
   */
  cancel(): void;
  /** Frees it; cancels if pending. Memory is not touched after the promise. Idempotent. */
  release(): Promise<void>;
}

export interface ChannelOptions {
  /**
   * Counted from 0, of the link's `lanes`: all operations go there, so that a signal waits for nothing on other lanes. Left
   * out: large puts take all of them in turn. Backends whose links have one lane ignore it.
   */
  readonly lane?: number;
}

/** The place that a put goes to. The caller owns one such object, writes to it and hands it over again. */
export interface PutPlace {
  local: BackendRegion;
  localOffset: number;
  remote: BackendRemoteRegion;
  remoteOffset: number;
  bytes: number;
}

/**
 * Puts of a channel whose places stand in a table, which the caller fills in again and again. The table's indices of regions
 * mean nothing here.
 */
export interface SharedParts {
  /**
   * Hot path: no allocation, never waits. Puts `count` parts from number `first` on, as one operation of the channel: it is
   * delivered when all of them are. False, with nothing posted, if there is no room now. The entries must stay as they are
   * until it is delivered. Fails with WL_INVALID_ARGUMENT for parts that the table does not have; ranges outside of a region
   * end the channel.
   */
  put(first: number, count: number): boolean;
  /** The table is the caller's alone again. None of its puts may be under way. Idempotent. */
  release(): Promise<void>;
}

/** Hot path: no allocation. */
export interface BackendChannel {
  /**
   * Resolves when operations between these regions need nothing more that could wait for a running kernel: a GPU loads
   * code and maps memory only when its kernels have ended, and one of them may wait for the operation. Left out by
   * backends without memory of GPUs.
   */
  prepare?(local: BackendRegion, remote: BackendRemoteRegion): Promise<void>;
  /**
   * Never waits; reads `place` during the call only. False, with nothing posted, if there is no room now. No bytes are
   * delivered with what was posted before: true, with nothing posted, wherever they are said to be.
   */
  put(place: PutPlace): boolean;
  /**
   * Adds to the 64-bit cell at `offset` (a multiple of 8), after the data of all earlier operations of the channel. `sum`
   * is what the cell then holds, from a caller who knows that nobody else adds: it may be written instead.
   */
  signal(remote: BackendRemoteRegion, offset: number, add: number, sum?: number): boolean;
  /**
   * Writes the 64 bits of both halves at `offset` (a multiple of 8), whole, after the data of all earlier operations.
   * Left out by backends that would have to send 8 bytes of registered memory.
   */
  store?(remote: BackendRemoteRegion, offset: number, low: number, high: number): boolean;
  /**
   * Puts of many parts of at most MAX_RANGE_BYTES between these two regions. Undefined if nothing but `put` goes between them; left out by backends
   * that have nothing else.
   */
  shareParts?(table: PartTable, local: BackendRegion, remote: BackendRemoteRegion): Promise<SharedParts | undefined>;
  /** Starts what the channel holds back so that it goes together with what follows; else the next poll does. */
  send?(): void;
  /** Operations posted so far. */
  readonly posted: number;
  /** How many of them, counted from the first, are delivered: those before it are all visible at the peer. */
  readonly delivered: number;
  /**
   * Hot path. Something that was posted waits for a call of this thread, such as a poll: the next look may find room for it,
   * or hand it over. Left out: nothing ever does, because the backend's own thread or the device goes on by itself.
   */
  readonly needsCalls?: boolean;
  /** Why the channel ended. What was posted behind the operation that failed is not counted, and may have arrived. */
  readonly error: WeftlineError | undefined;
  /** True once nothing that was posted on a failed channel reads memory of this side any more. Left out: it is so at once. */
  readonly isQuiet?: boolean;
  close(): Promise<void>;
}

/** An end that all callers share, and that may be tried again if it fails. */
export function untilDone<P extends unknown[]>(end: (...given: P) => Promise<void>): (...given: P) => Promise<void> {
  let ending: Promise<void> | undefined;
  return (...given) =>
    (ending ??= end(...given).catch((error: unknown) => {
      ending = undefined;
      throw error;
    }));
}

/** What came back from the agent must be what the backend made. */
export function own<T>(kind: abstract new (...parameters: never[]) => T, value: unknown): T {
  if (value instanceof kind) return value;
  throw invalidArgument('region', value, `a ${kind.name}`);
}

/** `known`: the incarnation of the metadata that this side has, `now` that of the agent. */
export function restarted(name: string, known: string, now: string): WeftlineError {
  return new WeftlineError(
    'WL_STALE',
    `Agent ${name} has restarted: its metadata here are of incarnation ${known}, it is ${now} now; load what its localMetadata() gives now (not the old ones again), then prepare its transfers anew`,
    { details: { peer: name, incarnation: known, now } },
  );
}
