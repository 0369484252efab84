// Registered memory of this side, as the agent has it.
import type { BackendRegion } from '../../backend.ts';
import { encodeUcxRegion, type UcxRegionName } from './ucx-info.ts';

export class UcxRegion implements BackendRegion {
  readonly info: Uint8Array;
  /** Native, of the first byte. */
  readonly address: number;
  readonly #onRelease: () => Promise<void>;
  #releasing: Promise<void> | undefined;

  constructor(address: number, name: UcxRegionName, onRelease: () => Promise<void>) {
    this.address = address;
    this.info = encodeUcxRegion(name);
    this.#onRelease = onRelease;
  }

  release(): Promise<void> {
    this.#releasing ??= this.#onRelease();
    return this.#releasing;
  }
}
