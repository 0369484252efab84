// What `weftline bench p2p` prints.
import Table from 'cli-table3';
import type { BlockResult, DescriptorsResult, P2pBenchReport, SizeResult } from '../bench/p2p/p2p-results.ts';
import { placementChanged } from '../bench/placement.ts';
import type { P2pWorkload } from '../bench/p2p/p2p-workload.ts';
import { latencyQuantiles } from '../bench/transport/transport-phases.ts';

export type P2pRole = 'server' | 'client';

const ceilingNames = {
  memcpy: 'memcpy',
  transport: 'bench transport, tpt',
  ucx_perftest: 'ucx_perftest',
  host: 'host memory, same path',
} as const;

/** As UCCL's benchmark prints it. */
export function p2pHeading(role: P2pRole): string {
  return `weftline P2P Benchmark — role: ${role}`;
}

/** What the client has decided, on both sides. */
export function p2pWorkloadLines({ sizes, iterations, mode }: P2pWorkload, device: string, gpuIndex: number): string[] {
  return [
    `Message sizes: ${sizes.map(sizeText).join(', ')}`,
    `Device: ${device} | Local GPU idx: ${gpuIndex} | Iterations: ${iterations} | Mode: ${mode}`,
  ];
}

/** What a server says of messages that it has no part in. */
export function p2pOneSidedLine({
  bytes,
  iterations,
}: {
  readonly bytes: number;
  readonly iterations: number;
}): string {
  return `[Server] ${sizeText(bytes).padStart(8)} : ${iterations} messages, moved and measured by the client`;
}

export function p2pSizeLine(role: P2pRole, { bytes, gbps, gigabytesPerSecond }: SizeResult): string {
  return `[${roleText(role)}] ${sizeText(bytes).padStart(8)} : ${twoDigits(gbps)} Gbps | ${twoDigits(gigabytesPerSecond)} GB/s`;
}

export function roleText(role: P2pRole): string {
  return role === 'server' ? 'Server' : 'Client';
}

const blockColumns = [
  ['Block Size (B)', 20],
  ['Batch Size', 15],
  ['B/W (GB/Sec)', 15],
  ['Avg Lat. (us)', 15],
  ['Avg Prep (us)', 15],
  ['P99 Prep (us)', 15],
  ['Avg Post (us)', 15],
  ['P99 Post (us)', 15],
  ['Avg Tx (us)', 15],
  ['P99 Tx (us)', 15],
] as const;

/** The columns of nixlbench. */
export function p2pBlockHeading(): string {
  return blockColumns.map(([name, width]) => name.padEnd(width)).join('');
}

export function p2pBlockLine(result: BlockResult): string {
  const { prepareMicroseconds: prepare, postMicroseconds: post, transferMicroseconds: transfer } = result;
  const times = [result.latencyMicroseconds, prepare.average, prepare.p99, post.average, post.p99, transfer.average];
  const cells = [
    String(result.blockBytes),
    String(result.batch),
    result.gigabytesPerSecond.toFixed(6),
    ...[...times, transfer.p99].map((time) => time.toFixed(1)),
  ];
  return cells
    .map((cell, index) => cell.padEnd(blockColumns[index]?.[1] ?? 0))
    .join('')
    .trimEnd();
}

/** What follows the lines of the sizes. */
export function p2pBenchReport(report: P2pBenchReport): string {
  const { pingMicroseconds, ceilings = [], notCompared = [], pingCeiling, descriptors } = report;
  const lines: string[] = [];
  if (descriptors !== undefined) lines.push(descriptorsLine(descriptors));
  if (pingMicroseconds !== undefined) {
    const times = latencyQuantiles.map((name, index) => `${name} ${(pingMicroseconds[index] ?? 0).toFixed(2)}`);
    lines.push(`round trip of 256 B and a notification: ${times.join(', ')} µs`);
  }
  if (ceilings.length > 0) {
    const table = new Table({
      head: ['beside it, in turn', 'size', 'GB/s of it', `GB/s of ${report.backend}`, 'ratio', '(p25 to p75)'],
      colAligns: ['left', 'right', 'right', 'right', 'right', 'left'],
      chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
      style: { head: [], border: [] },
    });
    for (const { bytes, ceiling, own, ceilings: found, ratio } of ceilings) {
      table.push([
        ceilingNames[ceiling],
        sizeText(bytes),
        middle(found).toFixed(2),
        middle(own).toFixed(2),
        ratio.median.toFixed(2),
        `(${ratio.p25.toFixed(2)} to ${ratio.p75.toFixed(2)})`,
      ]);
    }
    lines.push(table.toString());
  }
  for (const { bytes, why } of notCompared) lines.push(`not compared: ${sizeText(bytes)}, ${why}`);
  if (pingCeiling !== undefined) {
    const { own, ceilings: found, ratio } = pingCeiling;
    lines.push(
      `round trip beside ${ceilingNames[pingCeiling.ceiling]}, in turn: ${middle(found).toFixed(2)} µs of it, ` +
        `${middle(own).toFixed(2)} µs of ${report.backend}, ratio ${ratio.median.toFixed(2)} ` +
        `(${ratio.p25.toFixed(2)} to ${ratio.p75.toFixed(2)})`,
    );
  }
  if (placementChanged(report.placement.before, report.placement.after)) {
    lines.push('The machine changed while it ran (other load, or its processors moved): run again before comparing.');
  }
  return lines.map((line) => `${line}\n`).join('');
}

function descriptorsLine(result: DescriptorsResult): string {
  const { count, parts, listMilliseconds, prepareMilliseconds, postMilliseconds, moveMilliseconds } = result;
  const times = [
    ['lists', listMilliseconds],
    ['prepare', prepareMilliseconds],
    ['post', postMilliseconds],
    ['move', moveMilliseconds],
  ] as const;
  const text = times.map(([name, time]) => `${name} ${time.toFixed(1)} ms`).join(', ');
  return `${count} descriptors in ${parts} parts: ${text}; ${(result.residentBytes / 1e6).toFixed(0)} MB`;
}

/** Which path it got, and why not another. */
export function p2pPathLines({ backend, verdicts }: Pick<P2pBenchReport, 'backend' | 'verdicts'>): string[] {
  const others = verdicts.flatMap(({ backend: other, why }) => (why === undefined ? [] : [`${other}: ${why}`]));
  return [`Path: ${backend}${others.length === 0 ? '' : ` (${others.join('; ')})`}`];
}

/** "256 B", "1.0 KB": steps of 1024, as UCCL's benchmark writes them; other reports say KiB. */
function sizeText(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1 << 20) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / (1 << 20)).toFixed(1)} MB`;
}

function twoDigits(value: number): string {
  return value.toFixed(2).padStart(6);
}

function middle(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
