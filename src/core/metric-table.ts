// Every metric, once: name, kind, labels and what it says. Samples, Prometheus, JSON, the reference and the dashboard take them from here.

/** Objects of this thread that count in plain memory at all times, and are read when somebody asks. */
type Sources<T> = Set<() => T | Promise<T>>;

/** The source is read too from now on. Returns how to take it back. */
function add<T>(sources: Sources<T>, source: () => T | Promise<T>): () => void {
  sources.add(source);
  return () => sources.delete(source);
}

/** What the sources say; one that fails, because its object is being closed, says nothing. */
async function readAll<T>(sources: Sources<T>): Promise<T[]> {
  const ends = await Promise.allSettled([...sources].map(async (source) => source()));
  return ends.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []));
}

/** Sums over all objects since the process began; bytes and packets never decrease while an object is open. */
export interface Meters {
  readonly sentBytes: number;
  readonly receivedBytes: number;
  readonly sentPackets: number;
  readonly retransmittedPackets: number;
  /** Memory of windows that this rank has mapped. */
  readonly windowBytes: number;
}

const meterSources: Sources<Partial<Meters>> = new Set();

/** The source counts for readMeters() from now on. Returns how to take it back. */
export function addMeter(source: () => Partial<Meters> | Promise<Partial<Meters>>): () => void {
  return add(meterSources, source);
}

export async function readMeters(): Promise<Meters> {
  const sums = { sentBytes: 0, receivedBytes: 0, sentPackets: 0, retransmittedPackets: 0, windowBytes: 0 };
  for (const meters of await readAll(meterSources)) {
    for (const name of Object.keys(sums) as (keyof Meters)[]) sums[name] += meters[name] ?? 0;
  }
  return sums;
}

/** One number of a metric; `labels` are values, in the order of the metric's labels. */
export interface Sample {
  readonly name: MetricName;
  readonly labels: readonly string[];
  readonly value: number;
  /** How many observations `value` is the sum of, in samples of a summary. */
  readonly count?: number;
}

const sampleSources: Sources<readonly Sample[]> = new Set();

/** The source's samples are read too from now on. Returns how to take it back. */
export function addSamples(source: () => readonly Sample[] | Promise<readonly Sample[]>): () => void {
  return add(sampleSources, source);
}

export async function readSamples(): Promise<Sample[]> {
  return (await readAll(sampleSources)).flat();
}

