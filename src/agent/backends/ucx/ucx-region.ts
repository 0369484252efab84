// Registered memory of this side and of the peer, as the agent has it.
import type { BackendRegion, BackendRemoteRegion } from '../../backend.ts';
import { encodeUcxRegion, type UcxRegionName } from './ucx-info.ts';

/** Memory that peers may use. */
export interface OpenRegion {
  readonly address: number;
  readonly bytes: number;
  readonly key: number;
  /** So that the memory lives as long. */
  readonly view: Uint8Array | undefined;
}

/** What of this side uses a region. */
export interface RegionUser {
  /** Ends what is under way; resolves when UCX does not use the memory any more. */
  endUse(): Promise<void>;
}

export interface RegionTools {
  /** Resolves when nothing of peers uses the region any more. */
  readonly endRemoteUse: () => Promise<void>;
  /** Nothing at all does. */
  readonly forget: () => void;
}

export class UcxRegion implements BackendRegion {
  readonly info: Uint8Array;
  /** Native, of the first byte. */
  readonly address: number;
  /** Of this side, as UcxTables has it. */
  readonly number: number;
  readonly users = new Set<RegionUser>();
  readonly #tools: RegionTools;
  #releasing: Promise<void> | undefined;

  constructor(name: UcxRegionName, tools: RegionTools) {
    this.address = name.address;
    this.number = name.number;
    this.info = encodeUcxRegion(name);
    this.#tools = tools;
  }

  release(): Promise<void> {
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  async #release(): Promise<void> {
    await Promise.all([this.#tools.endRemoteUse(), ...[...this.users].map((user) => user.endUse())]);
    this.#tools.forget();
  }
}

export class UcxRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly number: number;
  readonly key: number;
  /** In UcxTables; -1 if it is used by messages only. */
  readonly place: number;

  constructor(bytes: number, { number, key }: UcxRegionName, place: number) {
    this.bytes = bytes;
    this.number = number;
    this.key = key;
    this.place = place;
  }
}
