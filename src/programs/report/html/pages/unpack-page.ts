// The report pages of `weftline bench unpack`: stages, kernels against bare copies, and the whole road.
import { formatBytes } from '../../../../core/byte-size.ts';
import type { KernelRate } from '../../../bench/unpack/cuda/kernel-rates.ts';
import type { RoadReport } from '../../../bench/unpack/road/road-client.ts';
import type { UnpackBenchReport } from '../../../bench/unpack/unpack-results.ts';
import { describeMachine, describeRounds } from '../../bench-heading.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { summarySection } from './parts.ts';

export function unpackPage(report: UnpackBenchReport): ReportPage {
  const { stages, components, kernels, workload, device } = report;
  const named = stages.map((stage) => ({ ...stage, name: `${stage.name}, ${formatBytes(stage.fragmentBytes)}` }));
  return {
    title: `Scattered fragments to their places on ${device}`,
    about: [
      `${formatBytes(workload.totalBytes)} in chunks of ${formatBytes(workload.chunkBytes)}; ${describeRounds(report)}`,
      describeMachine(report.machine),
    ],
    sections: [
      summarySection(
        named.map(({ name, microseconds }) => ({ name, summary: microseconds })),
        { title: 'Time of each stage', note: 'From the first call until the last byte is in its place.', unit: 'µs' },
      ),
      summarySection(
        named.map(({ name, timesCopies }) => ({ name, summary: timesCopies })),
        {
          title: 'Against copies one by one',
          note: 'How many times faster than copies one by one, in the same rounds.',
          unit: 'times as fast',
          rules: [{ value: 1, label: 'copies' }],
        },
      ),
      ...(components.length === 0
        ? []
        : [
            summarySection(
              components.map(({ name, microseconds }) => ({ name, summary: microseconds })),
              { title: 'Parts of a launch', note: "Each by itself, on the host's clock.", unit: 'µs' },
            ),
          ]),
      ...(kernels.length === 0 ? [] : [kernelSection(kernels)]),
    ],
  };
}

function kernelSection(kernels: readonly KernelRate[]): ReportSection {
  return {
    title: 'Kernels by length of fragments',
    note: 'Payload, by events of the device, median; the bare copy moves the same fragments.',
    chart: {
      kind: 'lines',
      x: { label: 'bytes of a fragment', scale: 'log' },
      y: { label: 'GB/s' },
      lines: [...new Set(kernels.map(nameOf))].map((name) => ({
        name,
        points: kernels
          .filter((kernel) => nameOf(kernel) === name)
          .map(({ fragmentBytes, gigabytesPerSecond }) => [fragmentBytes, gigabytesPerSecond.median] as const),
      })),
    },
    table: {
      head: ['kernel', 'fragment, bytes', 'GB/s', 'ratio to the bare copy'],
      rows: kernels.map((kernel) => [
        nameOf(kernel),
        kernel.fragmentBytes,
        kernel.gigabytesPerSecond.median,
        kernel.ratioToBareCopy?.median ?? '',
      ]),
    },
  };
}

function nameOf({ name, from, numSms }: KernelRate): string {
  return `${name} from ${from}, ${numSms} SMs`;
}

export function roadPage({ device, mode, plan, microseconds, gigabytesPerSecond, machine }: RoadReport): ReportPage {
  const { chunks, chunkBytes, fragmentBytes } = plan;
  const shape = `${chunks} chunks of ${formatBytes(chunkBytes)} in pages of ${formatBytes(fragmentBytes)}`;
  return {
    title: `Pages from another process to ${device} by ${mode}`,
    about: [`${shape}; ${describeRounds(plan)}`, describeMachine(machine)],
    sections: [
      summarySection([{ name: `${gigabytesPerSecond.toFixed(2)} GB/s`, summary: microseconds }], {
        title: 'Time of all chunks',
        note: 'Of an iteration, contents verified; median, p25 to p75.',
        unit: 'µs',
      }),
    ],
  };
}
