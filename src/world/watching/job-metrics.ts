// The metrics of all ranks of a job, asked for once through its store.
import type { JobAnswers } from './inquiry.ts';
import { JobObserver } from './job-observer.ts';
import type { WatchedJob } from './job-view.ts';
import type { MetricsAnswer } from './metrics-answer.ts';

export interface JobMetrics {
  readonly jobId: string;
  readonly size: number;
  /** By rank, of those that have answered. */
  readonly ranks: ReadonlyMap<number, MetricsAnswer>;
  /** Ranks that have joined and not left, and have not answered. */
  readonly silent: readonly number[];
}

/** Fails as JobObserver.connect() and ask() do. */
export async function readJobMetrics({ address }: WatchedJob, patienceMs: number): Promise<JobMetrics> {
  const observer = await JobObserver.connect(address, patienceMs);
  try {
    const answers = await observer.ask(patienceMs, (known) => silentOf(known).length === 0, 'metrics');
    const ranks = new Map([...answers.metrics].toSorted(([left], [right]) => left - right));
    return { jobId: answers.jobId, size: answers.size, ranks, silent: silentOf(answers) };
  } finally {
    observer.close();
  }
}

function silentOf({ members, metrics }: JobAnswers): number[] {
  const present = [...members.values()].filter(({ left }) => left === undefined);
  return present.map(({ rank }) => rank).filter((rank) => !metrics.has(rank));
}
