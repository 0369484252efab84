// Registered memory of this side and of the peer, as the agent has it.
import type { BackendRegion, BackendRemoteRegion } from '../../backend.ts';
import { encodeUcxRegion, type UcxRegionName } from './ucx-info.ts';

/** What of this side uses a region. */
export interface RegionUser {
  /** Ends what is under way; resolves when UCX does not use the memory any more. */
  endUse(): Promise<void>;
}

export class UcxRegion implements BackendRegion {
  readonly info: Uint8Array;
  /** Native, of the first byte. */
  readonly address: number;
  readonly users = new Set<RegionUser>();
  readonly #onRelease: () => Promise<void>;
  #releasing: Promise<void> | undefined;

  constructor(address: number, name: UcxRegionName, onRelease: () => Promise<void>) {
    this.address = address;
    this.info = encodeUcxRegion(name);
    this.#onRelease = onRelease;
  }

  release(): Promise<void> {
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  async #release(): Promise<void> {
    await Promise.all([this.#onRelease(), ...[...this.users].map((user) => user.endUse())]);
  }
}

export class UcxRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly number: number;
  readonly key: number;

  constructor(bytes: number, { number, key }: { readonly number: number; readonly key: number }) {
    this.bytes = bytes;
    this.number = number;
    this.key = key;
  }
}
