// The shortest time that the links, and the memory of hosts, allow for each call.
import { DATA_HEADER_BYTES } from '../../../abi/transport-packet.ts';
import { WIRE_OVERHEAD_BYTES } from '../simulated-io.ts';
import { oneWayDelay, wireBytes } from '../theory.ts';
import { rankLinks } from './ep-network.ts';
import type { EpOptions } from './ep-options.ts';
import type { EpPhase, EpPlan } from './ep-plan.ts';

/** Microseconds. */
export interface EpBounds {
  /** All records of a rank, and the barrier of its host. */
  readonly meeting: number;
  /** The busiest link of a rank never idle, and the way of the last packet. Links between switches do not count. */
  readonly rows: number;
  /** The busiest rank's copies or sums. */
  readonly local: number;
  /** All of a call: meeting, rows or memory, whichever takes longer, and a barrier. */
  readonly total: number;
}

export function epBounds(options: EpOptions, plan: EpPlan, phase: EpPhase): EpBounds {
  const { topology, segmentBytes, barrier, localRate, simulatedRanks, slowHost } = options;
  const rate = (links: readonly number[]): number =>
    links.reduce((sum, link) => sum + topology.links[link]!.gigabitsPerSecond * 125, 0);
  const record = wireBytes(plan.recordBytes(phase), segmentBytes) + wireBytes(0, segmentBytes);
  const records = (plan.hosts - 1) * record;
  const lastOfRecords = DATA_HEADER_BYTES;
  const lastOfRows = Math.min(segmentBytes, plan.rowBytes(phase) + DATA_HEADER_BYTES);
  let [meeting, rows, local] = [0, 0, 0];
  for (let rank = 0; rank < topology.hosts; rank += 1) {
    const { up, down } = rankLinks(topology, rank, simulatedRanks);
    const [out, into] = [rate(up), rate(down)];
    const host = Math.floor(rank / simulatedRanks);
    const destination = rank < simulatedRanks ? rank + topology.hosts - simulatedRanks : rank % simulatedRanks;
    // The last packet's own time on the first link is part of the bytes.
    const way = (bytes: number): number =>
      oneWayDelay(topology, { source: rank, destination }, bytes) - (bytes + WIRE_OVERHEAD_BYTES) / out;
    meeting = Math.max(meeting, records / Math.min(out, into) + way(lastOfRecords) + barrier);
    const busiest = Math.max(plan.wireBytesFrom(phase, rank) / out, plan.wireBytesTo(phase, rank) / into);
    rows = Math.max(rows, busiest + way(lastOfRows));
    const factor = slowHost?.host === host ? slowHost.localFactor : 1;
    local = Math.max(local, (plan.localRows(phase, rank) * plan.rowBytes(phase)) / (localRate * factor));
  }
  return { meeting, rows, local, total: meeting + Math.max(rows, local) + barrier };
}
