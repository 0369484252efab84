// What `weftline bench transport` prints at its end.
import Table from 'cli-table3';
import { placementChanged } from '../bench/placement.ts';
import type { Summary } from '../bench/statistics.ts';
import { latencyQuantiles } from '../bench/transport/transport-phases.ts';
import type { PairsBenchReport } from '../bench/transport/transport-pairs.ts';
import type { RankBenchReport } from '../bench/transport/transport-ranks.ts';
import type {
  Comparison,
  LatencyResult,
  Quantiles,
  ThroughputResult,
  TransportBenchReport,
} from '../bench/transport/transport-results.ts';

export function transportBenchReport(report: TransportBenchReport): string {
  const { intact, throughput, comparison, latency, idle } = report;
  const lines: string[] = [];
  if (intact !== undefined) lines.push(`${intact.messages} messages of ${intact.bytes} bytes arrived intact`);
  if (throughput !== undefined) lines.push(...throughputLines(report, throughput));
  if (comparison !== undefined) lines.push(...comparisonLines(comparison));
  if (latency !== undefined) lines.push(...latencyLines(latency));
  if (idle !== undefined) {
    lines.push(`idle: client ${percent(idle.client)}, server ${percent(idle.server)} of one core`);
  }
  const isMeasured = throughput !== undefined || latency !== undefined;
  if (isMeasured && placementChanged(report.placement.before, report.placement.after)) {
    lines.push('The machine changed while it ran (other load, or its processors moved): run again before comparing.');
  }
  return lines.map((line) => `${line}\n`).join('');
}

export function rankBenchReport({ workload, ranks, totalGbps }: RankBenchReport): string {
  const name = workload.perftype === 'incast' ? 'Incast' : 'Permutation';
  const lines = ranks.map(
    ({ rank, txGbps, rxGbps, messages, sendsTo, times }) =>
      `Rank ${rank} (${name}): TX Tput: ${txGbps.toFixed(4)} Gbps, RX Tput: ${rxGbps.toFixed(4)} Gbps, messages: ${messages}` +
      (sendsTo.length === 0 ? '' : `, to rank ${sendsTo.join(', ')}; ${showQuantiles(times)}`),
  );
  return `${[...lines, `all ranks: ${totalGbps.toFixed(2)} Gbps arrived`].join('\n')}\n`;
}

export function pairsBenchReport(report: PairsBenchReport): string {
  const { engines, enginesGbps, processesGbps, ratioToProcesses, laneBytes } = report;
  const total = laneBytes.reduce((sum, bytes) => sum + bytes, 0);
  const lines = [
    `${engines} engines in one pair of processes: ${middle(enginesGbps).toFixed(2)} Gbps, ${report.enginesCpuSecondsPerGB.toFixed(3)} s of CPU per GB`,
    `${engines} pairs of processes with one engine each: ${middle(processesGbps).toFixed(2)} Gbps, ${report.processesCpuSecondsPerGB.toFixed(3)} s of CPU per GB`,
    `slowest of these pairs: ${middle(report.slowestProcessGbps).toFixed(2)} Gbps`,
    `ratio: ${ratioToProcesses.median.toFixed(2)} (${ratioToProcesses.p25.toFixed(2)} to ${ratioToProcesses.p75.toFixed(2)})`,
    `shares of the lanes: ${laneBytes.map((bytes) => percent(bytes / total)).join(', ')}`,
  ];
  return `${lines.join('\n')}\n`;
}

function throughputLines({ workload }: TransportBenchReport, result: ThroughputResult): string[] {
  const back = result.receivedGbps === undefined ? '' : `, back ${middle(result.receivedGbps).toFixed(2)} Gbps`;
  return [
    `goodput: ${middle(result.gbps).toFixed(2)} Gbps${back} (${result.messages} messages of ${workload.msize} bytes)`,
    `request: ${showQuantiles(result.requestMicroseconds)}`,
    `CPU: sender ${result.senderCpuSecondsPerGB.toFixed(3)} s/GB, receiver ${result.receiverCpuSecondsPerGB.toFixed(3)} s/GB`,
  ];
}

function comparisonLines({ bareGbps, tcpGbps, ratioToBare, ratioToTcp }: Comparison): string[] {
  const table = new Table({
    head: ['beside it, in turn', 'Gbps', 'ratio to it', '(p25 to p75)'],
    colAligns: ['left', 'right', 'right', 'left'],
    chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
    style: { head: [], border: [] },
  });
  const row = (name: string, gbps: readonly number[], ratio: Summary): void => {
    table.push([
      name,
      middle(gbps).toFixed(2),
      ratio.median.toFixed(2),
      `(${ratio.p25.toFixed(2)} to ${ratio.p75.toFixed(2)})`,
    ]);
  };
  row('bare UDP', bareGbps, ratioToBare);
  if (ratioToTcp !== undefined) row('TCP, iperf3 -l 1M', tcpGbps, ratioToTcp);
  const lines = [table.toString()];
  if (ratioToTcp === undefined) lines.push('TCP was not measured: iperf3 is not installed on both sides');
  return lines;
}

function latencyLines({ transport, bareRoundTrip, ratioOfMedians }: LatencyResult): string[] {
  const lines = [`latency: ${showQuantiles(transport)}`];
  if (bareRoundTrip !== undefined && ratioOfMedians !== undefined) {
    lines.push(`bare UDP round trip: ${showQuantiles(bareRoundTrip)}`);
    lines.push(`ratio of medians: ${ratioOfMedians.toFixed(2)}`);
  }
  return lines;
}

function showQuantiles(values: Quantiles): string {
  return `${latencyQuantiles.map((name, index) => `${name} ${(values[index] ?? 0).toFixed(1)}`).join(', ')} µs`;
}

function middle(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(2)} %`;
}
