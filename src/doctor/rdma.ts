// RDMA devices and the libraries that drive them: verbs, and UCX, which carries transfers between machines.
import { findLibrary } from '../native/library-search.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

const DEVICES = '/sys/class/infiniband';

export function checkRdmaDevices(machine: MachineProbe): Finding {
  const name = 'RDMA devices';
  const devices = machine.list(DEVICES).map((device) => ({ device, ports: activePorts(machine, device) }));
  if (devices.length === 0) {
    return { name, status: 'absent', value: 'none', advice: 'transfers between machines go over TCP and UDP' };
  }
  const value = devices.map(({ device, ports }) => `${device} (${ports.join(', ') || 'no active port'})`).join(', ');
  if (!machine.exists('/dev/infiniband')) {
    const advice = 'no /dev/infiniband here: start the container with --device=/dev/infiniband';
    return { name, status: 'short', value, advice };
  }
  if (devices.some(({ ports }) => ports.length > 0)) return { name, status: 'ok', value };
  return { name, status: 'short', value, advice: 'no port is active: see cables, switch and "rdma link"' };
}

export function checkVerbs(machine: MachineProbe): Finding {
  const name = 'verbs (libibverbs)';
  const path = findLibrary(machine, /^libibverbs\.so\.1$/);
  if (path !== undefined) return { name, status: 'ok', value: path };
  const advice = 'only RDMA needs it: install rdma-core (Debian and Ubuntu: libibverbs1 ibverbs-providers)';
  return { name, status: 'absent', value: 'not found', advice };
}

export function checkUcx(machine: MachineProbe): Finding {
  const name = 'UCX (libucp)';
  const path = findLibrary(machine, /^libucp\.so\.0$/);
  if (path !== undefined) return { name, status: 'ok', value: path };
  const advice = 'optional, carries one-sided transfers between machines: install UCX (Debian and Ubuntu: libucx0)';
  return { name, status: 'absent', value: 'not found', advice };
}

/** "1: 400 Gb/sec (4X NDR)" for each port that is up. */
function activePorts(machine: MachineProbe, device: string): string[] {
  const folder = `${DEVICES}/${device}/ports`;
  return machine
    .list(folder)
    .filter((port) => machine.readText(`${folder}/${port}/state`)?.includes('ACTIVE'))
    .map((port) => `${port}: ${machine.readText(`${folder}/${port}/rate`)?.trim() ?? 'unknown rate'}`);
}
