// What people read of `weftline bench unpack`: stages, parts of a launch, kernels against bare copies, and the whole road.
import { formatBytes } from '../../core/byte-size.ts';
import type { RoadReport } from '../bench/unpack/road.ts';
import type { UnpackBenchReport } from '../bench/unpack/unpack-bench.ts';
import { curves, ratioColumn, table, type View } from './view.ts';
import { describeRounds, fixed, machineLines, spread } from './wording.ts';

const time = { head: 'µs', show: fixed(1), hasSpread: true, unit: 'µs' } as const;

export function unpackView({ stages, components, kernels, ...report }: UnpackBenchReport): View {
  const { workload, device, machine } = report;
  const kernelName = ({ name, from, numSms }: (typeof kernels)[number]): string =>
    `${name} from ${from}, ${numSms} SMs`;
  const hasDocument = stages.some(({ documentMicrosecondsPerChunk }) => documentMicrosecondsPerChunk !== undefined);
  return {
    title: `Scattered fragments to their places on ${device}`,
    heading: [
      `${device}: ${formatBytes(workload.totalBytes)} in chunks of ${formatBytes(workload.chunkBytes)}; ${describeRounds(report)}`,
    ],
    parts: [
      table(
        stages,
        [
          { head: 'fragments', of: ({ fragmentBytes }) => fragmentBytes, show: formatBytes },
          { head: 'stage', of: ({ name }) => name },
          {
            ...time,
            of: ({ microseconds }) => microseconds,
            chart: 'Time of each stage',
            note: 'from the first call until the last byte is in its place',
          },
          { head: 'per chunk', of: ({ microsecondsPerChunk }) => microsecondsPerChunk, show: fixed(1) },
          { head: 'GB/s', of: ({ gigabytesPerSecond }) => gigabytesPerSecond, show: fixed(2) },
          {
            ...ratioColumn('copies one by one'),
            head: '× copies',
            of: ({ timesCopies }) => timesCopies,
            note: 'how many times faster than copies one by one, in the same rounds',
          },
          { head: 'document', of: ({ documentMicrosecondsPerChunk }) => documentMicrosecondsPerChunk },
          { head: '', of: ({ verdict }) => verdict },
        ],
        ({ name, fragmentBytes }) => `${name}, ${formatBytes(fragmentBytes)}`,
      ),
      hasDocument &&
        'document: µs per chunk by the analysis of a slow unpack path that this bench checks (docs/benchmarks/unpack.md in the repository); a measurement within a factor of 3 confirms it',
      components.length > 0
        ? table(
            components,
            [
              { head: 'part', of: ({ name }) => name },
              { ...time, of: ({ microseconds }) => microseconds, chart: 'Parts of a launch', note: 'each by itself' },
              { head: 'document', of: ({ documentMicroseconds }) => documentMicroseconds },
              { head: '', of: ({ verdict }) => verdict },
            ],
            ({ name }) => name,
          )
        : [],
      kernels.length > 0
        ? [
            ...table(
              kernels,
              [
                { head: 'from', of: ({ from }) => from },
                { head: 'fragments', of: ({ fragmentBytes }) => fragmentBytes, show: formatBytes },
                { head: 'SMs', of: ({ numSms }) => numSms },
                { head: 'kernel', of: ({ name }) => name },
                {
                  head: 'GB/s',
                  of: ({ gigabytesPerSecond }) => gigabytesPerSecond,
                  show: fixed(1),
                  note: 'of payload by events of the device',
                },
                {
                  ...ratioColumn('bare copies'),
                  of: ({ ratioToBareCopy }) => ratioToBareCopy,
                  note: 'time of the bare copy of the same fragments by as many SMs over that of the kernel, in the same rounds',
                },
              ],
              (kernel) => `${kernelName(kernel)}, ${formatBytes(kernel.fragmentBytes)}`,
            ),
            curves(
              {
                title: 'Kernels by length of fragments',
                note: 'Payload, by events of the device, median; the bare copy moves the same fragments.',
                x: { label: 'bytes of a fragment', scale: 'log' },
                y: { label: 'GB/s' },
              },
              [...new Set(kernels.map(kernelName))].map((name) => ({
                name,
                points: kernels
                  .filter((kernel) => kernelName(kernel) === name)
                  .map(({ fragmentBytes, gigabytesPerSecond }) => [fragmentBytes, gigabytesPerSecond.median] as const),
              })),
            ),
          ]
        : [],
    ],
    footing: machineLines({ machine }),
  };
}

/** Of the whole road, by the transport. */
export function roadView({ device, mode, plan, microseconds, gigabytesPerSecond, machine }: RoadReport): View {
  const { chunks, chunkBytes, fragmentBytes } = plan;
  const rate = `BW: ${gigabytesPerSecond.toFixed(2)} GB/s`;
  const [, section] = table(
    [{ microseconds }],
    [{ ...time, of: (one) => one.microseconds, chart: 'Time of all chunks' }],
    () => rate,
  );
  return {
    title: `Pages from another process to ${device} by ${mode}`,
    heading: [
      `${chunks} chunks of ${formatBytes(chunkBytes)} in pages of ${formatBytes(fragmentBytes)} to ${device} by ${mode}; ${describeRounds(plan)}`,
      `Median: ${(microseconds.median / 1000).toFixed(3)} ms, ${rate} (p25 to p75: ${spread(microseconds, fixed(1))} µs); contents verified`,
    ],
    parts: [section!],
    footing: machineLines({ machine }),
  };
}
