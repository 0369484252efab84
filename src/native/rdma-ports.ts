// The RDMA devices of a machine and which of their ports are up, as the kernel tells.
import type { FileProbe } from './file-probe.ts';

const DEVICES = '/sys/class/infiniband';

interface RdmaDevice {
  readonly device: string;
  /** "1: 400 Gb/sec (4X NDR)" for each port that is up. */
  readonly ports: readonly string[];
}

export function rdmaDevices(machine: FileProbe): readonly RdmaDevice[] {
  return machine.list(DEVICES).map((device) => ({ device, ports: activePorts(machine, device) }));
}

/** "mlx5_0:1" for each port that is up. */
export function activeRdmaPorts(machine: FileProbe): readonly string[] {
  return rdmaDevices(machine).flatMap(({ device, ports }) =>
    ports.map((port) => `${device}:${port.slice(0, port.indexOf(':'))}`),
  );
}

function activePorts(machine: FileProbe, device: string): string[] {
  const folder = `${DEVICES}/${device}/ports`;
  return machine
    .list(folder)
    .filter((port) => machine.readText(`${folder}/${port}/state`)?.includes('ACTIVE'))
    .map((port) => `${port}: ${machine.readText(`${folder}/${port}/rate`)?.trim() ?? 'unknown rate'}`);
}
