// What the calls of an agent take.
import type { OptionNames } from '../core/check-options.ts';
import { type CallWait, callWaitNames, type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import type { Settings } from '../settings/settings.ts';
import type { BackendLink, BackendRegion, BackendRemoteRegion, TransferOperation } from './backend.ts';
import type { BackendName } from './backends/backend-table.ts';
import type { DescriptorList } from './descriptors.ts';
import type { Registration } from './registration.ts';

/** How an agent reaches its peers, and which settings it has. */
export interface AgentOptions {
  /** These, all of which must work. By default those that work here; of these `ucx` only with an active RDMA port. */
  readonly backends?: readonly BackendName[];
  /** Win over the environment. */
  readonly settings?: Partial<Settings>;
  /** Peers must hold the same; WEFTLINE_TOKEN by default. Without any, peers are processes of this user on this host. */
  readonly token?: string;
  /**
   * The numeric address at which peers reach this host. By default, in a job over several hosts, the one on the route to its
   * master; else 127.0.0.1. Others than loopback addresses need a token.
   */
  readonly host?: string;
  /** False: backends work inside waits and `poll` only, for latency. True by default: on threads of their own. */
  readonly ownThread?: boolean;
  /** @internal For tests: host memory is staged as memory of GPUs is. */
  readonly stagesHostMemory?: boolean;
}

export const agentOptionNames: OptionNames<AgentOptions> = {
  backends: true,
  settings: true,
  token: true,
  host: true,
  ownThread: true,
  stagesHostMemory: true,
};

/** How a call loads a peer's metadata. */
export interface LoadOptions extends WaitOptions {
  /**
   * The peer itself told them just now, so that it need not be asked whether it lives.
   * @internal
   */
  readonly heard?: boolean;
}

export const loadOptionNames: OptionNames<LoadOptions> = { ...waitOptionNames, heard: true };

/** What localMetadata() tells. */
export interface MetadataOptions {
  /** The regions to tell of; the peer keeps what it knows of others. */
  readonly regions?: readonly Registration[];
  /** Closed registrations, whose memory the peer should forget. Whole metadata, which list all memory there is, do not need it. */
  readonly withdrawn?: readonly Registration[];
  /** False leaves out what peers need to connect, for a peer that knows it. True by default. */
  readonly connections?: boolean;
}

export const metadataOptionNames: OptionNames<MetadataOptions> = { regions: true, withdrawn: true, connections: true };

/** What a transfer moves, between which memory. */
export interface PrepareOptions extends CallWait {
  readonly operation: TransferOperation;
  readonly peer: string;
  readonly local: DescriptorList;
  /** Entry i goes with entry i of `local` and has its size, unless `bySelection` is true. */
  readonly remote: DescriptorList;
  /** Each post says which entries it moves; the lists may have different numbers of them. False by default. */
  readonly bySelection?: boolean;
  /** This one or none. */
  readonly backend?: BackendName;
  /** Neighbours that are neighbours on both sides are moved as one. True by default. */
  readonly merge?: boolean;
}

export const prepareOptionNames: OptionNames<PrepareOptions> = {
  ...callWaitNames,
  operation: true,
  peer: true,
  local: true,
  remote: true,
  backend: true,
  bySelection: true,
  merge: true,
};

/** The backend to take, and how long to wait for it. */
export interface PeerOptions extends CallWait {
  readonly backend?: BackendName | undefined;
}

export const peerOptionNames: OptionNames<PeerOptions> = { ...callWaitNames, backend: true };

/** Everything that a channel needs for one pair of regions. */
export interface ChannelParts {
  readonly backend: BackendName;
  readonly link: BackendLink;
  readonly local: BackendRegion;
  readonly remote: BackendRemoteRegion;
}
