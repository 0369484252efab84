// Pinned memory for rings: kept for later ones, because to pin and to free wait for kernels; bounded, because peers ask for it.
import { stagingRingHead } from './wire-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { RingStorage } from './ring-memory.ts';

/** Rings that are there from the beginning: to pin memory later could wait for a kernel that waits for a peer. */
const SPARE_RINGS = 4;
/** All rings together, or as many of this side's own size, whichever is more. */
const MAX_PINNED_BYTES = 2 ** 30;
const MAX_OWN_RINGS = 256;

/** What HostMemory of a GPU offers. */
interface PinnedMemory {
  readonly bytes: number;
  readonly hostAddress: number;
  readonly buffer: ArrayBufferLike;
}

export class PinnedRings {
  readonly #allocate: (bytes: number) => PinnedMemory;
  readonly #spare: PinnedMemory[] = [];
  readonly #most: number;
  #pinnedBytes = 0;

  /** `ownBytes` is the size of this side's own rings. */
  constructor(allocate: (bytes: number) => PinnedMemory, ownBytes: number) {
    this.#allocate = allocate;
    this.#most = Math.max(MAX_PINNED_BYTES, MAX_OWN_RINGS * ownBytes);
    for (let ring = 0; ring < SPARE_RINGS; ring++) this.#spare.push(this.#pin(ownBytes));
  }

  /** The smallest spare ring that is large enough, else a new one. Fails with WL_CAPACITY beyond the bound. */
  make(bytes: number): RingStorage {
    const memory = this.#takeSpare(bytes) ?? this.#pin(bytes);
    new Uint8Array(memory.buffer, 0, stagingRingHead.size).fill(0);
    return {
      address: memory.hostAddress,
      buffer: memory.buffer,
      byteOffset: 0,
      free: () => void this.#spare.push(memory),
    };
  }

  #takeSpare(bytes: number): PinnedMemory | undefined {
    let best: PinnedMemory | undefined;
    for (const spare of this.#spare) {
      if (spare.bytes >= bytes && (best === undefined || spare.bytes < best.bytes)) best = spare;
    }
    if (best !== undefined) this.#spare.splice(this.#spare.indexOf(best), 1);
    return best;
  }

  #pin(bytes: number): PinnedMemory {
    if (this.#pinnedBytes + bytes > this.#most) {
      throw new WeftlineError(
        'WL_CAPACITY',
        `Cannot pin a ring of ${bytes} bytes for staging: rings hold ${this.#pinnedBytes} of at most ${this.#most} bytes. Close links, or set smaller pieces (WEFTLINE_STAGING_PIECE, WEFTLINE_STAGING_PIECES) on all sides`,
        { details: { bytes, pinnedBytes: this.#pinnedBytes, mostBytes: this.#most } },
      );
    }
    const memory = this.#allocate(bytes);
    this.#pinnedBytes += bytes;
    return memory;
  }
}
