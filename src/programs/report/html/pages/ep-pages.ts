// The report pages of `weftline bench ep`: CPU ranks of one host, ranks across hosts, low latency.
import type { EpBenchReport } from '../../../bench/ep/ep-results.ts';
import type { EpHostBenchReport } from '../../../bench/ep/hosts/host-results.ts';
import { phaseNames } from '../../../bench/ep/hosts/phase-times.ts';
import type { CudaLowLatencyBenchReport } from '../../../bench/ep/low-latency/cuda-low-latency-results.ts';
import type { LowLatencyBenchReport } from '../../../bench/ep/low-latency/low-latency-results.ts';
import { describeMachine, describeRounds, describeWorkload, machineLines } from '../../bench-heading.ts';
import { describeGpus } from '../../describe-gpus.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { scaleFor, summarySection } from './parts.ts';

export function epPage(report: EpBenchReport): ReportPage {
  const { cases, workload } = report;
  const [ceiling, ...calls] = cases;
  return {
    title: 'Dispatch and combine against copying the same rows',
    about: [
      `${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`,
      ...machineLines(report),
    ],
    sections: [
      summarySection(
        cases.map(({ name, logicalGBps }) => ({ name, summary: logicalGBps })),
        {
          title: 'Bandwidth against the ceiling',
          note: 'Of all ranks together, every received row counted; median, p25 to p75. The ceiling: the same processes copy the same rows, in the same iterations.',
          unit: 'GB/s',
          ...(ceiling === undefined ? {} : { rules: [{ value: ceiling.logicalGBps.median, label: 'ceiling' }] }),
        },
      ),
      summarySection(
        calls.map(({ name, ratioToCeiling }) => ({ name, summary: ratioToCeiling })),
        {
          title: 'Ratio to the ceiling',
          note: 'Bandwidth over that of the ceiling in the same iteration. 1: as fast as bare copies.',
          unit: 'ratio',
          rules: [{ value: 1, label: 'ceiling' }],
        },
      ),
      summarySection(
        cases.map(({ name, microseconds }) => ({ name, summary: microseconds })),
        { title: 'Time of a call', note: 'From the begin of the first rank to the end of the last one.', unit: 'µs' },
      ),
    ],
  };
}

export function epHostPage(report: EpHostBenchReport): ReportPage {
  const { cases, hosts, carriers, workload, pairs } = report;
  const calls = cases.filter(({ ratioToCarrier }) => ratioToCarrier !== undefined);
  return {
    title: `Dispatch and combine across ${hosts.length} hosts`,
    about: [
      `${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`,
      `hosts of ${hosts.map(({ length }) => length).join(', ')} ranks; ${carriers.join(', ')}`,
      ...machineLines(report),
    ],
    sections: [
      summarySection(
        cases.map(({ name, networkGBps }) => ({ name, summary: networkGBps })),
        {
          title: 'Bandwidth between hosts',
          note: 'Of all ranks together, each row counted once per (token, host). The carrier sends the same bytes in large puts.',
          unit: 'GB/s',
        },
      ),
      summarySection(
        calls.map(({ name, ratioToCarrier }) => ({ name, summary: ratioToCarrier! })),
        {
          title: 'Ratio to the carrier',
          note: 'Bandwidth of the call over that of the carrier alone, in the same iteration.',
          unit: 'ratio',
          rules: [{ value: 1, label: 'carrier' }],
        },
      ),
      hostPhaseSection(calls),
      summarySection(
        cases.map(({ name, microseconds }) => ({ name, summary: microseconds })),
        { title: 'Time of a call', note: 'Of the slowest rank, by its own clock.', unit: 'µs' },
      ),
      percentileSection('Dispatch and combine in turn', pairs),
    ],
  };
}

function hostPhaseSection(calls: EpHostBenchReport['cases']): ReportSection {
  const shown = phaseNames.filter((phase) => calls.some(({ phases }) => phases[phase] !== undefined));
  return {
    title: 'Where the time goes',
    note: 'Time of the thread that calls, mean of the ranks, median. Network contains the phases from queue to own sums; what is left of it is posting and waiting.',
    chart: {
      kind: 'bars',
      value: { label: 'µs' },
      bars: calls.flatMap(({ name, phases }) => shown.map((series) => ({ name, series, value: phases[series] ?? 0 }))),
    },
    table: {
      head: ['case', ...shown],
      rows: calls.map(({ name, phases }) => [name, ...shown.map((phase) => phases[phase] ?? '')]),
    },
  };
}

export function lowLatencyPage(report: LowLatencyBenchReport | CudaLowLatencyBenchReport): ReportPage {
  const { cases, workload, variant } = report;
  const machine =
    'gpuMachine' in report ? [describeGpus(report.gpuMachine), describeMachine(report.machine)] : machineLines(report);
  const compared = cases.flatMap((one) =>
    'ratioToCopy' in one && one.ratioToCopy !== undefined ? [{ name: one.name, ratio: one.ratioToCopy }] : [],
  );
  const named = cases.map(({ name, dtype, microseconds }) => ({
    name: name.includes(dtype) ? name : `${name}, ${dtype}`,
    ...microseconds,
  }));
  return {
    title: 'Low-latency dispatch and combine',
    about: [`${describeWorkload(workload)}; ${variant}; ${describeRounds(report)}`, ...machine],
    sections: [
      percentileSection('Latency of a call', named),
      ...(compared.length === 0
        ? []
        : [
            {
              title: 'Ratio to bare copies',
              note: 'Time of the bare copy of the rows over that of the call, in the same iterations. 1: as fast as the copy.',
              chart: {
                kind: 'bars' as const,
                value: { label: 'ratio' },
                bars: compared.map(({ name, ratio }) => ({ name, series: 'ratio', value: ratio })),
                rules: [{ value: 1, label: 'bare copy' }],
              },
              table: { head: ['call', 'ratio'], rows: compared.map(({ name, ratio }) => [name, ratio]) },
            },
          ]),
    ],
  };
}

interface Percentile {
  readonly name: string;
  readonly p50: number;
  readonly p99: number;
}

function percentileSection(title: string, of: readonly Percentile[]): ReportSection {
  return {
    title,
    note: 'Of the slowest rank: the dot is the median, the bar goes to the 99th percentile.',
    chart: {
      kind: 'ranges',
      value: { label: 'µs', scale: scaleFor(of.flatMap(({ p50, p99 }) => [p50, p99])) },
      ranges: of.map(({ name, p50, p99 }) => ({ name, low: p50, middle: p50, high: p99 })),
    },
    table: { head: ['call', 'p50, µs', 'p99, µs'], rows: of.map(({ name, p50, p99 }) => [name, p50, p99]) },
  };
}
