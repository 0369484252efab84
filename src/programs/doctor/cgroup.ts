// Limits that a control group (a container, a service, a batch job) puts on this process.
import type { MachineProbe } from './machine-probe.ts';

/** Memory limit in bytes, the smallest on the way from our group to the root; undefined without one. */
export function memoryLimit(machine: MachineProbe): number | undefined {
  const limits = groupFolders(machine, 'memory').flatMap((folder) => {
    const text = machine.readText(`${folder}/memory.max`) ?? machine.readText(`${folder}/memory.limit_in_bytes`);
    const bytes = Number(text?.trim());
    // The first version of control groups writes "no limit" as a number near 2^63.
    return Number.isFinite(bytes) && bytes > 0 && bytes < 2 ** 60 ? [bytes] : [];
  });
  return limits.length === 0 ? undefined : Math.min(...limits);
}

/** How many cores' worth of time we may use; undefined without a limit. */
export function cpuLimit(machine: MachineProbe): number | undefined {
  const limits = groupFolders(machine, 'cpu').flatMap((folder) => {
    const [quota, period] =
      machine.readText(`${folder}/cpu.max`)?.trim().split(' ') ??
      ['cpu.cfs_quota_us', 'cpu.cfs_period_us'].map((file) => machine.readText(`${folder}/${file}`)?.trim());
    const cores = Number(quota) / Number(period);
    return Number.isFinite(cores) && cores > 0 ? [cores] : [];
  });
  return limits.length === 0 ? undefined : Math.min(...limits);
}

/** The folders of our group and of those above it, for both versions of control groups. */
function groupFolders(machine: MachineProbe, controller: string): string[] {
  const folders: string[] = [];
  for (const line of machine.readText('/proc/self/cgroup')?.split('\n') ?? []) {
    const [, controllers, ...rest] = line.split(':');
    const unified = controllers === '';
    if (!unified && !controllers?.split(',').includes(controller)) continue;
    const mount = unified ? '/sys/fs/cgroup' : `/sys/fs/cgroup/${controller}`;
    const parts = rest
      .join(':')
      .split('/')
      .filter((part) => part !== '');
    for (let depth = parts.length; depth >= 0; depth -= 1) folders.push([mount, ...parts.slice(0, depth)].join('/'));
  }
  return folders;
}
