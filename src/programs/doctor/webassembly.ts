// WebAssembly as the CPU kernels need it: SIMD, and one shared memory that spans the whole address space of a rank.
import { settingsTable } from '../../settings/settings.ts';
import { addressSpaceAdvice } from '../../device/cpu/address-space-advice.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

const PAGES_PER_MIB = 16;
const { env, max } = settingsTable.addressSpaceMiB;

export function checkWebAssembly(machine: MachineProbe): Finding {
  const name = 'WebAssembly';
  let reason: unknown;
  for (const mib of [max, max / 2, max / 4, max / 16]) {
    try {
      machine.tryWebAssembly(mib * PAGES_PER_MIB);
    } catch (error) {
      reason ??= error;
      continue;
    }
    const value = `SIMD, shared memory of ${mib} MiB`;
    if (mib === max) return { name, status: 'ok', value };
    const advice = `${max} MiB of address space are refused: ${addressSpaceAdvice(`${env}=${mib}`, true)}`;
    return { name, status: 'short', value, advice };
  }
  const value = reason instanceof Error ? reason.message : String(reason);
  const advice = `the CPU kernels need WebAssembly with SIMD and shared memory: start node without flags that turn them off, and ${addressSpaceAdvice(`${env} to less`, false)}`;
  return { name, status: 'absent', value, advice, blocksCpu: true };
}
