// Which processes share a host's memory: the same boot, the same /dev/shm, the same host name, and no pretended host between.
import { readlinkSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { bootId } from '../meeting/credentials.ts';
import type { Environment } from './environment.ts';
import { pretendedHost } from './pretended-hosts.ts';
import { SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';

/** Equal for two processes exactly if shared-memory files of one are visible to the other and the setting `hosts` lets them be used. */
export function hostIdentity(environment: Environment = process.env): string {
  const pretended = pretendedHost(environment);
  return machineIdentity() + (pretended === undefined ? '' : `/host ${pretended}`);
}

/** Equal for processes that reach each other at 127.0.0.1. */
export function networkIdentity(): string {
  let namespace = '';
  try {
    namespace = readlinkSync('/proc/self/ns/net');
  } catch {
    // Without /proc, all processes of a boot count as of one network.
  }
  return `${bootId()}/${namespace}`;
}

/** hostIdentity() without regard to the setting `hosts`: processes that see the same GPUs. */
export function machineIdentity(): string {
  return [bootId(), sharedMemoryDevice(), hostname()].join('/');
}

/** What tells this boot of this host from others: 36 characters, and up to 4 where the setting `hosts` pretends several. */
export function bootIdentity(environment: Environment = process.env): string {
  const pretended = pretendedHost(environment);
  return bootId() + (pretended === undefined ? '' : `/${pretended}`);
}

/** Tells containers of one host apart: each has its own /dev/shm unless they share it. */
function sharedMemoryDevice(): string {
  try {
    return String(statSync(SHARED_MEMORY_FOLDER).dev);
  } catch {
    return 'no-shm';
  }
}
