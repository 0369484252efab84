// A Communicator of CPU ranks that moves its bytes as one on GPUs of several hosts does: later than it is told to, and through
// slots beside the windows of its host.
import {
  collectiveRegions,
  createMirroredWindow,
  rankParts,
  regionsAcrossHosts,
} from '#lib/collectives/cpu/window-regions.js';
import { CpuCollectives } from '#lib/collectives/cpu/cpu-collectives.js';
import { CpuMover } from '#lib/collectives/cpu/movements.js';
import { algorithmTable, type AlgorithmTable } from '#lib/collectives/algorithm-table.js';
import { SymmetricWindow } from '#lib/windows/symmetric-window.js';
import type { CpuDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import type { RankGroup } from 'weftline/world';

type Call = Parameters<CpuMover['reduce']>[0];

/** Does one piece of its work each time that somebody looks. */
class LateMover extends CpuMover {
  override readonly isImmediate = false;
  readonly #later: (() => void)[] = [];

  override copy(to: number, from: number, bytes: number): void {
    this.#later.push(() => super.copy(to, from, bytes));
  }

  override reduce(call: Call, count: number, out: number, bytes: number): void {
    const sources = this.sources.slice(0, count);
    const { dtype, reduction } = call;
    this.#later.push(() => {
      this.sources.set(sources);
      super.reduce({ ...call, dtype, reduction }, count, out, bytes);
    });
  }

  override isSettled(): boolean {
    this.#later.shift()?.();
    return this.#later.length === 0;
  }

  /** What a GPU does before anybody sees the results. */
  finish(): void {
    while (!this.isSettled());
  }
}

interface Late {
  readonly mover: LateMover;
  readonly slots: SymmetricWindow;
}

class LateCollectives extends CpuCollectives {
  readonly #late: Late;

  constructor(parts: ConstructorParameters<typeof CpuCollectives>[0], late: Late) {
    super(parts);
    this.#late = late;
  }

  override run(...given: Parameters<CpuCollectives['run']>): Promise<void> | undefined {
    return this.#finished(super.run(...given));
  }

  override exchange(...given: Parameters<CpuCollectives['exchange']>): Promise<void> | undefined {
    return this.#finished(super.exchange(...given));
  }

  override async close(): Promise<void> {
    await super.close();
    this.#late.slots[Symbol.dispose]();
  }

  #finished(rest: Promise<void> | undefined): Promise<void> | undefined {
    if (rest === undefined) this.#late.mover.finish();
    return rest?.then(() => this.#late.mover.finish());
  }
}

export async function createLateCommunicator(
  group: RankGroup,
  device: CpuDevice,
  { pieceBytes, algorithms }: { readonly pieceBytes: number; readonly algorithms?: Partial<AlgorithmTable> },
): Promise<Communicator> {
  const { hosts, hostIndex } = group.topology;
  const shape = { ranks: group.size, hosts: hosts.length };
  const table = algorithmTable(shape, { option: algorithms, file: '' });
  const regions = collectiveRegions(group.size, pieceBytes, { bytes: 1 << 20, mostOfSlot: 8192 });
  const all = regionsAcrossHosts(regions, group.size, hosts);
  const of = { group, device, what: 'Communicator', name: 'late', regions: all };
  const mirrored = await createMirroredWindow(of, {});
  const { window, across } = mirrored;
  const slots = await SymmetricWindow.create({
    group,
    device,
    name: 'late-slots',
    bytes: regions.bytes,
    describeCall: () => 'late',
  });
  const { topology } = group;
  const parts = rankParts(group, window, { regions, mirrors: across?.mirrors ?? 0 });
  const addresses = parts.addresses.map((address, rank) =>
    topology.hostOf(rank) === hostIndex ? slots.addresses[topology.scaleUpIndexOf(rank)]! : address,
  );
  const mover = new LateMover(device, group.size);
  const places = { areShared: false, addresses, outgoing: window.address };
  const steps = new LateCollectives(
    { group, device, regions, table, ...mirrored, elsewhere: { mover, places }, memory: undefined, directBytes: 0 },
    { mover, slots },
  );
  return Reflect.construct(Communicator, [group, device, steps]) as Communicator;
}
