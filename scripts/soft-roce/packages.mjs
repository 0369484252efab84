// What the rig needs from Debian, and whether it is here.
import { spawnSync } from 'node:child_process';

/** Programs that must be there, with the package of each. perftest and ibverbs-utils are for measuring only. */
const programs = {
  'qemu-system-x86_64': 'qemu-system-x86',
  busybox: 'busybox-static',
  cpio: 'cpio',
  depmod: 'kmod',
  rdma: 'iproute2',
  ip: 'iproute2',
  tc: 'iproute2',
  setpriv: 'util-linux',
  'apt-get': 'apt',
};

/** Packages of the rig, for apt-get install. */
export const packages = [
  'qemu-system-x86',
  'seabios',
  'busybox-static',
  'kmod',
  'cpio',
  'iproute2',
  'libibverbs1',
  'ibverbs-providers',
  'ibverbs-utils',
  'perftest',
];

/** Why the guest cannot be had on this machine; undefined if it can. The kernel may still have to be downloaded. */
export function whyNotSoftRoce() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    return `the guest needs Linux on x86-64, not ${process.platform} on ${process.arch}`;
  }
  const path = `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin`;
  const missing = Object.entries(programs).filter(
    ([program]) => spawnSync('/bin/sh', ['-c', `command -v ${program}`], { env: { PATH: path } }).status !== 0,
  );
  if (missing.length === 0) return undefined;
  const words = [...new Set(missing.map(([, owner]) => owner))];
  return `no ${missing.map(([program]) => program).join(', ')} (Debian: apt-get install ${words.join(' ')})`;
}
