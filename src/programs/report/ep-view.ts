// What people read of `weftline bench ep`: CPU ranks, GPUs, ranks across hosts, low latency, and the sweep of shapes.
import { formatBytes } from '../../core/byte-size.ts';
import type { TriedShapes } from '../../group/cuda-shapes.ts';
import type { EpCudaBenchReport } from '../bench/ep/cuda-bench.ts';
import type { ShapeSweepReport } from '../bench/ep/cuda-shapes.ts';
import type { EpBenchReport } from '../bench/ep/ep-bench.ts';
import { type EpHostBenchReport, phaseNames } from '../bench/ep/ep-hosts.ts';
import type { CudaLowLatencyBenchReport } from '../bench/ep/cuda-low-latency.ts';
import type { LowLatencyBenchReport } from '../bench/ep/low-latency.ts';
import { bars, curves, percentiles, ratioColumn, table, timeColumn, type View } from './view.ts';
import { describeRounds, describeWorkload, fixed, formatTime, machineLines } from './wording.ts';

interface Named {
  readonly name: string;
}

function nameOf({ name }: Named): string {
  return name;
}

const caseColumn = { head: 'case', of: nameOf } as const;
const beyond = { head: 'beyond copying', show: formatTime } as const;
const deviceTime = { head: 'device, µs', show: fixed(1), hasSpread: true } as const;
const ofCopies = { ...ratioColumn('bare copies'), show: fixed(3) };
const inPhase = { head: 'in phase', show: fixed(2), hasSpread: true } as const;

export function epView(report: EpBenchReport): View {
  const { cases, workload, memory, method } = report;
  const [ceiling] = cases;
  const layer = memory.layerWindowsBytes && `, of EPAll2AllLayer ${formatBytes(memory.layerWindowsBytes)}`;
  const hint = memory.deepEpHintBytes && `; DeepEP's size hint is ${formatBytes(memory.deepEpHintBytes)} per rank`;
  return {
    title: 'Dispatch and combine against copying the same rows',
    heading: [`${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`],
    parts: [
      table(
        cases.map((one) => ({ ...one, call: one === ceiling ? undefined : one })),
        [
          caseColumn,
          { ...timeColumn, of: ({ microseconds }) => microseconds, note: method.time },
          {
            head: 'logical GB/s',
            of: ({ logicalGBps }) => logicalGBps,
            show: fixed(2),
            note: method.logical,
            chart: 'Bandwidth against the ceiling',
            unit: 'GB/s',
            rules: ceiling === undefined ? [] : [{ value: ceiling.logicalGBps.median, label: 'ceiling' }],
          },
          { head: 'wire GB/s', of: ({ wireGBps }) => wireGBps, show: fixed(2), note: method.wire },
          { ...ratioColumn('the ceiling'), of: ({ call }) => call?.ratioToCeiling, note: method.ratioToCeiling },
          { head: 'ratio back', of: (one) => one.ratioToCopyBack, show: fixed(2), note: method.ratioToCopyBack },
          { ...beyond, of: ({ call }) => call?.beyondCopyingMicroseconds, note: method.beyondCopying },
        ],
        nameOf,
      ),
      `memory: windows of EpBuffer ${formatBytes(memory.bufferWindowsBytes)}${layer ?? ''} (all ranks), device memory of rank 0 ${formatBytes(memory.deviceBytes)}${hint ?? ''}`,
    ],
    footing: machineLines(report),
  };
}

