// What this process holds of the kernel: to be compared before and after something that must leave nothing.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface Holdings {
  /** What each descriptor is, without its number: "socket", "anon_inode:[eventpoll]". */
  readonly descriptors: readonly string[];
  /** Mappings of files and of shared memory; those of Node's own heap come and go. */
  readonly mappings: readonly string[];
  readonly threads: readonly string[];
  /** System V segments that this process has made, which outlive it. */
  readonly segments: number;
}

export function holdings(): Holdings {
  return {
    descriptors: readdirSync('/proc/self/fd').flatMap(targetOf).toSorted(),
    mappings: linesOf('/proc/self/maps')
      .flatMap((line) => /\S+\s+\S+\s+\S+\s+\S+\s+\d+\s+((?:\/memfd|\/dev\/shm|\/SYSV)\S*)/.exec(line)?.[1] ?? [])
      .toSorted(),
    threads: readdirSync('/proc/self/task')
      .flatMap((task) => linesOf(`/proc/self/task/${task}/comm`))
      .toSorted(),
    segments: linesOf('/proc/sysvipc/shm').filter((line) => line.trim().split(/\s+/)[4] === String(process.pid)).length,
  };
}

const PATIENCE_MS = 60_000;

/** What there is now that was not there before, but for what `ignored` matches: empty as soon as nothing is left, else what is after a while. */
export async function leftSince(before: Holdings, ignored?: RegExp): Promise<string[]> {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    const now = holdings();
    const left = [
      ...surplus(now.descriptors, before.descriptors),
      ...surplus(now.mappings, before.mappings),
      ...surplus(now.threads, before.threads),
      ...(now.segments > before.segments ? [`${now.segments - before.segments} System V segments`] : []),
    ].filter((what) => ignored?.test(what) !== true);
    if (left.length === 0 || performance.now() > end) return left;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function surplus(now: readonly string[], before: readonly string[]): string[] {
  const known = [...before];
  return now.filter((item) => {
    const at = known.indexOf(item);
    if (at >= 0) known.splice(at, 1);
    return at < 0;
  });
}

function targetOf(fd: string): string[] {
  try {
    return [readlinkSync(`/proc/self/fd/${fd}`).replace(/\d+/g, 'N')];
  } catch {
    return [];
  }
}

function linesOf(path: string): string[] {
  try {
    return readFileSync(path, 'utf8')
      .split('\n')
      .filter((line) => line !== '');
  } catch {
    return [];
  }
}
