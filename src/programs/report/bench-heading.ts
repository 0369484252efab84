// What every bench report says of its workload and machine.
import type { EpWorkload } from '../bench/ep/ep-workload.ts';
import type { MachineDocument } from '../bench/machine.ts';
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
