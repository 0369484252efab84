// Makes the engine of a Communicator of CPU ranks: they agree, then make windows together, and links to other hosts.
import { agreeOn } from '../../group/agree.ts';
import { PeerMemory } from '../../group/peer-memory.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { AlgorithmTable } from '../algorithm-table.ts';
import type { CollectiveEngine } from '../collective-engine.ts';
import { CpuCollectives } from './cpu-collectives.ts';
import { createMirroredWindow } from './mirrored-window.ts';
import { collectiveRegions, regionsAcrossHosts } from './window-regions.ts';

interface CpuCollectivesOptions extends CallWait {
  readonly pieceBytes: number;
  readonly directBytes: number;
  readonly table: AlgorithmTable;
}

/** Collective; fails alike on all ranks. */
export async function createCpuCollectives(
  group: RankGroup,
  device: CpuDevice,
  { pieceBytes, directBytes, table, ...wait }: CpuCollectivesOptions,
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const { hosts } = group.topology;
  const { regions, all } = await agreeOn(
    group,
    {
      what,
      config: { pieceBytes, directBytes, algorithms: JSON.stringify(table), device: device.kind },
      prepare: () => {
        const own = collectiveRegions(group.size, pieceBytes);
        const laidOut = regionsAcrossHosts(own, group.size, hosts);
        checkMemoryBudget(what, [{ name: 'windows', bytes: laidOut.bytes, isShared: true }], { group, device });
        return { regions: own, all: laidOut };
      },
    },
    wait,
  );
  const of = { group, device, what, name: 'collectives', regions: all };
  const windows = await createMirroredWindow(of, wait);
  try {
    const { barrier } = windows.window;
    const memory = await PeerMemory.create(what, { group, device, barrier }, wait);
    return new CpuCollectives({ group, device, regions, table, memory, directBytes, ...windows });
  } catch (error) {
    // ORDER: peers write into the window until their way to it is closed.
    await windows.across?.network.close();
    windows.window[Symbol.dispose]();
    throw error;
  }
}
