// What ranks of other hosts said when they gave up: a slot per rank in the memory that peers write to.
import { NETWORK_ABORT_BYTES } from '../../abi/network.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { decodeAbort, encodeAbort } from '../../windows/abort-record.ts';

/** Bytes of the length that stands before a text. */
const LENGTH_BYTES = 4;

export class AbortSlots {
  readonly #device: CpuDevice;
  /** The address of the slots in this rank's memory. */
  readonly #address: number;

  constructor(device: CpuDevice, address: number) {
    this.#device = device;
    this.#address = address;
  }

  /** Offset of the slot of a rank of the group among the slots. */
  offsetOf(rank: number): number {
    return rank * NETWORK_ABORT_BYTES;
  }

  /** Puts what this rank says into its own slot, for peers to get it from there. Returns how many bytes that are. */
  write(rank: number, worldRank: number, error: unknown): number {
    const text = encodeAbort(error, worldRank, NETWORK_ABORT_BYTES - LENGTH_BYTES);
    const at = this.#address + this.offsetOf(rank);
    this.#device.hostView('i32', at, 1)[0] = text.length;
    this.#device.hostView('u8', at + LENGTH_BYTES, text.length).set(text);
    return LENGTH_BYTES + text.length;
  }

  /** What a peer put here before it signalled. */
  read(rank: number, worldRank: number): WeftlineError {
    const at = this.#address + this.offsetOf(rank);
    const length = Math.min(this.#device.hostView('i32', at, 1)[0]!, NETWORK_ABORT_BYTES - LENGTH_BYTES);
    return decodeAbort(this.#device.hostView('u8', at + LENGTH_BYTES, length), worldRank);
  }
}
