// Report pages of every kind of chart, from results that are in the repository and from small simulations.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { compareResults } from '#lib/programs/compare/compare-results.js';
import type { CollectivesBenchReport } from '#lib/programs/bench/collectives/collectives-bench.js';
import type { EpCudaBenchReport } from '#lib/programs/bench/ep/cuda-bench.js';
import type { EpBenchReport } from '#lib/programs/bench/ep/ep-bench.js';
import type { EpHostBenchReport } from '#lib/programs/bench/ep/ep-hosts.js';
import type { P2pBenchReport } from '#lib/programs/bench/p2p/p2p-bench.js';
import type { PathsAt, TransportBenchReport } from '#lib/programs/bench/transport/transport-bench.js';
import type { MoeReport } from '#lib/programs/moe/moe-job.js';
import { collectivesView } from '#lib/programs/cli/bench-collectives.js';
import { compareView } from '#lib/programs/cli/compare-command.js';
import { epCudaView, epHostView, epView } from '#lib/programs/cli/bench-ep.js';
import { moeView } from '#lib/programs/cli/moe-command.js';
import { p2pView } from '#lib/programs/cli/bench-p2p.js';
import { traceView } from '#lib/programs/cli/trace-command.js';
import { transportView } from '#lib/programs/cli/bench-transport.js';
import { type View, viewPage } from '#lib/programs/report/view.js';
import type { ReportPage } from '#lib/programs/report/html/page-html.js';
import type { Span, TracePart } from '#lib/tracing/read-part.js';
import { summarize } from '#lib/tracing/trace-summary.js';

const results = fileURLToPath(new URL('../../../docs/benchmarks/results/', import.meta.url));

export function resultDocument(name: string): Json {
  return JSON.parse(readFileSync(`${results}${name}.json`, 'utf8')) as Json;
}

export function samplePages(): Readonly<Record<string, ReportPage>> {
  const [first, second] = [resultDocument('ep-cpu-4096'), resultDocument('ep-cpu-4096-fp8')];
  const parts = sampleTrace();
  const views: Readonly<Record<string, View>> = {
    moe: moeView(sampleMoe()),
    ep: epView(resultDocument('ep-cpu-4096') as unknown as EpBenchReport),
    'ep on GPUs': epCudaView(resultDocument('ep-cuda-4xh200') as unknown as EpCudaBenchReport),
    'ep across hosts': epHostView(resultDocument('ep-cuda-hosts-2xh200') as unknown as EpHostBenchReport),
    collectives: collectivesView(resultDocument('collectives-cpu') as unknown as CollectivesBenchReport),
    p2p: p2pView(resultDocument('p2p-local') as unknown as P2pBenchReport),
    transport: transportView({
      ...(resultDocument('transport-tpt-inline') as unknown as TransportBenchReport),
      pathsOverTime: samplePaths(),
    }),
    trace: traceView('</script><b>t</b>.json', summarize(parts), parts),
    compare: compareView(['a.json', 'b.json'], compareResults(first, second)),
  };
  return Object.fromEntries(Object.entries(views).map(([name, view]) => [name, viewPage(view)]));
}

type Json = Readonly<Record<string, unknown>>;

function samplePaths(): PathsAt[] {
  return [0, 1, 2, 3].map((seconds) => ({
    seconds,
    paths: [1, 2].map((path) => ({
      sentSegments: path * seconds * 1000,
      lostSegments: seconds,
      smoothedRtt: 50 + path * seconds,
    })),
  }));
}

function sampleLoad(skew: number): MoeReport['load'] {
  return {
    experts: Array.from({ length: 128 }, (_, expert) => 10 + ((expert * 37) % 90) * skew),
    ranks: [0, 1, 2, 3].map((rank) => ({
      rank,
      tokens: 100,
      received: 300 + rank * skew,
      receivedFromOthers: 200,
      expertRows: 400 + 100 * rank * skew,
    })),
  };
}

function sampleMoe(): MoeReport {
  const phases = (['dispatch', 'experts', 'combine'] as const).map((name, index) => ({
    name,
    ms: 1 + index,
    rows: 400,
  }));
  const forward = { phases, forwardMs: 7, windowBytes: 4096 };
  const check = { error: 0.001, tolerance: 0.01, passed: true };
  return {
    ...forward,
    load: sampleLoad(1),
    block: {
      path: 'a & b <block>.safetensors',
      tokens: 400,
      hidden: 256,
      experts: 128,
      intermediate: 128,
      topk: 4,
      routing: 'gate',
      normalize: true,
      hasReference: true,
    },
    dispatcher: 'buffer',
    memory: [],
    dtype: 'bf16',
    ranks: 4,
    device: { kind: 'cpu', reason: 'asked for' },
    product: 'CPU kernels',
    repeat: 5,
    redundantExperts: { count: 8, copiedExperts: 6, without: { ...forward, load: sampleLoad(3) }, check },
    check,
  };
}

/** Four ranks of which the third is always late; calls have phases within them. */
export function sampleTrace(): TracePart[] {
  return [0, 1, 2, 3].map((rank): TracePart => {
    const spans: Span[] = Array.from({ length: 20 }, (_, call) => {
      const begin = 1e6 + call * 1000 + (rank === 2 ? 300 : rank * 10);
      const end = 1e6 + call * 1000 + 600;
      return [
        { point: 'call', subject: call, label: 'EpBuffer.dispatch', begin, end },
        { point: 'ep.dispatch.rows', subject: call, label: '', begin: begin + 20, end: end - 50 },
      ] as const;
    }).flat();
    return {
      pid: 100 + rank,
      rank,
      size: 4,
      host: 'a',
      launcher: 1,
      program: 'x',
      gpuClocks: [],
      threads: [{ name: 'main', spans, lost: 0 }],
    };
  });
}
