// Whether we run in a container: its limits are set where it is started.
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkContainer(machine: MachineProbe): Finding {
  const value = containerKind(machine) ?? 'none seen';
  return { name: 'container', status: 'ok', value };
}

export function inContainer(machine: MachineProbe): boolean {
  return containerKind(machine) !== undefined;
}

function containerKind(machine: MachineProbe): string | undefined {
  if (machine.env['KUBERNETES_SERVICE_HOST'] !== undefined) return 'Kubernetes';
  if (machine.exists('/.dockerenv')) return 'Docker';
  if (machine.exists('/run/.containerenv')) return 'Podman';
  if (machine.env['APPTAINER_CONTAINER'] !== undefined || machine.env['SINGULARITY_CONTAINER'] !== undefined) {
    return 'Apptainer';
  }
  const group = machine.readText('/proc/1/cgroup') ?? '';
  return /docker|kubepods|containerd|libpod|lxc/.exec(group)?.[0];
}
