// Tensors that all ranks of a Communicator have mapped, so that large calls read and write them where they lie.
import { COLLECTIVE_MAX_RANKS, COLLECTIVE_MAX_REGISTRATIONS } from '../../abi/collectives.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Storage, Tensor } from '../../device/tensor.ts';
import type { TensorAllocator } from '../../device/device.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';

/** What the driver shares at once: of smaller allocations the other ranks would map the neighbours as well. */
const SHARED_BLOCK = 2 << 20;

/** Memory of this rank that has a number, the same one on all ranks. */
interface Registered {
  readonly id: number;
  readonly storage: Storage;
  /** The begin of the allocation that holds it. */
  readonly base: number;
  /** Bytes of the smallest memory of all ranks. */
  readonly leastBytes: number;
}

/** The place of a tensor in what is registered; `id` 0 for one that is not. */
export interface RegisteredPlace {
  id: number;
  offset: number;
  /** Offset in the registered memory, which is part of the allocation, and how much every rank has from there on. */
  within: number;
  leastBytes: number;
}

interface Offer {
  /** The number of an earlier call, 0 for none. */
  readonly known: number;
  readonly handle: string;
  readonly bytes: number;
  /** The registered part of the allocation. */
  readonly start: number;
  readonly length: number;
}

export class Registrations implements Disposable {
  readonly #group: RankGroup;
  readonly #device: CudaDevice;
  /** i64 [ids, ranks]: addresses here; read by kernels. */
  readonly #table: Tensor<'i64'>;
  readonly #addresses = new BigInt64Array((COLLECTIVE_MAX_REGISTRATIONS + 1) * COLLECTIVE_MAX_RANKS);
  /** The begin of the registered parts in those allocations. */
  readonly #starts = new Float64Array(this.#addresses.length);
  readonly #registered: Registered[] = [];
  /** Allocations by owner and handle: each is opened once. */
  readonly #opened = new Map<string, Storage>();
  #last = 0;

  constructor(group: RankGroup, device: CudaDevice, table: Tensor<'i64'>) {
    this.#group = group;
    this.#device = device;
    this.#table = table;
  }

  static makeTable(device: TensorAllocator): Tensor<'i64'> {
    return device.empty('i64', [(COLLECTIVE_MAX_REGISTRATIONS + 1) * COLLECTIVE_MAX_RANKS]);
  }

  get address(): number {
    return this.#table.address;
  }

  /** How many there have been, the same on all ranks. */
  get count(): number {
    return this.#last;
  }

  /** Collective. Fails on all ranks alike. Nothing is registered where the memory of one rank is too small for it. */
  async add({ storage }: Tensor, wait: CallWait): Promise<void> {
    const { ranks } = this.#group;
    const offer = (): Offer => {
      const known = this.#registered.find((one) => one.storage === storage)?.id ?? 0;
      const { base, handle, bytes } = this.#device.exportAllocation(storage.address);
      const part = { start: storage.address - base, length: storage.bytes };
      return { known, handle: ranks.length === 1 ? '' : handle, bytes, ...part };
    };
    const offers = await shareOutcome(this.#group, { name: 'collectives/register', facts: {}, work: offer }, wait);
    if (offers.failure !== undefined) throw offers.failure;
    const all = offers.values as readonly Offer[];
    if (all.some(({ bytes }) => bytes < SHARED_BLOCK)) return;
    if (all.every(({ known }) => known !== 0 && known === all[0]!.known)) return;
    const id = this.#last + 1;
    const open = async (): Promise<void> => {
      if (id > COLLECTIVE_MAX_REGISTRATIONS) throw tooMany();
      for (const [rank, { handle, bytes, start }] of all.entries()) {
        if (rank === this.#group.rank) continue;
        this.#addresses[id * COLLECTIVE_MAX_RANKS + rank] = BigInt(this.#open(rank, handle, bytes).address);
        this.#starts[id * COLLECTIVE_MAX_RANKS + rank] = start;
      }
      await this.#table.fromHost(this.#addresses);
      await this.#device.stream.idle(remaining(wait));
    };
    const opened = await shareOutcome(this.#group, { name: 'collectives/map', facts: {}, work: open }, wait);
    if (opened.failure !== undefined) throw opened.failure;
    this.#last = id;
    const { base } = this.#device.exportAllocation(storage.address);
    this.#registered.push({ id, storage, base, leastBytes: Math.min(...all.map(({ length }) => length)) });
  }

  /** Hot path. Memory that was given back counts no more, whoever has it now. */
  locate(address: number, place: RegisteredPlace): void {
    place.id = 0;
    place.offset = 0;
    place.within = 0;
    place.leastBytes = 0;
    if (address === 0) return;
    for (const { id, storage, base, leastBytes } of this.#registered) {
      if (storage.disposed || address < storage.address || address >= storage.address + storage.bytes) continue;
      place.id = id;
      place.offset = address - base;
      place.within = address - storage.address;
      place.leastBytes = leastBytes - place.within;
    }
  }

  /** The address at which the same place of another rank's registered memory is mapped here. */
  addressAt(rank: number, { id, within }: Readonly<RegisteredPlace>): number {
    const at = id * COLLECTIVE_MAX_RANKS + rank;
    return Number(this.#addresses[at]!) + this.#starts[at]! + within;
  }

  /** No kernel of any rank that uses them may be running. */
  [Symbol.dispose](): void {
    for (const memory of this.#opened.values()) memory[Symbol.dispose]();
    this.#opened.clear();
    this.#registered.length = 0;
  }

  #open(rank: number, handle: string, bytes: number): Storage {
    const key = `${rank} ${handle}`;
    let memory = this.#opened.get(key);
    if (memory === undefined) this.#opened.set(key, (memory = this.#device.openPeerMemory(handle, bytes)));
    return memory;
  }
}

function tooMany(): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `A Communicator registers at most ${COLLECTIVE_MAX_REGISTRATIONS} tensors: register larger ones, and use slices of them`,
    { details: { most: COLLECTIVE_MAX_REGISTRATIONS } },
  );
}