export function epCudaView(report: EpCudaBenchReport): View {
  const { runs, workload, method } = report;
  const names = runs[0]?.cases.map(nameOf) ?? [];
  const sweep = names.flatMap((_, index) => runs.map(({ numSms, cases }) => ({ numSms, ...cases[index]! })));
  return {
    title: 'Dispatch and combine on GPUs',
    heading: [`${describeWorkload(workload)}; ${describeRounds(report)}`],
    parts: [
      table(
        sweep,
        [
          caseColumn,
          { head: 'SMs', of: ({ numSms }) => numSms },
          { ...deviceTime, of: ({ microseconds }) => microseconds, note: method.time },
          { head: 'logical GB/s', of: (one) => one.logicalGBpsPerRank, show: fixed(0), note: method.logical },
          { head: 'wire', of: ({ wireGBps }) => wireGBps.median / workload.ranks, show: fixed(0), note: method.wire },
          { ...ofCopies, of: ({ ratioToCopy }) => ratioToCopy, note: method.ratioToCopy },
          { head: 'returned', of: (one) => one.returnedMicroseconds, show: fixed(1), note: method.returned },
          { head: 'ready', of: (one) => one.readyMicroseconds, show: fixed(1), note: method.ready },
          {
            head: '+ uncached',
            of: ({ beyondCached: more }) =>
              more && `${more.microseconds.median.toFixed(1)}, ${more.readyMicroseconds.median.toFixed(1)}`,
            note: method.beyondCached,
          },
        ],
        ({ name, numSms }) => `${name}, ${numSms} SMs`,
      ),
      'copies:',
      runs.flatMap(({ numSms, copyShapes }) =>
        Object.entries(copyShapes).map(
          ([name, { blocks, warps, slots, partBytes, shapesTried }]) =>
            `  ${name}, ${numSms} SMs: ${blocks} blocks of ${warps} warps, ${slots} in flight, parts of ${partBytes} bytes; best of ${shapesTried}`,
        ),
      ),
      // One for each kind of rows, and for the layer: more lines than that are told apart by nobody.
      [...new Set(names.map(groupOf))].map((group) =>
        curves(
          {
            title: `Bandwidth by SMs, ${group}`,
            note: `${method.logical} The cases named copy are the ceilings.`,
            x: { label: 'SMs' },
            y: { label: 'GB/s per rank' },
          },
          names
            .filter((name) => groupOf(name) === group)
            .map((name) => ({
              name,
              points: sweep
                .filter((one) => one.name === name)
                .map(({ numSms, logicalGBpsPerRank }) => [numSms, logicalGBpsPerRank.median] as const),
            })),
        ),
      ),
    ],
    footing: machineLines({ machine: report.machine, gpuMachine: report.gpuMachine }),
  };
}

function groupOf(name: string): string {
  if (name.includes('layer')) return 'layer';
  return name.includes('fp8') ? 'fp8' : 'bf16';
}

export function epHostView(report: EpHostBenchReport): View {
  const { hosts, carriers, channels, workload, pairs, cases, device, numSms, method } = report;
  const gpus = device === 'cuda' ? `; GPUs, ${numSms} multiprocessors of each` : '';
  const perPeer = channels === 1 ? 'a channel' : `${channels} channels`;
  const calls = cases.filter(({ ratioToCarrier }) => ratioToCarrier !== undefined);
  const shownPhases = phaseNames.filter((phase) => calls.some(({ phases }) => phases[phase] !== undefined));
  return {
    title: `Dispatch and combine across ${hosts.length} hosts`,
    heading: [
      `${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`,
      `${hosts.length} hosts of ${hosts.map(({ length }) => length).join(', ')} ranks; ${carriers.join(', ')}, ${perPeer} per peer${gpus}`,
    ],
    parts: [
      pairs.map(
        ({ name, pairs: count, p50, p99 }) =>
          `${name}: dispatch and combine in turn, every ${formatTime(p50)} (p99 ${formatTime(p99)}, ${count} pairs)`,
      ),
      table(
        cases,
        [
          caseColumn,
          { ...timeColumn, of: ({ microseconds }) => microseconds, note: method.time },
          { head: 'in hosts', of: (one) => (one.ratioToCarrier ? one.hostBytes : undefined), show: formatBytes },
          { head: 'network', of: ({ networkBytes }) => networkBytes, show: formatBytes },
          {
            head: 'sent / least',
            of: ({ networkBytes, sentBytes }) => (networkBytes === 0 ? undefined : sentBytes / networkBytes),
            show: fixed(3),
            note: method.sent,
          },
          {
            head: 'network GB/s',
            of: ({ networkGBps }) => networkGBps,
            show: fixed(2),
            note: method.network,
            chart: 'Bandwidth between hosts',
            unit: 'GB/s',
          },
          { ...ratioColumn('the carrier'), of: ({ ratioToCarrier }) => ratioToCarrier, note: method.ratioToCarrier },
          { ...inPhase, of: ({ networkPhase }) => networkPhase?.ratioToCarrier, note: method.networkPhase },
        ],
        nameOf,
      ),
      table(calls, [
        { head: 'of it', of: nameOf },
        ...shownPhases.map((phase) => ({
          head: phase,
          of: ({ phases }: (typeof calls)[number]) => phases[phase],
          show: formatTime,
        })),
      ]),
      method.phases,
      bars(
        { title: 'Where the time goes', note: method.phases, unit: 'µs' },
        calls.flatMap(({ name, phases }) =>
          shownPhases.map((series) => ({ name, series, value: phases[series] ?? 0 })),
        ),
      ),
      percentiles('Dispatch and combine in turn', pairs),
    ],
    footing: machineLines(report),
  };
}

