// The report page of `weftline bench ep` on GPUs: how time and bandwidth go with the number of SMs.
import type { CudaCaseResult, EpCudaBenchReport } from '../../../bench/ep/cuda/ep-results.ts';
import { describeMachine, describeRounds, describeWorkload } from '../../bench-heading.ts';
import { describeGpus } from '../../describe-gpus.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { summarySection } from './parts.ts';

export function epCudaPage(report: EpCudaBenchReport): ReportPage {
  const { runs, workload } = report;
  const all = runs.flatMap(({ numSms, cases }) => cases.map((one) => ({ ...one, name: `${one.name}, ${numSms} SMs` })));
  return {
    title: 'Dispatch and combine on GPUs',
    about: [
      `${describeWorkload(workload)}; ${describeRounds(report)}`,
      describeGpus(report.gpuMachine),
      describeMachine(report.machine),
    ],
    sections: [
      ...scalingSections(report, {
        title: 'Bandwidth by SMs',
        unit: 'GB/s per rank',
        note: 'Every received row counted, median. The cases named copy are the ceilings: kernels that move the same rows, with as many SMs.',
        value: ({ logicalGBpsPerRank }) => logicalGBpsPerRank.median,
      }),
      ...scalingSections(report, {
        title: 'Time by SMs',
        unit: 'µs',
        note: 'Between two events on the device around a call, of the slowest rank, median.',
        value: ({ microseconds }) => microseconds.median,
      }),
      summarySection(
        all.flatMap(({ name, ratioToCopy }) => (ratioToCopy === undefined ? [] : [{ name, summary: ratioToCopy }])),
        {
          title: 'Ratio to bare copies',
          note: 'Time of the bare copies of the same rows over that of the case, in the same iteration. 1: as fast.',
          unit: 'ratio',
          rules: [{ value: 1, label: 'bare copies' }],
        },
      ),
    ],
  };
}

interface Scaling {
  readonly title: string;
  readonly unit: string;
  readonly note: string;
  readonly value: (of: CudaCaseResult) => number;
}

/** One for each kind of rows, and for the layer: more lines than that are told apart by nobody. */
function scalingSections({ runs }: EpCudaBenchReport, scaling: Scaling): ReportSection[] {
  const names = runs[0]?.cases.map(({ name }) => name) ?? [];
  const groups = [...new Set(names.map(groupOf))];
  return groups.map((group) =>
    scalingSection(
      runs,
      names.filter((name) => groupOf(name) === group),
      { ...scaling, title: `${scaling.title}, ${group}` },
    ),
  );
}

function groupOf(name: string): string {
  if (name.includes('layer')) return 'layer';
  return name.includes('fp8') ? 'fp8' : 'bf16';
}

function scalingSection(
  runs: EpCudaBenchReport['runs'],
  names: readonly string[],
  { title, unit, note, value }: Scaling,
): ReportSection {
  const at = (run: (typeof runs)[number], name: string): number => {
    const found = run.cases.find((one) => one.name === name);
    return found === undefined ? Number.NaN : value(found);
  };
  return {
    title,
    note,
    chart: {
      kind: 'lines',
      x: { label: 'SMs' },
      y: { label: unit },
      lines: names.map((name) => ({ name, points: runs.map((run) => [run.numSms, at(run, name)] as const) })),
    },
    table: {
      head: ['case', ...runs.map(({ numSms }) => `${numSms} SMs`)],
      rows: names.map((name) => [name, ...runs.map((run) => at(run, name))]),
    },
  };
}
