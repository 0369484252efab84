// Stores of 8 bytes over a channel that only puts registered memory: the bytes wait there until they are delivered. Hot path.
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../../agent/backend.ts';

const SLOTS = 512;
export const STAGED_BYTES: number = SLOTS * 8;

export class StagedStores {
  readonly #channel: BackendChannel;
  readonly #words: Uint32Array;
  /** By slot: what the channel will have delivered when the slot is free. */
  readonly #sequences = new Float64Array(SLOTS);
  readonly #local: BackendRegion;
  /** Made with the first put. */
  #place: PutPlace | undefined;
  #next = 0;

  /** `memory` is that of `local`, of STAGED_BYTES. */
  constructor(channel: BackendChannel, local: BackendRegion, memory: ArrayBuffer) {
    this.#channel = channel;
    this.#local = local;
    this.#words = new Uint32Array(memory);
  }

  /** False, with nothing posted, if there is no room now. */
  put(remote: BackendRemoteRegion, remoteOffset: number, low: number, high: number): boolean {
    const slot = this.#next;
    if (this.#channel.delivered < this.#sequences[slot]!) return false;
    this.#words[slot * 2] = low;
    this.#words[slot * 2 + 1] = high;
    this.#place ??= { local: this.#local, localOffset: 0, remote, remoteOffset: 0, bytes: 8 };
    const place = this.#place;
    place.localOffset = slot * 8;
    place.remote = remote;
    place.remoteOffset = remoteOffset;
    if (!this.#channel.put(place)) return false;
    this.#sequences[slot] = this.#channel.posted;
    this.#next = (slot + 1) % SLOTS;
    return true;
  }
}