/** Labels are in the order in which samples give their values. Times are in seconds, sizes in bytes. */
export const metricTable = {
  weftline_ep_step_seconds: {
    kind: 'histogram',
    labels: ['op', 'phase', 'mode', 'world'],
    help: 'Time of calls of EpBuffer (mode buffer), EPAll2AllLayer (layer) and EpLowLatency (low_latency), and of their phases; phase call is the whole call, world the number of ranks',
  },
  weftline_ep_bytes_total: {
    kind: 'counter',
    labels: ['op', 'link'],
    help: 'Bytes of rows that dispatches of this rank sent and that combines brought back: to or from this rank itself (link self), ranks of its host (host), other hosts (network, once per token and host); of EPAll2AllLayer and EpLowLatency on CPU ranks alone',
  },
  weftline_ep_tokens_total: {
    kind: 'counter',
    labels: ['op', 'mode'],
    help: 'Tokens that this rank gave to dispatches, and got back from combines',
  },
  weftline_ep_expert_tokens_total: {
    kind: 'counter',
    labels: ['layer', 'expert'],
    help: 'Choices by layer and logical expert, as ExpertLoads objects of this rank count them; for programs that make one',
  },
  weftline_ep_imbalance_ratio: {
    kind: 'gauge',
    labels: ['mode'],
    help: 'Rows that the busiest rank received in the last dispatch of this rank, over the mean of all ranks; not of EpLowLatency',
  },
  weftline_ep_wait_seconds: {
    kind: 'summary',
    labels: ['source'],
    help: 'Time of waits of collective calls past their spin, by world rank that had not come when the wait began sleeping',
  },
  weftline_ep_overflow_total: {
    kind: 'counter',
    labels: ['policy'],
    help: 'Rows of EpLowLatency beyond maxTokensPerExpert: dropped, or the reason of a failure',
  },
  weftline_collective_seconds: {
    kind: 'histogram',
    labels: ['op', 'world'],
    help: 'Time of calls of Communicator and SparseAllReduce',
  },
  weftline_rank_active: {
    kind: 'gauge',
    labels: ['rank'],
    help: '1 if this process believes that world rank to be there (so rank is not who says it: that is told by local_rank and pid), 0 once it has heard that it failed or was lost, or, of an elastic job, left',
  },
  weftline_errors_total: {
    kind: 'counter',
    labels: ['code'],
    help: 'Collective calls and transfers of agents that failed, by error code',
  },
  weftline_buffer_bytes: {
    kind: 'gauge',
    labels: ['kind'],
    help: 'Memory of windows that this rank has mapped (kind window)',
  },
  weftline_transport_sent_bytes_total: {
    kind: 'counter',
    labels: ['peer'],
    help: 'Payload sent over open connections of the transport',
  },
  weftline_transport_received_bytes_total: {
    kind: 'counter',
    labels: ['peer'],
    help: 'Payload received over open connections of the transport',
  },
  weftline_transport_packets_total: {
    kind: 'counter',
    labels: ['peer', 'path'],
    help: 'Data packets sent on each path of open connections, those sent again included',
  },
  weftline_transport_retransmits_total: {
    kind: 'counter',
    labels: ['peer', 'path'],
    help: 'Data packets of each path of open connections that were taken for lost and sent again',
  },
  weftline_transport_rtt_seconds: {
    kind: 'gauge',
    labels: ['peer', 'path'],
    help: 'Smoothed round-trip time of each path of open connections that was measured',
  },
  weftline_agent_transfer_seconds: {
    kind: 'histogram',
    labels: ['backend', 'operation'],
    help: 'Time of transfers of agents from their post until this side noticed their end',
  },
  weftline_agent_bytes_total: {
    kind: 'counter',
    labels: ['backend', 'operation'],
    help: 'Bytes of transfers of agents that have ended',
  },
  weftline_kv_blocks: {
    kind: 'gauge',
    labels: ['store', 'state'],
    isSum: true,
    help: 'Blocks of KV stores of this process, by name: free, reserved (being written) and sealed',
  },
  weftline_kv_leases: {
    kind: 'gauge',
    labels: ['store'],
    isSum: true,
    help: 'Leases on blocks of KV stores of this process, by name, that have not ended',
  },
  weftline_kv_reads_total: {
    kind: 'counter',
    labels: ['store', 'result'],
    help: 'Blocks that readers of this process asked a KV store for, by what became of them: hit, or the reason of a miss; the name is empty while no table of such a store was found',
  },
  weftline_kv_bytes_total: {
    kind: 'counter',
    labels: ['store'],
    help: 'Bytes of blocks that readers of this process have handed out, by KV store',
  },
  weftline_telemetry_dropped_total: {
    kind: 'counter',
    labels: [],
    help: 'Observations that were not counted, because too many were under way at once or their begin was replaced',
  },
} as const satisfies Record<string, MetricDeclaration>;

/** What an entry of the table says. A summary has no quantiles: a sum and a count. */
interface MetricDeclaration {
  readonly kind: MetricKind;
  readonly labels: readonly string[];
  /** A gauge of equal labels is added up; else the largest counts. */
  readonly isSum?: true;
  readonly help: string;
}

/** Kinds as Prometheus understands them. */
export type MetricKind = 'counter' | 'gauge' | 'histogram' | 'summary';

/** The name of a metric. */
export type MetricName = keyof typeof metricTable;
