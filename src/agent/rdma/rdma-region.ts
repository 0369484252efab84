// Registered memory over RDMA, here and at the peer, and how it is named in metadata.
import { RDMA_REGION_HEAD_BYTES } from './rdma-messages.ts';
import { getWide, setWide } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { protocolError } from '../../meeting/frames.ts';
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
  readonly users = new Set<RegionUser>();
  isReleased = false;
  readonly #registered: OwnMemory;
  /** So that the memory lives as long as the device may touch it. */
  readonly #view: Uint8Array | undefined;
  readonly release = untilDone(() => this.#release());

  /**
   * Fails with WL_CAPACITY where a limit is reached. Memory of a GPU would be direct if the device registered it, by
   * MemoryRegion.dmabuf(), where it offers that, and the backend said `takesDeviceMemory`; until then it is staged.
   */
  constructor(device: RdmaDevice, { address, bytes, view }: AgentMemory) {
    this.#registered = device.register({ address, bytes, isOffered: true });
    this.#view = view;
    this.address = address;
    const { localKey, remoteKey } = this.#registered;
    this.localKey = localKey;
    this.info = new Uint8Array(RDMA_REGION_HEAD_BYTES + remoteKey.length);
    setWide(new DataView(this.info.buffer), 0, address);
    this.info.set(remoteKey, RDMA_REGION_HEAD_BYTES);
  }

  get bytes(): number {
    return this.#view?.byteLength ?? 0;
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
  /** The link holds nothing of it any more. */
  isForgotten = false;
  /** The peer has taken the memory back: its device has refused access, or its metadata say so. */
  isWithdrawn = false;

  /** Fails with WL_PROTOCOL. */
  constructor(info: Uint8Array, { bytes, peer, keys }: RemoteRegionOptions) {
    const key = info.length > RDMA_REGION_HEAD_BYTES ? keys.add(info.subarray(RDMA_REGION_HEAD_BYTES)) : undefined;
    if (key === undefined) throw protocolError(`${info.length} bytes about a region of ${peer}`);
    this.bytes = bytes;
    this.address = getWide(new DataView(info.buffer, info.byteOffset), 0);
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
