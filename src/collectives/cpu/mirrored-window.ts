// The windows of the ranks of a collective object on CPUs, with their links to ranks of other hosts.
import type { HostNetwork } from '../../group/network/host-network.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { regionsAcrossHosts } from './window-regions.ts';

/** Of a group on several hosts: the links, and where their parts of the windows begin. */
interface AcrossHosts {
  readonly network: HostNetwork;
  readonly cells: number;
  readonly aborts: number;
  readonly mirrors: number;
}

export interface MirroredWindow {
  readonly window: SymmetricWindow;
  readonly across?: AcrossHosts;
}

interface MirroredWindowOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** Of the object, for errors. */
  readonly what: string;
  /** Of the windows' file. */
  readonly name: string;
  readonly regions: ReturnType<typeof regionsAcrossHosts>;
}

/** Collective, after the ranks have agreed on the regions. Fails alike on all ranks. */
export async function createMirroredWindow(
  { group, device, what, name, regions: { bytes, regions } }: MirroredWindowOptions,
  wait: CallWait,
): Promise<MirroredWindow> {
  // No barrier of the window is used: the calls have their own words.
  const describeCall = (): string => what;
  const window = await SymmetricWindow.create({ ...wait, group, device, name, bytes, describeCall });
  if (group.topology.hosts.length === 1) return { window };
  const offsets = {
    cells: regions.cells.offset,
    aborts: regions.aborts.offset,
    mirrors: regions.mirrors.offset,
  };
  // Nothing goes as rows.
  const rows = { rows: 1, rowWindow: 0 };
  try {
    const of = { group, device, name: what, barrier: window.barrier, windows: [window] };
    // Loaded here, so that ranks of one host never load what links to others need.
    const { HostNetwork: Network } = await import('../../group/network/host-network.ts');
    return { window, across: { network: await Network.create({ ...wait, ...of, ...offsets, rows }), ...offsets } };
  } catch (error) {
    window[Symbol.dispose]();
    throw error;
  }
}
