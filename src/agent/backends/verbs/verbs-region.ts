// Registered memory over RDMA, here and at the peer, and how it is named in metadata.
import { Block } from '../../../abi/layout.ts';
import { verbsRegionInfo } from '../../../abi/verbs-agent.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';
import type { AgentMemory } from '../../agent-memory.ts';
import type { BackendRegion, BackendRemoteRegion } from '../../backend.ts';

/** What of this side uses a region. */
export interface RegionUser {
  /** Ends what is under way; resolves when the device does not use the memory any more. */
  endUse(): Promise<void>;
}

export class VerbsRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly address: number;
  readonly localKey: number;
  readonly users = new Set<RegionUser>();
  isReleased = false;
  readonly #registered: MemoryRegion;
  /** So that the memory lives as long as the device may touch it. */
  readonly #view: Uint8Array | undefined;
  #releasing: Promise<void> | undefined;

  /**
   * Fails with WL_CAPACITY where a limit is reached. Memory of a GPU would be direct if it were registered here by
   * MemoryRegion.dmabuf(), on devices that offer that, and the backend said `takesDeviceMemory`; until then it is staged.
   */
  constructor(domain: ProtectionDomain, { address, bytes, view }: AgentMemory) {
    // Without relaxed ordering, whatever the setting: receivers of signals look at memory, not at completions.
    const access = {
      remoteWrite: true,
      remoteRead: true,
      remoteAtomic: domain.context.attributes.atomicCap !== 'none',
    };
    this.#registered = MemoryRegion.host(domain, address, bytes, access);
    this.#view = view;
    this.address = address;
    this.localKey = this.#registered.localKey;
    this.info = new Uint8Array(verbsRegionInfo.size);
    const block = Block.over(verbsRegionInfo, this.info);
    block.set('address', address);
    block.set('key', this.#registered.remoteKey);
  }

  get bytes(): number {
    return this.#view?.byteLength ?? 0;
  }

  release(): Promise<void> {
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  /** ORDER: the device refuses peers' requests once the registration is closed; requests of this side must be over before. */
  async #release(): Promise<void> {
    this.isReleased = true;
    await Promise.all([...this.users].map((user) => user.endUse()));
    this.#registered.close();
  }
}

export class VerbsRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly address: number;
  readonly key: number;
  /** The peer's device has refused access: the peer has taken the memory back. */
  isWithdrawn = false;

  /** Fails with WL_PROTOCOL. */
  constructor(info: Uint8Array, bytes: number, peer: string) {
    if (info.length !== verbsRegionInfo.size) throw protocolError(`${info.length} bytes about a region of ${peer}`);
    const block = Block.over(verbsRegionInfo, info);
    this.bytes = bytes;
    this.address = block.get('address');
    this.key = block.get('key');
  }
}

/** What came back from the agent must be what this backend made. */
export function own<T>(kind: abstract new (...parameters: never[]) => T, value: unknown): T {
  if (value instanceof kind) return value;
  throw invalidArgument('region', value, `a ${kind.name}`);
}

export function areWithdrawn(remotes: readonly VerbsRemoteRegion[]): boolean {
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
