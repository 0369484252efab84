// What the network side of a GPU rank takes: pinned host memory that its kernels and its carrier read and write, whose size
// follows from the configuration and the ranks of each host alone. No routing needs more: a token crosses to a host once.
import { networkCellsBytes, networkChunkRows } from '../../abi/network.ts';
import { exchangeRecordBytes } from '../../abi/exchange-record.ts';
import { PINNED_CHUNK_BYTES } from '../../group/network/chunk-size.ts';
import { type Hosts, maxServed } from '../../group/network/host-routes.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';

/**
 * `cells`: signals of peers are counted there. `recordOut`, `recordIn`: records of a call, by its parity; of this rank, and
 * a slot per source that it serves. `out`: a slot per other host: rows on their way there; in combine, what comes back.
 * `in`: a slot per source served: rows that came; in combine, the sums that go back.
 */
type PinnedRegion = 'cells' | 'recordOut' | 'recordIn' | 'out' | 'in';

/** What the network side of a GPU rank takes, in bytes of host memory. */
export interface PinnedNetworkSize {
  /** Page-locked memory of the host, mapped into the GPU. */
  readonly memory: 'pinned';
  readonly bytes: number;
  readonly regions: Readonly<Record<PinnedRegion, WindowRegion>>;
  /** Of a slot of `out` and `in`: all tokens of a rank with the most that can go with each. */
  readonly slotBytes: number;
  readonly recordBytes: number;
  /** Slots of `in`. */
  readonly maxServed: number;
  /** Most chunks that the rows of one slot make. */
  readonly maxChunks: number;
}

interface PinnedNetworkShape {
  readonly hosts: Hosts;
  /** Most tokens of any rank. */
  readonly maxTokensPerRank: number;
  readonly experts: number;
  /** Most bytes of a token's row as it travels, with what goes with it; of what combine brings back for it. */
  readonly wireRowBytes: number;
  readonly wireSumBytes: number;
}

/** Pure; all ranks get the same, also where hosts have different numbers of ranks. */
export function pinnedNetworkSize(shape: PinnedNetworkShape): PinnedNetworkSize {
  const { hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes } = shape;
  const ranks = hosts.reduce((sum, { length }) => sum + length, 0);
  const served = maxServed(hosts);
  const most = Math.max(wireRowBytes, wireSumBytes);
  const slotBytes = layOutRegions<'slot'>({ slot: maxTokensPerRank * most }).bytes;
  const recordBytes = exchangeRecordBytes({ ranks, experts, hosts: hosts.length });
  const { bytes, regions } = layOutRegions<PinnedRegion>({
    cells: networkCellsBytes(ranks),
    recordOut: 2 * recordBytes,
    recordIn: 2 * served * recordBytes,
    out: (hosts.length - 1) * slotBytes,
    in: served * slotBytes,
  });
  const maxChunks = Math.ceil(maxTokensPerRank / networkChunkRows(PINNED_CHUNK_BYTES.least, most));
  return { memory: 'pinned', bytes, regions, slotBytes, recordBytes, maxServed: served, maxChunks };
}
