// How much the kernel lets a UDP socket buffer.
import { formatBytes } from '../core/byte-size.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

/** Holds some milliseconds of a 100 Gb/s link while the receiver is busy. */
const WANTED_BYTES = 33_554_432;

export function checkUdpReceiveBuffer(machine: MachineProbe): Finding {
  return checkBuffer(machine, 'UDP receive buffer', 'rmem_max');
}

export function checkUdpSendBuffer(machine: MachineProbe): Finding {
  return checkBuffer(machine, 'UDP send buffer', 'wmem_max');
}

function checkBuffer(machine: MachineProbe, name: string, key: string): Finding {
  const bytes = Number(machine.readText(`/proc/sys/net/core/${key}`)?.trim() ?? Number.NaN);
  // A container may hide the limits of its host.
  if (!Number.isFinite(bytes))
    return { name, status: 'absent', value: 'unknown', advice: `net.core.${key} cannot be read here` };
  if (bytes >= WANTED_BYTES) return { name, status: 'ok', value: formatBytes(bytes) };
  const advice = `only transfers over UDP between machines need more: sysctl -w net.core.${key}=${WANTED_BYTES}`;
  return { name, status: 'short', value: formatBytes(bytes), advice };
}
