// Makes the engine of a Communicator of CPU ranks: they agree, then make windows together, and links to other hosts.
import { agreeOn } from '../../collective/agree.ts';
import { HostNetwork } from '../../collective/network/host-network.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { requireRoom } from '../../windows/room.ts';
import { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { CollectiveEngine } from '../collective-engine.ts';
import { CpuCollectives, type CpuCollectivesParts } from './cpu-collectives.ts';
import { collectiveRegions, regionsAcrossHosts } from './window-regions.ts';

/** Collective; fails alike on all ranks. */
export async function createCpuCollectives(
  group: RankGroup,
  device: CpuDevice,
  { pieceBytes, ...wait }: CallWait & { readonly pieceBytes: number },
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const { hosts } = group.topology;
  const { regions, all } = await agreeOn(
    group,
    {
      what,
      config: { pieceBytes, device: device.kind },
      prepare: () => {
        const own = collectiveRegions(group.size, pieceBytes);
        const laidOut = regionsAcrossHosts(own, group.size, hosts);
        requireRoom(what, [{ name: 'windows', bytes: laidOut.bytes, isShared: true }], { group, device });
        return { regions: own, all: laidOut };
      },
    },
    wait,
  );
  // No barrier of the window is used: the calls have their own words.
  const describeCall = (): string => what;
  const name = 'collectives';
  const window = await SymmetricWindow.create({ ...wait, group, device, name, bytes: all.bytes, describeCall });
  const parts: CpuCollectivesParts = { group, device, window, regions };
  if (hosts.length === 1) return new CpuCollectives(parts);
  const offsets = {
    cells: all.regions.cells.offset,
    aborts: all.regions.aborts.offset,
    mirrors: all.regions.mirrors.offset,
  };
  try {
    const network = await HostNetwork.create({
      ...wait,
      group,
      device,
      name: what,
      barrier: window.barrier,
      windows: [window],
      ...offsets,
      // Nothing goes as rows.
      rows: { rows: 1, rowWindow: 0 },
    });
    return new CpuCollectives({ ...parts, across: { network, ...offsets } });
  } catch (error) {
    window[Symbol.dispose]();
    throw error;
  }
}
