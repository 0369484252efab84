// Registered memory over RDMA, here and at the peer, and how it is named in metadata.
import { rdmaRegionInfo } from './rdma-messages.ts';
import { Block } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { protocolError } from '../../meeting/frames.ts';
import type { GpuMemoryChoice } from '../../native/verbs/gpu-memory.ts';
import { type AgentMemory, type BackendRegion, type BackendRemoteRegion, untilDone } from '../backend.ts';
import type { OwnMemory, RdmaDevice, RemoteKeys } from './rdma-device.ts';

/** What of this side uses a region. */
export interface RegionUser {
  /** Ends what is under way; resolves when the device does not use the memory any more. */
  endUse(): Promise<void>;
}

export class RdmaRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly address: number;
  readonly localKey: number;
  /** How the device reaches it; undefined of memory of the host. */
  readonly gpu: GpuMemoryChoice | undefined;
  readonly users = new Set<RegionUser>();
  isReleased = false;
  readonly #registered: OwnMemory;
  /** So that the memory lives as long as the device may touch it. */
  readonly #memory: AgentMemory;
  readonly release = untilDone(() => this.#release());

  /** Fails with WL_CAPACITY where a limit is reached, and of memory of a GPU as the driver or the device refuses it. */
  constructor(device: RdmaDevice, memory: AgentMemory) {
    const { address } = memory;
    this.gpu = memory.kind === 'host' ? undefined : device.gpuMemory?.(memory);
    this.#registered = device.register({ ...memory, isOffered: true });
    this.#memory = memory;
    this.address = address;
    const { localKey, remoteKey } = this.#registered;
    this.localKey = localKey;
    this.info = new Uint8Array(rdmaRegionInfo.size + remoteKey.length);
    const head = Block.over(rdmaRegionInfo, this.info);
    head.set('address', address);
    head.set('isFlushed', this.isFlushed ? 1 : 0);
    this.info.set(remoteKey, rdmaRegionInfo.size);
  }

  get bytes(): number {
    return this.#memory.bytes;
  }

  /** What the device has written there is shown behind a read of it by the device. */
  get isFlushed(): boolean {
    return this.gpu?.flush === 'read';
  }

  /** ORDER: the device refuses peers' requests once the registration is closed; requests of this side must be over before. */
  async #release(): Promise<void> {
    this.isReleased = true;
    await Promise.all([...this.users].map((user) => user.endUse()));
    this.#registered.close();
  }
}

export class RdmaRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly address: number;
  readonly key: number;
  /** What was written there is shown behind a read of it; see RdmaRegion. */
  readonly isFlushed: boolean;
  /** The link holds nothing of it any more. */
  isForgotten = false;
  /** The peer has taken the memory back: its device has refused access, or its metadata say so. */
  isWithdrawn = false;

  /** Fails with WL_PROTOCOL. */
  constructor(info: Uint8Array, { bytes, peer, keys }: RemoteRegionOptions) {
    const key = info.length > rdmaRegionInfo.size ? keys.add(info.subarray(rdmaRegionInfo.size)) : undefined;
    if (key === undefined) throw protocolError(`${info.length} bytes about a region of ${peer}`);
    this.bytes = bytes;
    const head = Block.over(rdmaRegionInfo, info);
    this.address = head.get('address');
    this.isFlushed = head.get('isFlushed') !== 0;
    this.key = key;
  }
}

interface RemoteRegionOptions {
  readonly bytes: number;
  readonly peer: string;
  readonly keys: RemoteKeys;
}

export function areWithdrawn(remotes: readonly RdmaRemoteRegion[]): boolean {
  for (const remote of remotes) if (remote.isWithdrawn) return true;
  return false;
}

export function withdrawnError(peer: string): WeftlineError {
  return new WeftlineError(
    'WL_UNAUTHORIZED',
    `${peer} has taken back this memory: its device refused access (IBV_WC_REM_ACCESS_ERR)`,
    { details: { peer } },
  );
}
