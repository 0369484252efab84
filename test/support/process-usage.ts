// What a process of this machine holds, as /proc tells.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface ProcessUsage {
  readonly descriptors: number;
  /** Mappings that other processes may share: memory files, /dev/shm. Those of the engine's heap come and go. */
  readonly mappings: number;
  readonly threads: number;
  readonly residentBytes: number;
}

export function usageOf(pid: number = process.pid): ProcessUsage {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const field = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
  return {
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
    mappings: sharedMappingsOf(pid).length,
    threads: field('Threads'),
    residentBytes: field('VmRSS') * 1024,
  };
}

/** For messages: what each descriptor and each shared mapping is, equal ones counted. */
export function describeUsage(pid: number = process.pid): string {
  const counts = new Map<string, number>();
  const note = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1);
  for (const fd of readdirSync(`/proc/${pid}/fd`)) {
    try {
      note(`descriptor of ${readlinkSync(`/proc/${pid}/fd/${fd}`).replace(/\d+/g, 'N')}`);
    } catch {
      // It was that of the folder itself.
    }
  }
  for (const line of sharedMappingsOf(pid)) note(`mapping of ${line.slice(73).trim().replace(/\d+/g, 'N')}`);
  return [...counts].map(([what, count]) => `${count} x ${what}`).join('\n');
}

function sharedMappingsOf(pid: number): string[] {
  const lines = readFileSync(`/proc/${pid}/maps`, 'utf8').split('\n');
  return lines.filter((line) => /^\S+ ..[-x]s/.test(line));
}
