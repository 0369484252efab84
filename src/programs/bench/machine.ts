// The machine, versions and load that a result belongs to.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';

export interface MachineDocument {
  readonly platform: string;
  readonly kernel: string;
  readonly cpu: string;
  readonly cores: number;
  readonly usableCores: number;
  readonly memoryBytes: number;
  readonly nodeVersion: string;
  readonly weftlineVersion: string;
  /** Of the checkout that the package runs from; undefined for an installed package. */
  readonly commit: string | undefined;
  /** True when files of the checkout differ from the commit. */
  readonly modified: boolean | undefined;
}

export function machineDocument(): MachineDocument {
  const root = fileURLToPath(new URL('../../..', import.meta.url));
  const { version } = JSON.parse(readFileSync(`${root}package.json`, 'utf8')) as { readonly version: string };
  const commit = git(root, 'rev-parse', 'HEAD');
  return {
    platform: `${process.platform}-${process.arch}`,
    kernel: release(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: cpus().length,
    usableCores: availableParallelism(),
    memoryBytes: totalmem(),
    nodeVersion: process.versions.node,
    weftlineVersion: version,
    commit,
    modified: commit === undefined ? undefined : git(root, 'status', '--porcelain', '--untracked-files=no') !== '',
  };
}

/** Average number of running processes over the last minute. */
export function loadAverage(): number {
  return loadavg()[0] as number;
}

/** undefined unless `root` itself is a checkout: a package under node_modules must not report its user's commit. */
function git(root: string, ...args: string[]): string | undefined {
  if (!existsSync(`${root}.git`)) return undefined;
  try {
    return execFileSync('git', ['-C', root, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}
