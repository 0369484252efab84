// What people read of `weftline bench collectives` and `sparse`: the columns of nccl-tests, the peer's times, sums by density.
import { formatBytes } from '../../core/byte-size.ts';
import type { CollectiveRow, CollectivesBenchReport, CollectiveTimes } from '../bench/collectives/collectives-bench.ts';
import type { TuneReport } from '../bench/collectives/tune.ts';
import type { SparseBenchReport, SparseRow } from '../bench/sparse/sparse-bench.ts';
import { tensorBytes } from '../bench/sparse/sparse-bench.ts';
import type { ReportSection } from './html/report-page.ts';
import { bars, curves, scaleFor, table, type View } from './view.ts';
import { counted, fixed, machineLines } from './wording.ts';
import type { AlgorithmRange } from '../../collectives/algorithm-table.ts';

const reducing = new Set(['allReduce', 'reduceScatter', 'reduce']);

export function collectivesView(report: CollectivesBenchReport): View {
  const { workload, peer, rows, ratios, ranksOn } = report;
  const kinds = workload.kinds
    .map((kind) => ({ kind, of: rows.filter((row) => row.kind === kind) }))
    .filter(({ of }) => of.length > 0);
  return {
    title: `Collectives of ${workload.ranks} ranks`,
    heading: [
      `${workload.ranks} ${ranksOn} ranks, median of ${workload.rounds} rounds, the slowest rank's time${peer === undefined ? '' : `; peer in the same rounds: ${peer}`}`,
    ],
    parts: [
      ...kinds.map(({ kind, of }) => [
        `# ${kind}`,
        ...headOf(peer !== undefined),
        ...of.map((row) => lineOf(row, report)),
        kindSection(kind, of),
      ]),
      ratios.map(
        ({ kind, sizes, geometricMean, worst, worstBytes }) =>
          `${kind}, ${sizes === 'small' ? 'up to 4 KiB' : 'above'}: ${geometricMean.toFixed(2)} times as fast as the peer in the geometric mean, at worst ${worst.toFixed(2)} (${formatBytes(worstBytes)})`,
      ),
      ratios.length > 0 &&
        bars(
          {
            title: 'Against the peer',
            note: 'How many times as fast as the peer: geometric mean over sizes and both ways of placing. Small: up to 4 KiB.',
            unit: 'times as fast',
            rules: [{ value: 1, label: 'peer' }],
          },
          ratios.map(({ kind, sizes, geometricMean }) => ({ name: kind, series: sizes, value: geometricMean })),
        ),
    ],
    footing: machineLines(report),
  };
}

const COLUMN = 11;
const LEFT = [12, 12, 8, 8] as const;

function headOf(hasPeer: boolean): string[] {
  const way = cells(['time', 'algbw', 'busbw', '#wrong', ...(hasPeer ? ['peer'] : [])]);
  const units = cells(['(us)', '(GB/s)', '(GB/s)', '', ...(hasPeer ? ['(us)'] : [])]);
  return [
    `#${left(['', '', '', ''])}${'out-of-place'.padStart(way.length)}${'in-place'.padStart(way.length)}`,
    `#${left(['size', 'count', 'type', 'redop'])}${way}${way}`,
    `#${left(['(B)', '(elements)', '', ''])}${units}${units}`,
  ];
}

function lineOf({ kind, bytes, count, outOfPlace, inPlace }: CollectiveRow, of: CollectivesBenchReport): string {
  const op = reducing.has(kind) ? of.workload.op : 'none';
  return ` ${left([String(bytes), String(count), of.workload.dtype, op])}${timesOf(outOfPlace)}${timesOf(inPlace)}`;
}

function timesOf({ microseconds, algbw, busbw, wrong, peerMicroseconds: peer }: CollectiveTimes): string {
  const times = [microseconds, algbw, busbw].map(fixed(2));
  return cells([
    ...times,
    wrong === undefined ? 'N/A' : String(wrong),
    ...(peer === undefined ? [] : [peer.toFixed(2)]),
  ]);
}

function left(texts: readonly string[]): string {
  return texts.map((text, at) => text.padStart(LEFT[at]!)).join('');
}

function cells(texts: readonly string[]): string {
  return texts.map((text) => text.padStart(COLUMN)).join('');
}

function kindSection(kind: string, rows: readonly CollectiveRow[]): ReportSection {
  const line = (name: string, value: (row: CollectiveRow) => number) => ({
    name,
    points: rows.map((row) => [row.bytes, value(row)] as const),
  });
  const hasPeer = rows.some(({ outOfPlace }) => outOfPlace.peerMicroseconds !== undefined);
  return curves(
    {
      title: kind,
      note: 'Bus bandwidth, as nccl-tests count it, by the size of the larger tensor of a rank.',
      x: { label: 'bytes', scale: 'log' },
      y: { label: 'bus bandwidth, GB/s' },
    },
    [
      line('out of place', ({ outOfPlace }) => outOfPlace.busbw),
      line('in place', ({ inPlace }) => inPlace.busbw),
      ...(hasPeer ? [line('peer, out of place', ofPeer)] : []),
    ],
  );
}

/** Of --tune; it has no page. */
export function tuneView({ ranks, hosts, rounds, rows, table: tuned }: TuneReport, file: string): View {
  const names = [
    ...new Set(rows.flatMap(({ microseconds }) => Object.keys(microseconds))),
  ] as (keyof (typeof rows)[number]['microseconds'])[];
  return {
    title: 'Algorithms of reductions',
    parts: [
      `${ranks} CPU ranks on ${counted(hosts, 'host')}, f32, in place, median of ${rounds} rounds, the slowest rank's time`,
      table(rows, [
        { head: '', of: ({ kind }) => kind },
        { head: 'bytes', of: ({ bytes }) => bytes, show: formatBytes },
        ...names.map((name) => ({
          head: `${name}, µs`,
          of: ({ microseconds }: (typeof rows)[number]) => microseconds[name],
          show: fixed(1),
        })),
        { head: 'fastest', of: ({ fastest }) => fastest },
      ]),
      `allReduce: ${describeRanges(tuned.allReduce)}`,
      `reduce: ${describeRanges(tuned.reduce)}`,
      `Written to ${file}; WEFTLINE_COLLECTIVE_TABLE=${file} uses it.`,
    ],
  };
}

