// Calls of C functions, which shared memory and waiting between processes need.
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkNativeCalls(machine: MachineProbe): Finding {
  const name = 'native calls (koffi)';
  const value = `${machine.platform}-${machine.arch}`;
  try {
    machine.tryNativeCalls();
    return { name, status: 'ok', value };
  } catch (error) {
    const advice = error instanceof Error ? error.message : String(error);
    return { name, status: 'absent', value, advice, blocksCpu: true };
  }
}
