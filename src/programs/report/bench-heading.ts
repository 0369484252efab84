// What every bench report says of its workload and machine.
import type { EpWorkload } from '../bench/ep/ep-workload.ts';
import type { MachineDocument } from '../bench/machine.ts';
import { placementChanged, type PlacementSample } from '../bench/placement.ts';
import { formatBytes } from '../../core/byte-size.ts';

export function describeWorkload(workload: Omit<EpWorkload, 'dtype'>): string {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = workload;
  const shape = `${ranks} ${ranks === 1 ? 'rank' : 'ranks'}, ${tokens} tokens of ${hidden} each, top-${topk} of ${experts} experts`;
  return `${shape}, seed ${seed}, skew ${skew}`;
}

export function describeRounds({ iterations, warmup }: { iterations: number; warmup: number }): string {
  return `${iterations} iterations after ${warmup} to warm up`;
}

export function describeMachine(machine: MachineDocument): string {
  const commit =
    machine.commit === undefined ? '' : `, commit ${machine.commit.slice(0, 10)}${machine.modified ? ' modified' : ''}`;
  return `machine: ${machine.usableCores} of ${machine.cores} cores (${machine.cpu}), ${formatBytes(machine.memoryBytes)}, ${machine.platform} ${machine.kernel}, Node.js ${machine.nodeVersion}, weftline ${machine.weftlineVersion}${commit}`;
}

/** What the machine was like before and after. */
export function machineLines({
  machine,
  loadAverage,
  placement,
}: {
  readonly machine: MachineDocument;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
}): string[] {
  const lines = [
    describeMachine(machine),
    `load ${loadAverage.before.toFixed(1)} before, ${loadAverage.after.toFixed(1)} after; arithmetic and round trip between cores ${showPlacement(placement.before)} before, ${showPlacement(placement.after)} after`,
  ];
  if (placementChanged(placement.before, placement.after)) {
    lines.push('The machine changed while it ran (other load, or its processors moved): run again before comparing.');
  }
  return lines;
}

function showPlacement({ arithmeticMilliseconds, coreRoundTripNanoseconds }: PlacementSample): string {
  const trip = coreRoundTripNanoseconds === undefined ? 'unknown' : `${coreRoundTripNanoseconds.toFixed(0)} ns`;
  return `${arithmeticMilliseconds.toFixed(1)} ms, ${trip}`;
}
