// The registered memory of a DeviceHost, and ranges of it.
import { invalidArgument } from '../../core/errors.ts';

/** Memory that requests may read from and peers may write to. */
export interface RegisteredVram {
  /** Number of the region at this host. */
  readonly id: number;
  /** On the device. */
  readonly address: number;
  readonly bytes: number;
  /** The GPU whose kernels use it, by its ordinal; 0 on the CPU. */
  readonly deviceId: number;
}

/** A range of a registered region. */
export interface VramRange {
  readonly memory: RegisteredVram;
  readonly offset?: number;
  readonly bytes?: number;
}

export class VramRegions {
  readonly #regions = new Map<number, RegisteredVram>();

  add(memory: RegisteredVram): RegisteredVram {
    this.#regions.set(memory.id, memory);
    return memory;
  }

  remove({ id }: RegisteredVram): void {
    this.#regions.delete(id);
  }

  /** Whole numbers, inside of registered memory. Fails with WL_INVALID_ARGUMENT. */
  range({ memory, offset = 0, bytes }: VramRange): Required<VramRange> {
    const known = this.known(memory);
    const size = bytes ?? known.bytes - offset;
    const isInside = Number.isInteger(offset) && Number.isInteger(size) && offset >= 0 && size > 0;
    if (isInside && offset + size <= known.bytes) return { memory: known, offset, bytes: size };
    throw invalidArgument('range', [offset, offset + size], `inside the ${known.bytes} bytes of its memory`);
  }

  /** Fails with WL_INVALID_ARGUMENT for memory that is not registered here, or no longer. */
  known(memory: RegisteredVram): RegisteredVram {
    const known = this.#regions.get(memory.id);
    if (known === undefined) throw invalidArgument('memory', memory.id, 'what registerVram() of this host returned');
    return known;
  }
}
