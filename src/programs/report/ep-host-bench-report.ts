// The tables that `weftline bench ep` prints for ranks on several hosts.
import Table from 'cli-table3';
import { type EpHostBenchReport, type HostCaseResult } from '../bench/ep/hosts/host-results.ts';
import { phaseNames } from '../bench/ep/hosts/phase-times.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { describeRounds, describeWorkload, machineLines } from './bench-heading.ts';
import { plainTable } from './plain-table.ts';
import { formatTime, spread } from './time-format.ts';

export function epHostBenchReport(report: EpHostBenchReport): string {
  const { hosts, carriers, channels, workload, pairs, cases, device, numSms } = report;
  const gpus = device === 'cuda' ? `; GPUs, ${numSms} multiprocessors of each` : '';
  const perPeer = channels === 1 ? 'a channel' : `${channels} channels`;
  return [
    `${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`,
    `${hosts.length} hosts of ${hosts.map(({ length }) => length).join(', ')} ranks; ${carriers.join(', ')}, ${perPeer} per peer${gpus}`,
    ...pairs.map(
      ({ name, pairs: count, p50, p99 }) =>
        `${name}: dispatch and combine in turn, every ${formatTime(p50)} (p99 ${formatTime(p99)}, ${count} pairs)`,
    ),
    caseTable(cases),
    'Time of the slowest rank; network GB/s of all ranks together, each row counted once per (token, host); sent / least: bytes',
    'that puts carried over that. Ratio: bandwidth over that of the carrier, which sends the same bytes in large puts; in phase:',
    'the same from the first row until nothing is under way. (p25 to p75)',
    phaseTable(cases),
    'Mean of the ranks, medians: network contains what stands between it and closing; its remainder is posting and waiting.',
    ...machineLines(report),
    '',
  ].join('\n');
}

function caseTable(cases: readonly HostCaseResult[]): string {
  const table = new Table({
    head: ['case', 'time', '', 'in hosts', 'network', 'sent / least', 'network GB/s', 'ratio', '', 'in phase', ''],
    colAligns: ['left', 'right', 'left', 'right', 'right', 'right', 'right', 'right', 'left', 'right', 'left'],
    ...plainTable,
  });
  for (const result of cases) {
    const { name, microseconds, networkBytes, sentBytes, networkGBps, ratioToCarrier, networkPhase } = result;
    table.push([
      name,
      formatTime(microseconds.median),
      `(${spread(microseconds, formatTime)})`,
      ratioToCarrier ? formatBytes(result.hostBytes) : '',
      formatBytes(networkBytes),
      networkBytes === 0 ? '' : (sentBytes / networkBytes).toFixed(3),
      two(networkGBps.median),
      ratioToCarrier ? two(ratioToCarrier.median) : '',
      ratioToCarrier ? `(${spread(ratioToCarrier, two)})` : '',
      networkPhase ? two(networkPhase.ratioToCarrier.median) : '',
      networkPhase ? `(${spread(networkPhase.ratioToCarrier, two)})` : '',
    ]);
  }
  return table.toString();
}

function phaseTable(cases: readonly HostCaseResult[]): string {
  const table = new Table({
    head: ['of it', ...phaseNames],
    colAligns: ['left', ...phaseNames.map(() => 'right' as const)],
    ...plainTable,
  });
  for (const { name, phases, ratioToCarrier } of cases) {
    if (ratioToCarrier === undefined) continue;
    table.push([
      name,
      ...phaseNames.map((phase) => {
        const time = phases[phase];
        return time === undefined ? '' : formatTime(time);
      }),
    ]);
  }
  return table.toString();
}

function two(value: number): string {
  return value.toFixed(2);
}
