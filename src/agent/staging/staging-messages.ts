// What an agent's thread and its staging thread say to each other beside the board.
import type { EncodedError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Calls } from '../../threads/worker-link.ts';
import type { BackendPeer, TransferOperation } from '../backend.ts';

/** What the thread is started with. */
export interface StagingThreadData {
  /** The backend's name in the table of backends. */
  readonly backend: string;
  readonly agentName: string;
  readonly incarnation: string;
  readonly settings: Settings;
  readonly token: string;
  readonly host: string;
  /** Memory of the thread's own WakeWord, and of the agent's. */
  readonly wake: SharedArrayBuffer;
  readonly agentWake: SharedArrayBuffer;
  /** Memory of the StagingBoard. */
  readonly board: SharedArrayBuffer;
}

export interface StagedMemoryOptions {
  readonly address: number;
  readonly bytes: number;
  /** The GPU that owns it; undefined of host memory. */
  readonly ordinal: number | undefined;
  /** Peers may name it. */
  readonly isOffered: boolean;
}

export interface LaneOptions {
  /** The peer as its metadata describe it. */
  readonly peer: BackendPeer;
  /** The address of the peer's staging thread: pieces go there. Undefined: they go to and from host memory of the peer's agent. */
  readonly connectionInfo: Uint8Array | undefined;
  /** Memory of GPUs of this side goes through it. */
  readonly isPinned: boolean;
  /** Memory of the lane's StagedMessages. */
  readonly messages: SharedArrayBuffer;
  readonly timeoutMs: number;
}

/** Memory of a peer: staged there, or what its agent's backend published of it. */
export type RemoteMemoryName =
  | { readonly number: number; readonly key: number; readonly bytes: number }
  | { readonly info: Uint8Array; readonly bytes: number };

export interface StagedPlan {
  readonly lane: number;
  /** The transfer's number on the board. */
  readonly transfer: number;
  readonly operation: TransferOperation;
  /** Numbers of staged memory. */
  readonly locals: readonly number[];
  readonly remotes: readonly RemoteMemoryName[];
  /** Memory of the PartTable, and whether it is written anew before each post. */
  readonly parts: SharedArrayBuffer;
  readonly isBySelection: boolean;
}

export interface StagingCalls extends Calls {
  /** Makes the thread's backend. Returns how peers' staging threads reach it. */
  start(): Promise<Uint8Array>;
  register(memory: StagedMemoryOptions): Promise<{ readonly number: number; readonly key: number }>;
  /** Resolves when no device and no peer touches the memory any more. */
  release(memory: number): Promise<void>;
  openLane(options: LaneOptions, signal: AbortSignal): Promise<number>;
  closeLane(lane: number): Promise<void>;
  prepare(plan: StagedPlan): Promise<void>;
  unprepare(transfer: number): Promise<void>;
  openChannel(options: { readonly lane: number; readonly channel: number }): void;
  /** The number by which commands of the channel name the peer's memory. */
  importRemote(options: { readonly channel: number; readonly remote: RemoteMemoryName }): number;
  closeChannel(channel: number): Promise<void>;
  stop(): Promise<void>;
}

/** Sent before the board says that something failed. */
export type StagingEvent =
  | { readonly transfer: number; readonly error: EncodedError }
  | { readonly channel: number; readonly error: EncodedError }
  | { readonly lane: number; readonly error: EncodedError };
