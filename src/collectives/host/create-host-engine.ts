// Makes the engine of a Communicator whose ranks are CPU ranks of one host: they agree, then make a window together.
import { agreeOn } from '../../collective/agree.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { requireRoom } from '../../windows/room.ts';
import { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { CollectiveEngine } from '../collective-engine.ts';
import { HostEngine } from './host-engine.ts';
import { collectiveRegions } from './window-regions.ts';

/** Collective; fails alike on all ranks. */
export async function createHostEngine(
  group: RankGroup,
  device: CpuDevice,
  { pieceBytes, ...wait }: CallWait & { readonly pieceBytes: number },
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const regions = await agreeOn(
    group,
    {
      what,
      config: { pieceBytes, device: device.kind },
      prepare: () => {
        const laidOut = collectiveRegions(group.size, pieceBytes);
        requireRoom(what, [{ name: 'windows', bytes: laidOut.bytes, isShared: true }], { group, device });
        return laidOut;
      },
    },
    wait,
  );
  // No barrier of the window is used: the calls have their own words.
  const describeCall = (): string => what;
  const window = await SymmetricWindow.create({
    ...wait,
    group,
    device,
    name: 'collectives',
    bytes: regions.bytes,
    describeCall,
  });
  return new HostEngine({ group, device, window, regions });
}
