// A registered region: memory that messages are sent from and arrive in, and that peers may read or write with its key.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';

/** What a peer that holds the key may do. */
export interface RemoteAccess {
  readonly read: boolean;
  readonly write: boolean;
}

export interface Region {
  /** The region's number in the engine; never used again for another region while 2^16 others come and go. */
  readonly id: number;
  /** What a peer must show to read or write the region. */
  readonly key: number;
  /** The memory itself. It belongs to the caller and must stay where it is until the region is released. */
  readonly bytes: Uint8Array;
  /** Native address of the first byte, for an I/O that passes references to the kernel; 0 where there is none. */
  readonly address: number;
  readonly remote: RemoteAccess;
}

export interface RegionOptions {
  readonly bytes: Uint8Array;
  /** Native address of the first byte; 0 if missing. */
  readonly address?: number;
  /** What peers may do that hold the key; nothing if missing. */
  readonly remote?: Partial<RemoteAccess>;
  /** That of the same memory in another engine of this side; a new one if missing. An engine takes only one of the two kinds. */
  readonly name?: RegionName | undefined;
}

/** What peers must show to reach a region. */
export interface RegionName {
  /** The number is not used again soon: a request that still waits may name a region that was released. */
  readonly id: number;
  readonly key: number;
}

const MAX_REGIONS = 2 ** 16;

/** The regions that an engine has registered, by number; a number is a slot and a generation. */
export class RegionTable {
  readonly #slots: (Region | undefined)[] = [];
  readonly #generations: number[] = [];
  readonly #free: number[] = [];

  register({ bytes, address = 0, remote = {}, name }: RegionOptions): Region {
    if (!(bytes instanceof Uint8Array)) throw invalidArgument('bytes', bytes, 'a Uint8Array');
    const { id, key } = name ?? this.#newName();
    const slot = id % MAX_REGIONS;
    if (this.#slots[slot] !== undefined) throw invalidArgument('name.id', id, 'one that no registered region has');
    const region: Region = Object.freeze({
      id,
      key,
      bytes,
      address,
      remote: Object.freeze({ read: remote.read ?? false, write: remote.write ?? false }),
    });
    this.#slots[slot] = region;
    return region;
  }

  #newName(): RegionName {
    const slot = this.#free.pop() ?? this.#slots.length;
    if (slot === MAX_REGIONS) {
      throw new WeftlineError('WL_CAPACITY', `Cannot register another region: the engine has ${MAX_REGIONS}`, {
        details: { regions: MAX_REGIONS },
      });
    }
    const generation = ((this.#generations[slot] ?? 0) % 0xffff) + 1;
    this.#generations[slot] = generation;
    return { id: generation * MAX_REGIONS + slot, key: crypto.getRandomValues(new Uint32Array(1))[0]! };
  }

  release(region: Region): void {
    const slot = region.id % MAX_REGIONS;
    if (this.#slots[slot] !== region) return;
    this.#slots[slot] = undefined;
    // Names that were given belong to the table that made them.
    if (this.#generations[slot] === Math.floor(region.id / MAX_REGIONS)) this.#free.push(slot);
  }

  isRegistered(region: Region): boolean {
    return this.#slots[region.id % MAX_REGIONS] === region;
  }

  /** Takes any 32-bit number, as signed or unsigned. */
  find(id: number): Region | undefined {
    const region = this.#slots[id & (MAX_REGIONS - 1)];
    return region !== undefined && region.id === id >>> 0 ? region : undefined;
  }
}
