// RDMA devices and the libraries that drive them: verbs, and UCX.
import { findLibrary } from '../../native/library-search.ts';
import { activeRdmaPorts, rdmaDevices } from '../../native/rdma-ports.ts';
import { findUcx } from '../../native/ucx.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkRdmaDevices(machine: MachineProbe): Finding {
  const name = 'RDMA devices';
  const devices = rdmaDevices(machine);
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
  const path = findUcx(machine);
  if (path !== undefined) {
    const version = machine.ucxVersion();
    const value = `${version === undefined ? '' : `${version}, `}${path} (${ucxTransports(machine, path)})`;
    if (version !== undefined) {
      if (activeRdmaPorts(machine).length > 0) return { name, status: 'ok', value };
      return { name, status: 'ok', value: `${value}; the backend ucx needs an active RDMA port` };
    }
    return { name, status: 'short', value, advice: 'it cannot be used: 1.12 or a later 1.x is needed' };
  }
  const advice = 'optional, drives RDMA devices for the backend ucx of agents: "apt-get install libucx0"';
  return { name, status: 'absent', value: 'not found', advice };
}

/** What drives RDMA devices lies beside UCX as modules. The backend uses nothing else. */
function ucxTransports(machine: MachineProbe, path: string): string {
  const folder = `${path.slice(0, path.lastIndexOf('/'))}/ucx`;
  const modules = machine.list(folder).flatMap((file) => /^libuct_(\w+)\.so\.0$/.exec(file)?.[1] ?? []);
  const rdma = modules.filter((module) => /^(ib|rdmacm|mlx)/.test(module));
  return rdma.length === 0 ? 'no module for RDMA: in Debian libucx0 has it' : `modules ${rdma.join(', ')}`;
}
