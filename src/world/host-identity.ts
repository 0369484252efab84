// Tells which processes share a host's memory: the same boot, the same /dev/shm, the same host name, and no pretended host between.
import { readlinkSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import { bootId } from '../meeting/credentials.ts';
import { readSettings } from '../settings/settings.ts';
import { type Environment, readEnvironment } from './environment.ts';
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
    // All processes of a boot count as of one network if there is no /proc.
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

/** What the local backend publishes of a host has room for numbers of three digits. */
const MAX_HOSTS = 256;

/** Ranks of each pretended host: "2" splits them evenly, the first hosts get what is left over; "3+1" says each. Fails with WL_CONFIG. */
export function ranksOfHosts(hosts: string, ranks: number): readonly number[] {
  if (!/^[0-9]{1,5}(\+[0-9]{1,5})*$/.test(hosts)) throw wrong(hosts, 'a number of hosts, or the ranks of each as 3+1');
  const counts = hosts.split('+').map(Number);
  if (counts.length > 1) {
    const sum = counts.reduce((total, count) => total + count, 0);
    if (sum === ranks && counts.length <= MAX_HOSTS && !counts.includes(0)) return counts;
    throw wrong(hosts, `up to ${MAX_HOSTS} numbers above 0 whose sum is the ${ranks} ranks of this machine`);
  }
  const count = counts[0]!;
  const max = Math.min(ranks, MAX_HOSTS);
  if (count < 1 || count > max)
    throw wrong(
      hosts,
      ranks === 1 ? '1, as this machine has one rank' : `1 to ${max}, as this machine has ${ranks} ranks`,
    );
  return Array.from({ length: count }, (_, host) => Math.floor(ranks / count) + (host < ranks % count ? 1 : 0));
}

/**
 * Number of the host that this process pretends to live on; undefined unless the setting says so. It follows from the
 * environment alone, so that all threads of a rank and all objects in them agree. Fails with WL_CONFIG.
 */
function pretendedHost(environment: Environment): number | undefined {
  const { hosts } = readSettings({}, environment);
  if (hosts === '1') return undefined;
  const { source, localRank, localSize } = readEnvironment(environment);
  // A process that no launcher started, such as an agent of its own, has nobody to pretend for.
  if (source === 'single') return undefined;
  if (localRank === undefined || localSize === undefined) {
    throw wrong(hosts, `1 here: ${source} does not say how many ranks this machine has; start them with weftline run`);
  }
  const counts = ranksOfHosts(hosts, localSize);
  let before = 0;
  return counts.findIndex((count) => localRank < (before += count));
}

function wrong(hosts: string, expected: string): WeftlineError {
  return new WeftlineError(
    'WL_CONFIG',
    `Invalid setting hosts (WEFTLINE_HOSTS): expected ${expected}, got ${quote(hosts)}`,
    {
      details: { setting: 'hosts', value: hosts, expected },
    },
  );
}
