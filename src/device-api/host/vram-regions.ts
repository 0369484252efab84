// The registered memory of a DeviceHost, and ranges of it.
import { MAX_COMMAND_OFFSET } from '../../abi/device-api.ts';
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';

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

/** Of memory that is to be registered. Fails with WL_INVALID_ARGUMENT. */
export function checkBytes(bytes: number): void {
  if (Number.isSafeInteger(bytes) && bytes >= 1 && bytes <= MAX_COMMAND_OFFSET) return;
  throw invalidArgument('bytes', bytes, `1 to ${MAX_COMMAND_OFFSET}`);
}

const rangeNames: OptionNames<VramRange> = { memory: true, offset: true, bytes: true };

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
  range(range: VramRange): Required<VramRange> {
    checkOptions(range, rangeNames, 'range');
    const { memory, offset = 0, bytes } = range;
    const known = this.known(memory);
    const size = bytes ?? (isWhole(offset, 0) ? known.bytes - offset : 0);
    const isInside = Number.isInteger(offset) && Number.isInteger(size) && offset >= 0 && size > 0;
    if (isInside && offset + size <= known.bytes) return { memory: known, offset, bytes: size };
    const shown = isWhole(offset, 0) && isWhole(size, 0) ? [offset, offset + size] : [offset, bytes];
    throw invalidArgument('range', shown, `inside the ${known.bytes} bytes of its memory`);
  }

  /** Fails with WL_INVALID_ARGUMENT for memory that is not registered here, or no longer. */
  known(memory: RegisteredVram): RegisteredVram {
    const id = (memory as RegisteredVram | null | undefined)?.id;
    const known = id === undefined ? undefined : this.#regions.get(id);
    if (known !== undefined) return known;
    const expected = 'what registerVram() of this host returned, until it is deregistered';
    if (!isWhole(id, 0)) throw invalidArgument('memory', memory, expected);
    const what = `region ${id}, which this host has not registered, or has deregistered already`;
    throw new WeftlineError('WL_INVALID_ARGUMENT', `Invalid memory: expected ${expected}, got ${what}`, {
      details: { argument: 'memory', value: id, expected },
    });
  }
}