/** As a line of the program that this one follows, which calls 2^30 bytes a GB. */
export function sparseRoundLine(bytes: number, microseconds: number): string {
  const perSecond = bytes / (microseconds / 1e6);
  const [decimal, binary] = [perSecond / 1e9, perSecond / 2 ** 30];
  return `tensor size: ${bytes} Bytes; time: ${Math.round(microseconds)} us; alg bw: ${decimal.toFixed(3)} GB/s (${binary.toFixed(3)} GiB/s)`;
}

export function sparseView(report: SparseBenchReport): View {
  const { workload, rows, bitmap, crossing, route, gpu } = report;
  const { workers, aggregators, fanIn, elements, dtype, blockSize, messageSize, slots } = workload;
  const helpers = aggregators === 0 ? 'which aggregate' : `and ${aggregators} aggregators`;
  const tree = fanIn === 0 ? '' : ` in trees of fan-in ${fanIn}`;
  const bytes = tensorBytes(workload);
  const wrong = rows.reduce((sum, row) => sum + row.wrong, 0);
  const share = (blocks: number, of: SparseRow): string => percent(blocks / Math.max(1, of.blocks));
  return {
    title: `Sparse sums of ${workers} workers`,
    heading: [
      `${workers} workers ${gpu === undefined ? '' : `on GPUs (${gpu}) `}${helpers}${tree}, ${elements} ${dtype} (${formatBytes(bytes)}), blocks of ${blockSize}, messages of ${messageSize}, ${slots} slots; by ${route}; median of ${workload.rounds} rounds, the slowest worker's time`,
    ],
    parts: [
      table(rows, [
        { head: 'blocks', of: (row) => share(row.ownBlocks, row) },
        { head: 'of sum', of: (row) => share(row.sumBlocks, row) },
        { head: 'sent', of: ({ sentBytes }) => Math.round(sentBytes), show: formatBytes },
        {
          head: '/ theory',
          of: (row) => against(row.sentBytes, row.sentTheory),
          show: fixed(3),
          note: 'how many times the bytes of the blocks alone',
        },
        { head: 'received', of: ({ receivedBytes }) => Math.round(receivedBytes), show: formatBytes },
        { head: '/ theory', of: (row) => against(row.receivedBytes, row.receivedTheory), show: fixed(3) },
        { head: 'messages', of: ({ messages }) => messages, show: fixed(0) },
        { head: 'us', of: ({ sparseMicroseconds }) => sparseMicroseconds, show: fixed(0) },
        { head: 'GB/s', of: ({ sparseMicroseconds }) => bytes / sparseMicroseconds / 1000, show: fixed(2) },
        { head: 'dense us', of: ({ denseMicroseconds }) => denseMicroseconds, show: fixed(0) },
        { head: 'faster', of: (row) => row.denseMicroseconds / row.sparseMicroseconds, show: fixed(2) },
      ]),
      crossing !== undefined && `dense is faster from ${percent(crossing)} of blocks on`,
      `bitmap kernel: ${bitmap.bitmap.toFixed(1)} GB/s, ${(bitmap.bitmap / bitmap.read).toFixed(2)} of a plain read (${bitmap.read.toFixed(1)} GB/s)`,
      byDensity(rows, 'Time by density', 'Of the slowest worker.', 'µs', [
        ['sparse', ({ sparseMicroseconds }) => sparseMicroseconds],
        ['dense', ({ denseMicroseconds }) => denseMicroseconds],
      ]),
      byDensity(rows, 'Bytes by density', 'Of a worker and call. Theory: blocks alone, which lie at random.', 'bytes', [
        ['sent', ({ sentBytes }) => sentBytes],
        ['sent, theory', ({ sentTheory }) => sentTheory],
        ['received', ({ receivedBytes }) => receivedBytes],
        ['received, theory', ({ receivedTheory }) => receivedTheory],
      ]),
    ],
    footing: [
      ...machineLines(report),
      wrong === 0 ? 'result check: ok' : `result check: error, ${wrong} elements differ`,
    ],
  };
}

function byDensity(
  rows: readonly SparseRow[],
  title: string,
  note: string,
  ...[unit, of]: [string, readonly (readonly [name: string, value: (row: SparseRow) => number])[]]
): ReportSection {
  const x = { label: '% of blocks', scale: scaleFor(rows.map(({ density }) => density)) };
  const y = { label: unit, scale: scaleFor(rows.flatMap((row) => of.map(([, value]) => value(row)))) };
  return curves(
    { title, note, x, y },
    of.map(([name, value]) => ({ name, points: rows.map((row) => [row.density * 100, value(row)] as const) })),
  );
}

function percent(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}

function ofPeer({ outOfPlace: { busbw, microseconds, peerMicroseconds = 0 } }: CollectiveRow): number {
  return peerMicroseconds === 0 ? 0 : (busbw * microseconds) / peerMicroseconds;
}

function describeRanges(ranges: readonly AlgorithmRange[]): string {
  return ranges
    .map(({ upToBytes, algorithm }) => (upToBytes === undefined ? algorithm : `${algorithm} up to ${upToBytes} bytes`))
    .join(', then ');
}

function against(measured: number, theory: number) {
  return theory === 0 ? undefined : measured / theory;
}
