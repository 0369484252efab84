// Main memory and the limit that a control group puts on it.
import { formatBytes } from '../../core/byte-size.ts';
import { memoryLimit } from './cgroup.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';
import { typicalConfiguration } from './typical-configuration.ts';

export function checkMemory(machine: MachineProbe): Finding {
  const limit = memoryLimit(machine);
  const usable = Math.min(machine.memoryBytes, limit ?? machine.memoryBytes);
  const total = formatBytes(machine.memoryBytes);
  const value = usable < machine.memoryBytes ? `${total}, the control group allows ${formatBytes(usable)}` : total;
  const { memoryBytes, sentence } = typicalConfiguration;
  if (usable >= memoryBytes) return { name: 'memory', status: 'ok', value };
  const advice = `${sentence} take about ${formatBytes(memoryBytes)}, shared memory included: use fewer tokens per rank, or raise the limit`;
  return { name: 'memory', status: 'short', value, advice };
}
