// What people read of `weftline bench p2p`: lines in the words of UCCL's benchmark and of nixlbench, then ceilings and latencies.
import { median } from '../../core/quantile.ts';
import type { P2pBenchReport } from '../bench/p2p/p2p-bench.ts';
import type { BlockResult, SizeResult } from '../bench/p2p/p2p-phases.ts';
import type { P2pWorkload } from '../bench/p2p/p2p-workload.ts';
import { latencyQuantiles } from '../bench/transport/transport-phases.ts';
import { curves, distribution, ratioColumn, table, type View } from './view.ts';
import { changeLines, counted, fixed, machineLines } from './wording.ts';

export type P2pRole = 'Server' | 'Client';

const ceilingNames = {
  memcpy: 'memcpy',
  transport: 'bench transport, tpt',
  ucx_perftest: 'ucx_perftest',
  host: 'host memory, same path',
} as const;

/** What the client has decided, on both sides. */
export function p2pWorkloadLines({ sizes, iterations, mode }: P2pWorkload, device: string, gpuIndex: number): string[] {
  return [
    `Message sizes: ${sizes.map(sizeText).join(', ')}`,
    `Device: ${device} | Local GPU idx: ${gpuIndex} | Iterations: ${iterations} | Mode: ${mode}`,
  ];
}

/** What a server says of messages that it has no part in. */
export function p2pOneSidedLine({ bytes, iterations }: { bytes: number; iterations: number }): string {
  return `[Server] ${sizeText(bytes).padStart(8)} : ${iterations} messages, moved and measured by the client`;
}

export function p2pSizeLine(role: P2pRole, { bytes, gbps, gigabytesPerSecond }: SizeResult): string {
  const [bits, whole] = [gbps, gigabytesPerSecond].map((value) => value.toFixed(2).padStart(6));
  return `[${role}] ${sizeText(bytes).padStart(8)} : ${bits} Gbps | ${whole} GB/s`;
}

const blockColumns: readonly (readonly [head: string, width: number, cell: (of: BlockResult) => string])[] = [
  ['Block Size (B)', 20, ({ blockBytes }) => String(blockBytes)],
  ['Batch Size', 15, ({ batch }) => String(batch)],
  ['B/W (GB/Sec)', 15, ({ gigabytesPerSecond }) => gigabytesPerSecond.toFixed(6)],
  ['Avg Lat. (us)', 15, ({ latencyMicroseconds }) => latencyMicroseconds.toFixed(1)],
  ['Avg Prep (us)', 15, ({ prepareMicroseconds }) => prepareMicroseconds.average.toFixed(1)],
  ['P99 Prep (us)', 15, ({ prepareMicroseconds }) => prepareMicroseconds.p99.toFixed(1)],
  ['Avg Post (us)', 15, ({ postMicroseconds }) => postMicroseconds.average.toFixed(1)],
  ['P99 Post (us)', 15, ({ postMicroseconds }) => postMicroseconds.p99.toFixed(1)],
  ['Avg Tx (us)', 15, ({ transferMicroseconds }) => transferMicroseconds.average.toFixed(1)],
  ['P99 Tx (us)', 15, ({ transferMicroseconds }) => transferMicroseconds.p99.toFixed(1)],
];

/** The columns of nixlbench; their heads without a result. */
export function p2pBlockLine(of?: BlockResult): string {
  const line = blockColumns.map(([head, width, cell]) => (of === undefined ? head : cell(of)).padEnd(width)).join('');
  return of === undefined ? line : line.trimEnd();
}

/** Which path it got, and why not another. */
export function p2pPathLine({ backend, verdicts }: Pick<P2pBenchReport, 'backend' | 'verdicts'>): string {
  const others = verdicts.flatMap(({ backend: other, why }) => (why === undefined ? [] : [`${other}: ${why}`]));
  return `Path: ${backend}${others.length === 0 ? '' : ` (${others.join('; ')})`}`;
}

