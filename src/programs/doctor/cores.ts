// Processor cores: ranks that share one take turns.
import { cpuLimit } from './cgroup.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';
import { typicalConfiguration } from './typical-configuration.ts';

export function checkCores(machine: MachineProbe): Finding {
  const { model, present, usable } = machine.cores;
  const limit = cpuLimit(machine);
  const cores = Math.min(usable, limit ?? usable);
  const held = [
    usable < present ? `affinity allows ${usable}` : undefined,
    limit !== undefined && limit < usable ? `the control group allows ${limit.toFixed(1)}` : undefined,
  ].filter((part) => part !== undefined);
  const value = [`${present} (${model})`, ...held].join(', ');
  const { ranks } = typicalConfiguration;
  if (cores >= ranks) return { name: 'cores', status: 'ok', value };
  const advice = `${ranks} ranks take turns on ${cores} cores: results are right, times are longer; one core per rank is best`;
  return { name: 'cores', status: 'short', value, advice };
}
