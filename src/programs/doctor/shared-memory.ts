// The file system that windows live in.
import { formatBytes } from '../../core/byte-size.ts';
import { inContainer } from './container.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';
import { typicalConfiguration } from './typical-configuration.ts';

export function checkSharedMemory(machine: MachineProbe): Finding {
  const name = 'shared memory (/dev/shm)';
  const space = machine.fileSystem('/dev/shm');
  // Of several mounts at one place the last one is seen.
  const mount = machine
    .readText('/proc/self/mounts')
    ?.split('\n')
    .findLast((line) => line.split(' ')[1] === '/dev/shm');
  if (machine.platform !== 'linux' || space === undefined) {
    const advice =
      'ranks share memory through /dev/shm, a tmpfs that Linux has: mount -t tmpfs -o size=50% tmpfs /dev/shm';
    return {
      name,
      status: 'absent',
      value: machine.platform === 'linux' ? 'no such folder' : machine.platform,
      advice,
      blocksCpu: true,
    };
  }
  const kind = mount === undefined ? 'not a mount of its own' : mount.split(' ')[2];
  const value = `${formatBytes(space.freeBytes)} free of ${formatBytes(space.totalBytes)} (${kind})`;
  const { windowBytes, windowBytesPerToken, sentence } = typicalConfiguration;
  if (space.freeBytes >= windowBytes) return { name, status: 'ok', value };
  const raise = inContainer(machine) ? 'start the container with --shm-size=4g' : 'mount -o remount,size=4G /dev/shm';
  const fits = Math.floor(space.freeBytes / windowBytesPerToken);
  const advice = `${sentence} need ${formatBytes(windowBytes)} at worst, about ${fits} tokens per rank fit: ${raise}, or remove what others left there`;
  return { name, status: 'short', value, advice };
}