export function lowLatencyView(report: LowLatencyBenchReport | CudaLowLatencyBenchReport): View {
  const { workload, variant, method } = report;
  const cases = report.cases.map(({ name, dtype, ...of }) => ({
    ...of,
    name: name.includes(dtype) ? name : `${name}, ${dtype}`,
    ratio: 'ratioToCopy' in of ? of.ratioToCopy : undefined,
  }));
  const isOnGpus = 'gpuMachine' in report;
  const show = isOnGpus ? fixed(1) : formatTime;
  return {
    title: 'Low-latency dispatch and combine',
    heading: [`${describeWorkload(workload)}; low latency, ${variant}; ${describeRounds(report)}`],
    parts: [
      table(
        cases,
        [
          { head: 'call', of: nameOf },
          { head: isOnGpus ? 'p50, µs' : 'p50', of: ({ microseconds }) => microseconds.p50, show },
          { head: 'p99', of: ({ microseconds }) => microseconds.p99, show },
          { ...ofCopies, of: (one) => one.ratio },
        ],
        nameOf,
      ),
      Object.entries(method).map(([what, meaning]) => `${what}: ${meaning}`),
      `memory: windows ${formatBytes(isOnGpus ? report.windowBytes : report.windowsBytes)}${isOnGpus ? ' per rank' : ' (all ranks)'}; ${report.pairs} calls or pairs in a chain`,
      percentiles(
        'Latency of a call',
        cases.map(({ name, microseconds }) => ({ name, ...microseconds })),
      ),
    ],
    footing: machineLines(isOnGpus ? { machine: report.machine, gpuMachine: report.gpuMachine } : report),
  };
}

/** Of each call; the document has them all. */
const SHOWN_SHAPES = 12;

/** For each call its shapes, the fastest first. It has no page. */
export function shapesView(report: ShapeSweepReport): View {
  const { workload, numSms, copies, results, machine, gpuMachine } = report;
  type Row = { shape: string; microseconds: { median: number }; ratioToCopy?: { median: number } };
  const tables = Object.entries(copies).flatMap(([name, { shape: copy, microseconds }]) => {
    const rows = results.flatMap(({ shape, calls }) =>
      calls.filter((call) => call.name === name).map((call): Row => ({ ...call, shape: describeShape(shape) })),
    );
    const fastest = rows.toSorted((a, b) => a.microseconds.median - b.microseconds.median).slice(0, SHOWN_SHAPES);
    const { blocks, warps, slots, partBytes } = copy;
    const bare = `bare copy: ${blocks} blocks of ${warps} warps, ${slots} parts of ${partBytes} bytes each`;
    // The first are those of the rules.
    return table<Row>(
      [...new Set([...fastest, ...rows.slice(0, 1)]), { shape: bare, microseconds }],
      [
        { head: name, of: ({ shape }) => shape },
        { head: 'µs', of: (row) => row.microseconds.median, show: fixed(1) },
        { head: 'ratio', of: ({ ratioToCopy }) => ratioToCopy?.median, show: fixed(3) },
      ],
    );
  });
  return {
    title: 'Shapes of dispatch and combine',
    heading: [`${describeWorkload(workload)}; ${numSms} SMs; ${describeRounds(report)}`],
    parts: [
      tables,
      'Times of the slowest rank, medians; ratio: time of the bare copy in the same iterations over that of the call.',
    ],
    footing: machineLines({ machine, gpuMachine }),
  };
}

function describeShape({ sending, gather }: TriedShapes): string {
  if (sending) {
    return `${sending.blocks} blocks, ${sending.warps} warps that move parts of at most ${sending.mostPartBytes} bytes`;
  }
  return gather ? `${gather.blocks} blocks of ${gather.warps} warps` : 'as the rule chooses';
}
