// What a backend over RDMA needs of the library that drives its device, verbs or UCX: registered memory, ends of connections
// and what completes there.
import { WeftlineError } from '../../core/errors.ts';
import { isLogged, log } from '../../core/log.ts';
import { localFiles } from '../../native/file-probe.ts';
import type { HostAccess } from '../../device/tensor.ts';
import type { AsyncEvents } from '../../native/verbs/context.ts';
import type { GpuMemoryChoice } from '../../native/verbs/gpu-memory.ts';
import { hostInterfaces } from '../../rails/rail-list.ts';
import { gpuDevices } from '../../rails/nearest-device.ts';
import { chooseRdma, type RdmaChoice, rdmaHardware, type RdmaRail, railOfGpu } from '../../rails/rdma-choice.ts';
import type { Settings } from '../../settings/settings.ts';
import type { AgentMemory } from '../backend.ts';

/** Memory to be registered. */
export interface RdmaMemory {
  readonly address: number;
  readonly bytes: number;
  readonly isOffered: boolean;
  /** The GPU that it is of. */
  readonly device?: HostAccess | undefined;
}

/** Memory of this process that the device may read and write. */
export interface OwnMemory {
  /** The key by which requests of this process name it. */
  readonly localKey: number;
  /** The key by which peers name it, for `RemoteKeys.add` of theirs. */
  readonly remoteKey: Uint8Array;
  /** Once it has returned, the device refuses peers. Requests of this side must be over before. Idempotent. */
  close(): void;
}

/** Keys of one peer's memory. */
export interface RemoteKeys {
  /** The number by which requests name it; undefined if it is not understood. */
  add(key: Uint8Array): number | undefined;
  /** Once no request names it. */
  remove(number: number): void;
  /** What `isRegistered` of the peer's device is asked, of those of these numbers that have such a name. */
  namesOf(numbers: Iterable<number>): ReadonlyMap<number, string>;
}

/** Requests of one end, in the order of their posts. Sequences count them, modulo 2^32. Hot path: no allocation. */
export interface SendQueue {
  /** Requests that can be started before one must be done. */
  readonly room: number;
  /** Requests that were started, but not posted. */
  readonly unposted: number;
  /** Sequence of the next request. */
  readonly nextSequence: number;
  /** Starts a request, whose words the next calls give. `opcode`: of sendOpcode; `flags`: of sendFlag. False without room. */
  start(opcode: number, flags: number, tag: number): boolean;
  /** The request that was started last is visible behind all before it. Requests with data and no such call may pass others. */
  order(): void;
  /** Memory of this side. */
  add(address: number, bytes: number, localKey: number): void;
  /** Memory of the peer. */
  target(remoteAddress: number, remoteKey: number): void;
  /** Stands in place of target(), for an atomic addition of a number of 64 bits. */
  addend(remoteAddress: number, remoteKey: number, low: number, high: number): void;
  /** A word that the peer gets once all before it is visible there. */
  immediate(value: number): void;
  /** Asks for the completion of the request that was started last. */
  signal(): void;
  /** Hands over what was started. */
  post(): void;
  /** This request is done, and all before it. */
  doneUntil(sequence: number): void;
}

/** The first request of an end that did not succeed. Nothing completes behind it. */
export interface EndFailure {
  /**
   * `access`: the peer's device refused it; `other`: it was not carried out; `unanswered`: nobody knows what of it and of those
   * behind it was carried out; `unclear`: nor which of those under way it is; `flushed`: the end failed before.
   */
  readonly kind: 'access' | 'other' | 'unanswered' | 'unclear' | 'flushed';
  /** The sequence of the request; it means nothing if the failure is unclear. */
  readonly sequence: number;
  readonly tag: number;
  readonly error: WeftlineError;
}

/** The user of an end. Hot path. */
export interface EndUser {
  /** Requests up to this one are done, and visible at the peer. */
  done(sequence: number): void;
  /** The peer sent a word, and everything before it is visible here. */
  received(immediate: number): void;
  failed(failure: EndFailure): void;
}

export interface EndOptions {
  /** The peer's name, for errors. */
  readonly peer: string;
  /** `caller` sends and the peer writes credits; `called` receives so many words before more room is made. */
  readonly role: 'caller' | 'called';
  readonly maxSends: number;
  readonly maxReceives: number;
}

