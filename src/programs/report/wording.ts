// How reports write figures, and what they say of workloads and machines.
import { countEqual } from '../../core/quote.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { GpuMachineDocument } from '../bench/machine.ts';
import type { EpWorkload } from '../bench/ep/ep-workload.ts';
import type { MachineDocument } from '../bench/machine.ts';
import { placementChanged, type PlacementSample } from '../bench/machine.ts';
import type { Summary } from '../bench/harness.ts';

/** Quartiles: "31.3 ms to 33.3 ms". */
export function spread({ p25, p75 }: Summary, show: (value: number) => string): string {
  return `${show(p25)} to ${show(p75)}`;
}

/** With so many digits behind the point. */
export function fixed(digits: number): (value: number) => string {
  return (value) => value.toFixed(digits);
}

/** Three significant digits or so: "85 µs", "1.92 ms", "104 ms". */
export function formatTime(microseconds: number): string {
  const size = Math.abs(microseconds);
  if (size < 1000) return `${microseconds.toFixed(0)} µs`;
  if (size < 10_000) return `${(microseconds / 1000).toFixed(2)} ms`;
  if (size < 100_000) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1000).toFixed(0)} ms`;
}

/** "1 rank", "4 ranks". */
export function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

export function describeWorkload(workload: Omit<EpWorkload, 'dtype'>): string {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = workload;
  return `${counted(ranks, 'rank')}, ${tokens} tokens of ${hidden} each, top-${topk} of ${experts} experts, seed ${seed}, skew ${skew}`;
}

export function describeRounds({ iterations, warmup }: { iterations: number; warmup: number }): string {
  return `${iterations} iterations after ${warmup} to warm up`;
}

interface OnMachine {
  readonly machine: MachineDocument;
  readonly gpuMachine?: GpuMachineDocument;
  readonly loadAverage?: { readonly before: number; readonly after: number };
  readonly placement?: { readonly before: PlacementSample; readonly after: PlacementSample };
}

/** The machine, its GPUs, and what it was like before and after. */
export function machineLines({ machine, gpuMachine, loadAverage, placement }: OnMachine): string[] {
  const lines = gpuMachine === undefined ? [] : [describeGpus(gpuMachine)];
  lines.push(describeMachine(machine));
  if (placement === undefined || loadAverage === undefined) return lines;
  const { before, after } = placement;
  lines.push(
    `load ${loadAverage.before.toFixed(1)} before, ${loadAverage.after.toFixed(1)} after; arithmetic and round trip between cores ${showPlacement(before)} before, ${showPlacement(after)} after`,
  );
  return [...lines, ...changeLines(placement)];
}

export function changeLines({ before, after }: NonNullable<OnMachine['placement']>): string[] {
  if (!placementChanged(before, after)) return [];
  return ['The machine changed while it ran (other load, or its processors moved): run again before comparing.'];
}

function describeMachine({ commit, modified, ...of }: MachineDocument): string {
  const source = commit === undefined ? '' : `, commit ${commit.slice(0, 10)}${modified ? ' modified' : ''}`;
  return `machine: ${of.usableCores} of ${of.cores} cores (${of.cpu}), ${formatBytes(of.memoryBytes)}, ${of.platform} ${of.kernel}, Node.js ${of.nodeVersion}, weftline ${of.weftlineVersion}${source}`;
}

function describeGpus({ gpus, driver, cuda, links }: GpuMachineDocument): string {
  const models = countEqual(gpus.map(({ name, multiprocessors }) => `${name} (${multiprocessors} SMs)`));
  const kinds = new Set(links?.flatMap((row, index) => row.filter((_, other) => other !== index)));
  const linked = kinds.size === 0 ? '' : `, linked by ${[...kinds].join(', ')}`;
  return `GPUs: ${models}, driver ${driver ?? 'unknown'} (CUDA ${cuda})${linked}`;
}

function showPlacement({ arithmeticMilliseconds, coreRoundTripNanoseconds }: PlacementSample): string {
  const trip = coreRoundTripNanoseconds === undefined ? 'unknown' : `${coreRoundTripNanoseconds.toFixed(0)} ns`;
  return `${arithmeticMilliseconds.toFixed(1)} ms, ${trip}`;
}
