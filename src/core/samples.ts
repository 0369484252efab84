// What objects of this thread have counted, as samples of metrics. Kept in plain memory at all times, read when somebody asks.
import type { MetricName } from './metric-table.ts';

/** `labels`: values, in the order of the metric's labels. */
export interface Sample {
  readonly name: MetricName;
  readonly labels: readonly string[];
  readonly value: number;
  /** Of a summary: how many observations `value` is the sum of. */
  readonly count?: number;
}

type SampleSource = () => readonly Sample[] | Promise<readonly Sample[]>;

const sources = new Set<SampleSource>();

/** From now on the source is read too. Returns how to take it back. */
export function addSamples(source: SampleSource): () => void {
  sources.add(source);
  return () => sources.delete(source);
}

/** Those of all sources; of one that fails, because its object is being closed, none. */
export async function readSamples(): Promise<Sample[]> {
  const ends = await Promise.allSettled([...sources].map(async (source) => source()));
  return ends.flatMap((end) => (end.status === 'fulfilled' ? end.value : []));
}
