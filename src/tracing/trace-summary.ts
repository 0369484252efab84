// What a trace says in a few lines: time by phase and rank, and the rank for which the others wait.
import { isOfAll, spanName } from './chrome-trace.ts';
import { peerOfLabel, type TracePart } from './read-part.ts';

interface PhaseSummary {
  /** A trace point, or an object and its call. */
  readonly phase: string;
  readonly count: number;
  /** Time of all ranks together, in microseconds. */
  readonly totalUs: number;
  readonly medianUs: number;
  readonly p99Us: number;
  readonly mostUs: number;
  /** The process with the longest mean, and that mean over the mean of all. */
  readonly slowest: string;
  readonly slowestRatio: number;
  /** Begun and not ended. */
  readonly open: number;
}

export interface TraceSummary {
  readonly processes: readonly string[];
  /** Longest first. */
  readonly phases: readonly PhaseSummary[];
  /** How often each process was the last to enter a call that all ranks make, of how many. */
  readonly lastIn: readonly { readonly process: string; readonly calls: number; readonly lateUs: number }[];
  readonly calls: number;
  /** How long each process was in such calls before the last one entered them, by that last one; longest first. */
  readonly waits: readonly {
    readonly waiter: string;
    readonly last: string;
    readonly calls: number;
    readonly waitedUs: number;
  }[];
  /** How long blocks of kernels of each process waited, and for whom; longest first. Groups of blocks add up. */
  readonly kernelWaits: readonly {
    readonly waiter: string;
    /** "rank 1", counted within the group of the kernel's object, or "own blocks". */
    readonly peer: string;
    readonly count: number;
    readonly waitedUs: number;
    /** Begun and not ended. */
    readonly open: number;
  }[];
  /** Records that were overwritten by later ones. */
  readonly lost: number;
}

export function summarize(parts: readonly TracePart[]): TraceSummary {
  const durations = new Map<string, Map<string, number[]>>();
  const open = new Map<string, number>();
  for (const part of parts) {
    for (const { spans } of part.threads) {
      for (const span of spans) {
        const phase = spanName(span);
        if (span.end === undefined) {
          open.set(phase, (open.get(phase) ?? 0) + 1);
          continue;
        }
        const byProcess = durations.get(phase) ?? new Map<string, number[]>();
        durations.set(phase, byProcess);
        const name = processName(part);
        const times = byProcess.get(name) ?? [];
        byProcess.set(name, times);
        times.push(span.end - span.begin);
      }
    }
  }
  const phases = [...new Set([...durations.keys(), ...open.keys()])].map((phase) =>
    phaseSummary(phase, durations.get(phase) ?? new Map<string, number[]>(), open.get(phase) ?? 0),
  );
  return {
    processes: parts.map(processName),
    phases: phases.toSorted((left, right) => right.totalUs - left.totalUs),
    ...lastIn(parts),
    kernelWaits: kernelWaits(parts),
    lost: parts.reduce((sum, { threads }) => sum + threads.reduce((inner, { lost }) => inner + lost, 0), 0),
  };
}

function processName({ rank, program, pid }: TracePart): string {
  return rank < 0 ? `${program} ${pid}` : `rank ${rank}`;
}

function phaseSummary(phase: string, byProcess: ReadonlyMap<string, readonly number[]>, open: number): PhaseSummary {
  const all = [...byProcess.values()].flat().toSorted((left, right) => left - right);
  const means = [...byProcess].map(([name, times]) => ({ name, mean: sumOf(times) / times.length }));
  const [slowest] = means.toSorted((left, right) => right.mean - left.mean);
  const totalUs = sumOf(all);
  const mean = totalUs / Math.max(1, all.length);
  return {
    phase,
    count: all.length,
    totalUs,
    medianUs: all[Math.floor(all.length / 2)] ?? 0,
    p99Us: all[Math.min(all.length - 1, Math.floor(all.length * 0.99))] ?? 0,
    mostUs: all.at(-1) ?? 0,
    slowest: slowest?.name ?? '',
    slowestRatio: mean === 0 ? 1 : (slowest?.mean ?? 0) / mean,
    open,
  };
}

function kernelWaits(parts: readonly TracePart[]): TraceSummary['kernelWaits'] {
  const waits = new Map<string, TraceSummary['kernelWaits'][number]>();
  for (const part of parts) {
    const waiter = processName(part);
    for (const { point, label, begin, end } of part.threads.flatMap(({ spans }) => spans)) {
      const peer = point === 'kernel.wait' ? peerOfLabel(label) : undefined;
      if (peer === undefined) continue;
      const { count, waitedUs, open } = waits.get(`${waiter} ${peer}`) ?? { count: 0, waitedUs: 0, open: 0 };
      waits.set(`${waiter} ${peer}`, {
        waiter,
        peer,
        count: count + 1,
        waitedUs: waitedUs + (end ?? begin) - begin,
        open: open + (end === undefined ? 1 : 0),
      });
    }
  }
  return [...waits.values()].toSorted((left, right) => right.waitedUs - left.waitedUs);
}

/** Counts calls that several ranks of one host have made, whose clocks are the same. */
function lastIn(parts: readonly TracePart[]): Pick<TraceSummary, 'lastIn' | 'calls' | 'waits'> {
  const calls = new Map<string, { readonly process: string; readonly begin: number }[]>();
  for (const part of parts) {
    for (const { spans } of part.threads) {
      for (const { point, label, subject, begin } of spans) {
        if (point !== 'call' || !isOfAll(label)) continue;
        const key = `${part.host} ${label} ${subject}`;
        const entries = calls.get(key) ?? [];
        calls.set(key, entries);
        entries.push({ process: processName(part), begin });
      }
    }
  }
  const late = new Map<string, { calls: number; lateUs: number }>();
  const waits = new Map<string, { waiter: string; last: string; calls: number; waitedUs: number }>();
  let count = 0;
  for (const entries of calls.values()) {
    if (entries.length < 2) continue;
    count += 1;
    const [last, ...others] = entries.toSorted((left, right) => right.begin - left.begin);
    const [before] = others;
    for (const { process: waiter, begin } of others) {
      const pair = `${waiter} ${last!.process}`;
      const soFar = waits.get(pair) ?? { waiter, last: last!.process, calls: 0, waitedUs: 0 };
      waits.set(pair, { ...soFar, calls: soFar.calls + 1, waitedUs: soFar.waitedUs + last!.begin - begin });
    }
    const known = late.get(last!.process) ?? { calls: 0, lateUs: 0 };
    late.set(last!.process, { calls: known.calls + 1, lateUs: known.lateUs + last!.begin - before!.begin });
  }
  const all = [...late].map(([process, facts]) => ({ process, ...facts }));
  return {
    lastIn: all.toSorted((left, right) => right.lateUs - left.lateUs),
    calls: count,
    waits: [...waits.values()].toSorted((left, right) => right.waitedUs - left.waitedUs),
  };
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
