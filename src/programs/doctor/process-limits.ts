// Limits of this process that later ranks inherit: open files and locked memory.
import { formatBytes } from '../../core/byte-size.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

const OPEN_FILES_WANTED = 1024;
const LOCKED_BYTES_WANTED = 1_073_741_824;

export function checkOpenFiles(machine: MachineProbe): Finding {
  const name = 'open files';
  const limit = softLimit(machine, 'Max open files');
  if (limit === undefined) return unknown(name);
  if (limit >= OPEN_FILES_WANTED) return { name, status: 'ok', value: amount(limit, String) };
  const advice = `the launcher of many ranks needs about ${OPEN_FILES_WANTED}: ulimit -n ${OPEN_FILES_WANTED}`;
  return { name, status: 'short', value: amount(limit, String), advice };
}

export function checkLockedMemory(machine: MachineProbe): Finding {
  const name = 'locked memory';
  const limit = softLimit(machine, 'Max locked memory');
  if (limit === undefined) return unknown(name);
  if (limit >= LOCKED_BYTES_WANTED) return { name, status: 'ok', value: amount(limit, formatBytes) };
  const advice =
    'only RDMA pins memory, CPU ranks do not need it: ulimit -l unlimited, or memlock in /etc/security/limits.conf';
  return { name, status: 'short', value: amount(limit, formatBytes), advice };
}

function unknown(name: string): Finding {
  return { name, status: 'absent', value: 'unknown', advice: '/proc/self/limits cannot be read here' };
}

function amount(limit: number, show: (value: number) => string): string {
  return limit === Infinity ? 'unlimited' : show(limit);
}

/** The soft limit of one line of /proc/self/limits. */
function softLimit(machine: MachineProbe, label: string): number | undefined {
  const line = machine
    .readText('/proc/self/limits')
    ?.split('\n')
    .find((text) => text.startsWith(label));
  const word = line?.slice(label.length).trim().split(/\s+/)[0];
  if (word === 'unlimited') return Infinity;
  return word !== undefined && /^\d+$/.test(word) ? Number(word) : undefined;
}
