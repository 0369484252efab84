// What the system shows of a process of this host, for ranks that do not answer. Linux; elsewhere nothing is known.
import { readdirSync, readFileSync } from 'node:fs';
import { number, record, text } from './rank-answer.ts';

export interface ProcessFacts {
  readonly pid: number;
  /** The letter of /proc/PID/stat: R runs, S sleeps, D waits for a device, T is stopped, Z has ended. */
  readonly state: string;
  /** Time of all its threads. */
  readonly cpuMs: number;
  /** Time of its main thread, which runs the program. */
  readonly mainCpuMs: number;
  readonly rssBytes: number;
  /** Function of the kernel in which its main thread sleeps; empty if it does not, or if that is hidden. */
  readonly kernelWait: string;
}

/** Units of /proc on all systems that Node runs on. */
const TICKS_PER_SECOND = 100;
const PAGE_BYTES = 4096;

/** undefined for a process that is gone. */
export function processFacts(pid: number): ProcessFacts | undefined {
  const stat = statOf(pid);
  if (stat === undefined) return undefined;
  const wait = readText(`/proc/${pid}/wchan`) ?? '';
  return {
    pid,
    state: stat[STAT.state] ?? '?',
    cpuMs: cpuMsOf(stat),
    mainCpuMs: cpuMsOf(statOf(`${pid}/task/${pid}`) ?? stat),
    rssBytes: Number(stat[STAT.rssPages]) * PAGE_BYTES,
    kernelWait: wait === '0' ? '' : wait,
  };
}

/** Facts of ranks that a launcher has started, for those who ask it. */
export function rankProcesses(
  ranks: readonly { readonly rank: number; readonly pid: number }[],
): readonly (ProcessFacts & { readonly rank: number })[] {
  return ranks.flatMap(({ rank, pid }) => {
    const facts = processFacts(pid);
    return facts === undefined ? [] : [{ rank, ...facts }];
  });
}

/** Facts that a node's launcher on another host has told. */
export function readProcessFacts(value: unknown): ProcessFacts {
  return record<ProcessFacts>(value, {
    pid: number,
    state: text,
    cpuMs: number,
    mainCpuMs: number,
    rssBytes: number,
    kernelWait: text,
  });
}

/** True if a signal stopped it, or a debugger holds it. */
export function isStopped(facts: ProcessFacts): boolean {
  return facts.state === 'T' || facts.state === 't';
}

/** Process ids of this host, ascending; none without /proc. */
export function processIds(): number[] {
  try {
    const names = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
    return names.map(Number).toSorted((left, right) => left - right);
  } catch {
    return [];
  }
}

/** True if it leads a process group, as ranks of a launcher do and what they start does not. */
export function leadsGroup(pid: number): boolean {
  return Number(statOf(pid)?.[STAT.group]) === pid;
}

export function parentOf(pid: number): number | undefined {
  const parent = statOf(pid)?.[STAT.parent];
  return parent === undefined ? undefined : Number(parent);
}

/** Positions behind the name, which may hold anything. */
const STAT = { state: 0, parent: 1, group: 2, userTicks: 11, systemTicks: 12, rssPages: 21 } as const;

function cpuMsOf(stat: readonly string[]): number {
  return ((Number(stat[STAT.userTicks]) + Number(stat[STAT.systemTicks])) * 1000) / TICKS_PER_SECOND;
}

/** `of`: a process, or PID/task/THREAD. */
function statOf(of: number | string): readonly string[] | undefined {
  const line = readText(`/proc/${of}/stat`);
  return line?.slice(line.lastIndexOf(')') + 2).split(' ');
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return undefined;
  }
}
