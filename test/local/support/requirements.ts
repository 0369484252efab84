// Whether a test may be skipped for what the machine lacks: not where WEFTLINE_TEST_REQUIRE says that it is there.
import { WeftlineError } from 'weftline';
import { backendNames } from '#lib/agent/backends/backend-table.js';

/**
 * - a backend: it can be created
 * - `namespaces`: networks of a test's own (root, unshare, ip, nft)
 * - `mounts`: a view of the file system of a test's own (root, unshare, mount)
 * - `capabilities`: root without its capabilities (setpriv)
 * - `tun`: network interfaces that end in a process (root, unshare, nsenter, ip, /dev/net/tun)
 * - `other-user`: this code as run by another user (root, and a folder that others may read)
 * - `soft-roce`: a guest with RDMA devices (QEMU and Debian's kernel package, see scripts/soft-roce)
 * - `chromium`: the browser (Debian: chromium)
 * - `shells`: zsh and fish
 * - `etcd`: the program etcd (Debian: etcd-server)
 */
const requirements = [
  ...backendNames,
  'namespaces',
  'mounts',
  'capabilities',
  'tun',
  'other-user',
  'etcd',
  'soft-roce',
  'chromium',
  'shells',
] as const;
export type Requirement = (typeof requirements)[number];

const required = (process.env['WEFTLINE_TEST_REQUIRE'] ?? '')
  .split(',')
  .map((word) => word.trim())
  .filter((word) => word !== '');
// A misspelt one would demand nothing.
for (const word of required)
  if (!requirements.some((known) => known === word))
    throw new Error(`Invalid WEFTLINE_TEST_REQUIRE: expected some of ${requirements.join(', ')}, got ${word}`);

/** For a test's option `skip`. `why`: what is lacking, undefined if nothing is. Throws if it was required. */
export function skipWithout(requirement: Requirement, why: string | undefined): string | false {
  if (why === undefined) return false;
  if (!required.includes(requirement)) return why;
  throw new Error(`WEFTLINE_TEST_REQUIRE demands ${requirement}, but its tests cannot run here: ${why}`);
}

/** What an error says of the machine. Other errors are faults, not reasons to skip: they are thrown. */
export function reasonOf(error: unknown): string {
  if (error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED') return error.message;
  throw error;
}