/** What follows the lines of sizes and blocks, and the page of all. */
export function p2pView(report: P2pBenchReport): View {
  const { workload, device, backend, sizes, blocks = [], pingMicroseconds, pingCeiling, descriptors, method } = report;
  const ceilings = (report.ceilings ?? []).map((one) => ({ ...one, name: ceilingNames[one.ceiling] }));
  return {
    title: `Memory of one process to memory of another, by ${backend}`,
    about: [
      `${workload.mode}, memory of the ${device}, ${workload.inflight} under way`,
      p2pPathLine(report),
      ...machineLines(report),
    ],
    parts: [
      descriptors !== undefined && descriptorsLine(descriptors),
      pingMicroseconds !== undefined &&
        `round trip of 256 B and a notification: ${latencyQuantiles.map((name, at) => `${name} ${(pingMicroseconds[at] ?? 0).toFixed(2)}`).join(', ')} µs`,
      sizes.length > 0 && sizeSection(report),
      ceilings.length > 0
        ? table(
            ceilings,
            [
              { head: 'beside it, in turn', of: ({ name }) => name },
              { head: 'size', of: ({ bytes }) => bytes, show: sizeText },
              { head: 'GB/s of it', of: (one) => median(one.ceilings), show: fixed(2) },
              { head: `GB/s of ${backend}`, of: ({ own }) => median(own), show: fixed(2) },
              { ...ratioColumn('the ceiling of the path'), of: ({ ratio }) => ratio },
            ],
            ({ ceiling, bytes }) => `${ceiling}, ${bytes.toLocaleString('en')} B`,
          )
        : [],
      (report.notCompared ?? []).map(({ bytes, why }) => `not compared: ${sizeText(bytes)}, ${why}`),
      pingCeiling !== undefined &&
        `round trip beside ${ceilingNames[pingCeiling.ceiling]}, in turn: ${median(pingCeiling.ceilings).toFixed(2)} µs of it, ${median(pingCeiling.own).toFixed(2)} µs of ${backend}, ratio ${pingCeiling.ratio.median.toFixed(2)} (${pingCeiling.ratio.p25.toFixed(2)} to ${pingCeiling.ratio.p75.toFixed(2)})`,
      changeLines(report.placement),
      blocks.length > 0 && blockSection(blocks, method.block),
      pingMicroseconds !== undefined &&
        distribution({ title: 'Latency of a round trip', note: method.ping }, latencyQuantiles, [
          { name: backend, values: pingMicroseconds },
        ]),
    ],
  };
}

function sizeSection({ sizes, ceilings = [], backend, method }: P2pBenchReport) {
  const kinds = [...new Set(ceilings.map(({ ceiling }) => ceiling))];
  return curves(
    { title: 'Bandwidth by size', note: method.size, x: { label: 'bytes', scale: 'log' }, y: { label: 'GB/s' } },
    [
      { name: backend, points: sizes.map(({ bytes, gigabytesPerSecond }) => [bytes, gigabytesPerSecond]) },
      ...kinds.map((kind) => ({
        name: kind,
        points: ceilings
          .filter(({ ceiling }) => ceiling === kind)
          .map(({ bytes, ceilings: found }) => [bytes, median(found)] as const),
      })),
    ],
  );
}

function blockSection(blocks: readonly BlockResult[], note: string) {
  const batches = [...new Set(blocks.map(({ batch }) => batch))];
  return curves(
    {
      title: 'Bandwidth by block size and batch',
      note,
      x: { label: 'bytes of a block', scale: 'log' },
      y: { label: 'GB/s' },
    },
    batches.map((batch) => ({
      name: counted(batch, 'block'),
      points: blocks
        .filter((one) => one.batch === batch)
        .map(({ blockBytes, gigabytesPerSecond }) => [blockBytes, gigabytesPerSecond] as const),
    })),
    {
      head: blockColumns.map(([head]) => head),
      rows: blocks.map((block) => blockColumns.map(([, , cell]) => Number(cell(block)))),
    },
  );
}

function descriptorsLine({
  count,
  parts,
  residentBytes,
  ...times
}: NonNullable<P2pBenchReport['descriptors']>): string {
  const { listMilliseconds: list, prepareMilliseconds, postMilliseconds, moveMilliseconds } = times;
  const texts = [list, prepareMilliseconds, postMilliseconds, moveMilliseconds].map((time) => `${time.toFixed(1)} ms`);
  return `${count} descriptors in ${parts} parts: lists ${texts[0]}, prepare ${texts[1]}, post ${texts[2]}, move ${texts[3]}; ${(residentBytes / 1e6).toFixed(0)} MB`;
}

/** "256 B", "1.0 KB": steps of 1024, as UCCL's benchmark writes them; other reports say KiB. */
function sizeText(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1 << 20) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / (1 << 20)).toFixed(1)} MB`;
}
