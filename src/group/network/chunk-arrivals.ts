// Chunks of a stream from one peer that are here: chunk i comes on channel i modulo the channels, each in order.
import type { HostNetwork } from './host-network.ts';

export class ChunkArrivals {
  readonly #network: HostNetwork;
  readonly #peer: number;
  readonly #firstCell: number;
  /** What a channel's cell held when the last chunk of it was taken, by channel. */
  readonly #seen: Int32Array;
  /** Chunks of this call that were taken. */
  taken = 0;

  /** `firstCell`: that of channel 0; the others follow. `before`: what all of them hold already. */
  // oxlint-disable-next-line max-params -- for tests to come near the wrap-around of `before`
  constructor(network: HostNetwork, peer: number, firstCell: number, channels: number = network.channels, before = 0) {
    this.#network = network;
    this.#peer = peer;
    this.#firstCell = firstCell;
    this.#seen = new Int32Array(channels).fill(before);
  }

  /** A call begins, whose first chunk has number 0. */
  begin(): void {
    this.taken = 0;
  }

  /** Hot path. Takes the next chunk; false if it is not here. */
  take(): boolean {
    const channel = this.taken % this.#seen.length;
    const before = this.#seen[channel]!;
    if (((this.#network.count(this.#peer, this.#firstCell + channel) - before) | 0) <= 0) return false;
    this.#seen[channel] = (before + 1) | 0;
    this.taken++;
    return true;
  }
}
