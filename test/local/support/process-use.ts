// What a process holds of the system: descriptors, mappings of shared memory, threads, memory.
import { readdirSync, readFileSync } from 'node:fs';

export interface ProcessUse {
  readonly descriptors: number;
  /** Mappings of memory files of weftline, its own and those of peers. */
  readonly mappings: number;
  readonly threads: number;
  readonly sharedKiB: number;
  readonly privateKiB: number;
}

export function processUse(): ProcessUse {
  const status = readFileSync('/proc/self/status', 'latin1');
  const kiB = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1]);
  const maps = readFileSync('/proc/self/maps', 'latin1').split('\n');
  return {
    descriptors: readdirSync('/proc/self/fd').length,
    mappings: maps.filter((line) => line.includes('memfd:weftline')).length,
    threads: readdirSync('/proc/self/task').length,
    sharedKiB: kiB('RssShmem'),
    privateKiB: kiB('RssAnon'),
  };
}
