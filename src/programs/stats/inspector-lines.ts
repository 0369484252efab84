// Last calls of a job in the shape of NCCL's inspector plug-in, format v4.0: a line of JSON for each rank, object and call.
import { createHash } from 'node:crypto';
import type { JobMetrics } from '../../world/watching/job-metrics.ts';
import { busFactor } from '../bench/collectives/collectives-workload.ts';

const FORMAT_VERSION = 'v4.0';

/** NCCL's names of what it has too. */
const names: Readonly<Record<string, string>> = {
  allReduce: 'AllReduce',
  allGather: 'AllGather',
  reduceScatter: 'ReduceScatter',
  broadcast: 'Broadcast',
  reduce: 'Reduce',
  allToAll: 'AllToAll',
  send: 'Send',
  recv: 'Recv',
};

/** `now`: milliseconds since the Unix epoch. Bandwidths are in GB/s; 0 of calls that carry nothing. */
export function inspectorLines({ jobId, ranks }: JobMetrics, now: number): string {
  const hosts = new Set([...ranks.values()].map(({ labels }) => labels['hostname'])).size;
  return [...ranks]
    .flatMap(([rank, { labels, lastCalls }]) =>
      lastCalls.map(({ label, object, call, ranks: size, number, seconds, bytes }) => {
        const algbw = seconds > 0 ? bytes / seconds / 1e9 : 0;
        return JSON.stringify({
          header: { id: communicatorId(jobId, label), rank, n_ranks: size, nnodes: hosts },
          metadata: {
            inspector_output_format_version: FORMAT_VERSION,
            git_rev: '',
            rec_mechanism: 'weftline',
            dump_timestamp_us: Math.round(now * 1000),
            hostname: labels['hostname'] ?? '',
            pid: Number(labels['pid'] ?? 0),
          },
          coll_perf: {
            coll: names[call] ?? `${object}.${call}`,
            coll_sn: number,
            coll_msg_size_bytes: bytes,
            coll_exec_time_us: Math.round(seconds * 1e6),
            coll_timing_source: 'host',
            coll_algobw_gbs: Number(algbw.toFixed(6)),
            coll_busbw_gbs: Number((algbw * busFactor(call, size)).toFixed(6)),
          },
        });
      }),
    )
    .map((line) => `${line}\n`)
    .join('');
}

/** The same for all calls of one object on all ranks. */
function communicatorId(jobId: string, label: string): string {
  const object = label.replace(/\.[^.]+ of /, ' of ');
  return `0x${createHash('sha256').update(`${jobId} ${object}`).digest('hex').slice(0, 16)}`;
}
