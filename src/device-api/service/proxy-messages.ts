// What a ProxyService and the thread that serves its queues say to each other.
import type { LoadOptions } from '../../agent/agent-options.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { ListenerAddress, ListenOptions } from '../../agent/exchange/metadata-exchange.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Calls } from '../../threads/worker-link.ts';

/** What the thread is started with. */
export interface ProxyThread {
  /** What peers call it. */
  readonly name: string;
  readonly settings: Settings;
  /** Peers must have the same; see Agent. */
  readonly token: string;
  readonly backends?: readonly BackendName[] | undefined;
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string | undefined;
  /** See AgentOptions. */
  readonly stagesHostMemory?: boolean | undefined;
  /**
   * Peers are on other hosts, also where those are containers of this machine: the backend that carries memory within a
   * machine is left out. What a peer that has closed its side did not take counts as delivered, and a failure with WL_CLOSED
   * tells of each such peer.
   */
  readonly acrossHosts?: boolean | undefined;
  /** GPUs whose memory is registered; none by default. */
  readonly ordinals?: readonly number[];
  /** The memory of a WakeWord: rung when a queue or a call has something for a thread that sleeps. */
  readonly wake: SharedArrayBuffer;
}

/** Memory that both threads of the process reach: shared, or by its native address. */
export type SharedBytes = SharedArrayBuffer | { readonly address: number; readonly bytes: number };

export interface PeerRange {
  /** The number of the region in the peer's metadata. */
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
  readonly remotes: readonly PeerRange[];
  /** Nobody else writes to their counters, which are 0. */
  readonly isSoleWriter: boolean;
  /**
   * Requests of different lanes wait for nothing of each other, and may go by different engines; those of one share a
   * channel. See ChannelOptions. Left out: all requests to the peer share a channel that uses every engine.
   */
  readonly lane?: number | undefined;
}

/** Memory that the agent made and registered. */
export interface Allocation {
  readonly id: number;
  readonly address: number;
}

export interface QueueOptions {
  readonly memory: SharedBytes;
  readonly queues: number;
  readonly capacity: number;
}

export interface ProxyRegisterOptions {
  readonly address: number;
  readonly bytes: number;
  /** The GPU that it is of; the host if there is none. */
  readonly ordinal?: number | undefined;
}

export interface MetadataExchangeOptions {
  readonly how: 'exchange' | 'fetch' | 'send' | 'invalidate';
  readonly address: Omit<ListenerAddress, 'signal'>;
}

/** See Agent.loadRemoteMetadata. */
export interface AddRemoteOptions extends Omit<LoadOptions, 'signal'> {
  readonly metadata: Uint8Array;
}

/** What the thread does when it is called; what it tells unasked is why a command could not be carried out. */
export interface ProxyCalls extends Calls {
  /** Begins to carry out the commands of the queues, which stay in place until the service is closed. */
  serve(queues: QueueOptions): void;
  /** Zeroed memory of the host, registered. Freed when it is deregistered. */
  allocate(bytes: number): Promise<Allocation>;
  /** Memory of this process: of the GPU `ordinal`, or of the host. Returns the number of the region. */
  register(memory: ProxyRegisterOptions): Promise<number>;
  /** Peers can no longer use the region; no request may. */
  deregister(region: number): Promise<void>;
  /** What a peer's addRemote() takes, of what is registered now. */
  metadata(): Uint8Array;
  /** Returns the peer's name. See Agent.loadRemoteMetadata. */
  addRemote(options: AddRemoteOptions): Promise<string>;
  /** Fails with WL_INVALID_ARGUMENT unless the peer is known. Peers may have come by the listener. */
  checkRemote(peer: string): void;
  /** Forgets a peer to which no request goes. False if it is not known. */
  removeRemote(peer: string): Promise<boolean>;
  /** Takes metadata of peers that connect, and gives its own. Returns the port. */
  listen(options: ListenOptions): Promise<number>;
  /** Returns the peer's name, if its metadata came. */
  exchange(options: MetadataExchangeOptions, signal: AbortSignal): Promise<string | undefined>;
  /** Opens the way to the ranges, after which commands of the request are carried out. Returns the backend's name. */
  request(options: RequestOptions, signal: AbortSignal): Promise<BackendName>;
  releaseRequest(number: number): void;
  /** Resolves when all commands that were pushed before are delivered or have failed. */
  settle(argument: undefined, signal: AbortSignal): Promise<void>;
}
