// Makes the engine of a Communicator on GPUs of several hosts: the ranks agree, compile, then make windows and links together.
import { COLLECTIVE_MAX_RANKS_ACROSS_HOSTS } from '../../abi/collectives.ts';
import { agreeOn } from '../../group/agree.ts';
import { CudaCallOrder } from '../../group/cuda-call-order.ts';
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { PinnedRange } from '../../device/cuda/host-memory.ts';
import { CudaWindow } from '../../windows/cuda-window.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import { type SymmetricWindow, windowFootprint } from '../../windows/symmetric-window.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { AlgorithmTable } from '../algorithm-table.ts';
import type { CollectiveEngine } from '../collective-engine.ts';
import type { CheckedCommunicatorOptions } from '../communicator-options.ts';
import { CpuCollectives } from '../cpu/cpu-collectives.ts';
import type { DataPlaces } from '../cpu/data-places.ts';
import { createMirroredWindow, type MirroredWindow } from '../cpu/mirrored-window.ts';
import { type RankParts, rankParts } from '../cpu/rank-parts.ts';
import { collectiveRegions, regionsAcrossHosts } from '../cpu/window-regions.ts';
import { HostsCollectives } from './hosts-collectives.ts';
import { loadRunPlans, type RunPlans, StreamMover } from './stream-mover.ts';

const MIB = 1 << 20;
/** Of a rank's messages to all others: enough that a piece is worth the host's work for it; and of all ranks together. */
const CHANNEL_BYTES = 16 * MIB;
const CHANNELS_OF_ALL = 256 * MIB;
const MAX_CHANNEL_SLOT = MIB;
/** Beside the windows: the kernels' own data, and a step in which memory grows. */
const SPARE_MIB = 80;

/** Collective; fails alike on all ranks. */
export async function createHostsCollectives(
  group: RankGroup,
  device: CudaDevice,
  { pieceBytes, numSms, table, ...wait }: CallWait & CheckedCommunicatorOptions & { readonly table: AlgorithmTable },
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const { hosts, scaleUpRanks } = group.topology;
  const channels = { bytes: Math.min(CHANNEL_BYTES, CHANNELS_OF_ALL / group.size), mostOfSlot: MAX_CHANNEL_SLOT };
  const regions = collectiveRegions(group.size, pieceBytes, channels);
  const all = regionsAcrossHosts(regions, group.size, hosts);
  const config = { pieceBytes, numSms, algorithms: JSON.stringify(table), device: device.kind };
  await agreeOn(group, { what, config, prepare: () => requireRanks(group) }, wait);
  const mapped = Math.ceil(windowFootprint(all.bytes, scaleUpRanks.length) / MIB);
  // What may fail or take long on one rank alone comes before the ranks meet again.
  const made = await prepareHere(device, Math.min(mapped + SPARE_MIB, 4096)).catch((error: unknown) => error as Error);
  const prepare = (): PreparedHere => {
    if (made instanceof Error) throw made;
    checkMemoryBudget(what, [{ name: 'windows', bytes: all.bytes, isShared: true }], { group, device: made.host });
    return made;
  };
  const { host, plans } = await agreeOn(group, { what: `${what} kernels`, config: {}, prepare }, wait);
  const owned: { mirrored?: MirroredWindow; slots?: CudaWindow; memory?: PinnedRange } = {};
  try {
    const of = { group, device: host, what, name: 'collectives', regions: all };
    const mirrored = (owned.mirrored = await createMirroredWindow(of, wait));
    const slots = (owned.slots = await CudaWindow.create({ ...wait, group, device, name: what, bytes: regions.bytes }));
    const { storage } = mirrored.window;
    const pin = (): void => {
      owned.memory = new PinnedRange(device.context, host.hostView('u8', storage.address, storage.bytes));
    };
    const { failure } = await shareOutcome(group, { name: `${what}/pin`, facts: {}, work: pin }, wait);
    if (failure !== undefined) throw failure;
    const memory = owned.memory!;
    const mover = new StreamMover(device, { plans, numSms, memory });
    const parts = rankParts(group, mirrored.window, { regions, mirrors: mirrored.across!.mirrors });
    const places = placesOf(group, { window: mirrored.window, parts, slots, memory });
    const steps = new CpuCollectives({
      group,
      device: host,
      regions,
      table,
      ...mirrored,
      elsewhere: { mover, places },
      // What other ranks of the host hold lies in memory of GPUs.
      memory: undefined,
      directBytes: 0,
    });
    return new HostsCollectives({ device, steps, mover, order: new CudaCallOrder(device), slots });
  } catch (error) {
    await owned.mirrored?.across?.network.close();
    for (const part of [owned.memory, owned.slots, owned.mirrored?.window]) part?.[Symbol.dispose]();
    throw error;
  }
}

interface PreparedHere {
  readonly host: CpuDevice;
  readonly plans: RunPlans;
}

async function prepareHere(device: CudaDevice, addressSpaceMiB: number): Promise<PreparedHere> {
  return { host: await CpuDevice.create({ addressSpaceMiB }), plans: await loadRunPlans(device) };
}

function placesOf(
  { topology }: RankGroup,
  {
    window,
    parts,
    slots,
    memory,
  }: {
    readonly window: SymmetricWindow;
    readonly parts: RankParts;
    readonly slots: CudaWindow;
    readonly memory: PinnedRange;
  },
): DataPlaces {
  const mapped = (address: number): number => memory.deviceAddress + address - window.storage.address;
  const addresses = parts.addresses.map((address, rank) =>
    topology.hostOf(rank) === topology.hostIndex ? slots.addresses[topology.scaleUpIndexOf(rank)]! : mapped(address),
  );
  return { areShared: false, addresses, outgoing: mapped(window.address) };
}

function requireRanks({ size, topology }: RankGroup): void {
  if (size <= COLLECTIVE_MAX_RANKS_ACROSS_HOSTS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `A Communicator on GPUs of several hosts has at most ${COLLECTIVE_MAX_RANKS_ACROSS_HOSTS} ranks, got ${size}: use a CpuDevice, or smaller groups (world.split)`,
    { details: { ranks: size, hosts: topology.hosts.length } },
  );
}
