// What a DeviceHost and the thread that serves its queues say to each other.
import type { BackendName } from '../../agent/backend.ts';
import type { EncodedError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';

export interface ProxyWorkerData {
  readonly agent: string;
  readonly settings: Settings;
  readonly token: string;
  readonly backends: readonly BackendName[] | undefined;
  /** The address that peers reach this host by. */
  readonly host: string | undefined;
  /** GPU whose memory is registered; undefined on the CPU. */
  readonly ordinal: number | undefined;
  /** Of a WakeWord: rung when a queue or a call has something for a thread that sleeps. */
  readonly wake: SharedArrayBuffer;
}

/** Memory that both threads of the process reach: shared, or by its native address. */
export type SharedBytes = SharedArrayBuffer | { readonly address: number; readonly bytes: number };

export interface RemoteRange {
  /** As the peer's metadata numbers it. */
  readonly region: number;
  readonly offset: number;
  readonly bytes: number;
}

export interface RequestOptions {
  readonly number: number;
  readonly region: number;
  readonly offset: number;
  readonly bytes: number;
  readonly peer: string;
  readonly remotes: readonly RemoteRange[];
  /** Nobody else writes to their counters, which are 0. */
  readonly isSoleWriter: boolean;
}

/** Memory that the agent made and registered. */
export interface Allocation {
  readonly id: number;
  readonly address: number;
}

/** Answered with, in this order: nothing, Allocation, number of the region, metadata, the peer's name, the path, nothing. */
export type ProxyCall =
  | { readonly name: 'serve'; readonly memory: SharedBytes; readonly queues: number; readonly capacity: number }
  | { readonly name: 'allocate'; readonly bytes: number }
  | { readonly name: 'register'; readonly address: number; readonly bytes: number }
  | { readonly name: 'metadata' }
  | { readonly name: 'addRemote'; readonly metadata: Uint8Array }
  /** Opens the way to the ranges, after which commands of the request are carried out. */
  | { readonly name: 'request'; readonly options: RequestOptions }
  | { readonly name: 'stop' };

export interface ProxyCallMessage {
  readonly id: number;
  readonly call: ProxyCall;
}

export type ProxyAnswer =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: EncodedError }
  /** A command could not be carried out. */
  | { readonly failure: EncodedError };
