// How much the kernel lets a UDP socket buffer, and all of them together.
import { formatBytes } from '../../core/byte-size.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

/** Holds some milliseconds of a 100 Gbps link while the receiver is busy. */
const WANTED_BYTES = 33_554_432;
const PAGE_BYTES = 4096;

export function checkUdpReceiveBuffer(machine: MachineProbe): Finding {
  return checkBuffer(machine, 'UDP receive buffer', 'rmem_max');
}

export function checkUdpSendBuffer(machine: MachineProbe): Finding {
  return checkBuffer(machine, 'UDP send buffer', 'wmem_max');
}

/** Beyond the third number of udp_mem, in pages, the kernel drops what arrives for any socket of the machine. */
export function checkUdpMemory(machine: MachineProbe): Finding {
  const name = 'UDP memory, all sockets';
  const pages = Number(machine.readText('/proc/sys/net/ipv4/udp_mem')?.trim().split(/\s+/)[2] ?? Number.NaN);
  if (!Number.isFinite(pages))
    return { name, status: 'absent', value: 'unknown', advice: 'net.ipv4.udp_mem cannot be read here' };
  const bytes = pages * PAGE_BYTES;
  if (bytes >= 8 * WANTED_BYTES) return { name, status: 'ok', value: formatBytes(bytes) };
  const advice = `many connections over UDP need more, or packets are lost: raise net.ipv4.udp_mem to ${(8 * WANTED_BYTES) / PAGE_BYTES} pages`;
  return { name, status: 'short', value: formatBytes(bytes), advice };
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