/** One end of a connection. */
export interface RdmaEnd {
  /** What the peer must know, as JSON. */
  readonly address: unknown;
  readonly sends: SendQueue;
  /** Keys of the caller's, or of the one who is called. The same object as in EndOptions, for its first end. */
  use(user: EndUser): void;
  /** `remote`: the peer's `address`. Fails with WL_PROTOCOL if it is not understood, WL_UNSUPPORTED without a way. */
  connect(remote: unknown, keys: RemoteKeys): void;
  /** Requests get through now. Some need the peer's look at its device before. */
  readonly isReady: boolean;
  /** Both ports, for errors. */
  readonly route: string;
  /** Makes room for as many words as were received. */
  replenish(): void;
  /** Once it has returned, the device touches no memory for this end. What has completed is told before. Idempotent. */
  close(): void;
}

export interface Completions {
  /** Something can complete. */
  readonly isInUse: boolean;
  /** Something is about to complete for which nothing rings: look again soon. */
  readonly isBusy: boolean;
  /** Hot path. Tells users what has completed. True if anything has. */
  poll(): boolean;
  /** What completes next makes a descriptor readable. False if something has already. Poll once more before sleeping. */
  arm(): boolean;
}

export interface RdmaDevice extends Disposable {
  /** The port, for peers and errors. */
  readonly port: { readonly name: string; readonly linkLayer: string };
  readonly portNumber: number;
  readonly events: AsyncEvents;
  readonly hasAtomics: boolean;
  /** Most bytes of one request. */
  readonly chunkBytes: number;
  readonly completions: Completions;
  /** Readable when something completes after `arm`. */
  readonly descriptors: readonly number[];
  /** Makes them unreadable, where a look at the device does not: what comes next must have been armed afterwards. */
  takeChannelEvents(): void;
  /** How it reaches memory of a GPU, and why so. Left out by those that reach memory of the host only. */
  gpuMemory?(memory: Pick<AgentMemory, 'device'>): GpuMemoryChoice;
  /**
   * Memory that peers may write, and, if `isOffered`, read and add to. Fails with WL_CAPACITY where a limit is reached, and of
   * memory of a GPU with WL_UNSUPPORTED, WL_CUDA or WL_NATIVE where the way to it is not there after all.
   */
  register(memory: RdmaMemory): OwnMemory;
  /** Peers may use the memory of which their `RemoteKeys` has this name. */
  isRegistered(name: string): boolean;
  openKeys(): RemoteKeys;
  /** Fails with WL_CAPACITY where a limit is reached. */
  openEnd(options: EndOptions): RdmaEnd;
}

/** Ports of different kinds of networks have no way to each other. Undefined if they may have. */
export function whyNotPort(own: RdmaDevice['port'], remote: RdmaDevice['port']): string | undefined {
  if (own.linkLayer === remote.linkLayer) return undefined;
  return `${own.name} is of ${own.linkLayer}, and the peer's ${remote.name} of ${remote.linkLayer}`;
}

// The port of a device that a backend uses.

interface RdmaPortChoice {
  readonly rail: RdmaRail;
  /** The address at which peers meet, if the settings say so. */
  readonly controlHost: string | undefined;
}

/**
 * The first of the ports that may be used, or the one for memory of a GPU, which its PCI address names. Fails with WL_UNSUPPORTED
 * if there is none, WL_CONFIG for wrong settings.
 */
export function choosePort(settings: Settings, gpu?: string): RdmaPortChoice {
  const files = localFiles();
  const choice = chooseRdma({ devices: rdmaHardware(files), gpus: [], interfaces: hostInterfaces() }, settings);
  const { rails } = choice;
  const rail = gpu === undefined ? rails[0] : railOfGpu(rails, gpu, gpuDevices(files));
  if (rail === undefined) throw noPort(choice);
  if (isLogged('agent', 'debug')) {
    log('agent', 'debug', `RDMA by ${rail.name} port ${rail.port} (${rail.gidReason}): ${choice.reason ?? ''}`);
  }
  return { rail, controlHost: choice.control?.addresses[0] };
}

function noPort({ others }: RdmaChoice): WeftlineError {
  const reasons = others.map(
    ({ name, port, reason }) => `${name}${port === undefined ? '' : ` port ${port}`}: ${reason}`,
  );
  const why = reasons.length === 0 ? 'it has no RDMA device' : reasons.join('; ');
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `This host has no port for RDMA: ${why}; the backend local serves peers of one host, and multipath those of others without RDMA`,
    { details: { others } },
  );
}
