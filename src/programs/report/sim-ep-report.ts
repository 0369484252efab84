// What `weftline sim ep` prints: each phase against what links and memory allow, the busiest links, and what was lost.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { EpProtocol, EpShape } from '../sim/ep/ep-options.ts';
import { epPhases } from '../sim/ep/ep-plan.ts';
import type { EpPhaseResult, EpResult } from '../sim/ep/ep-result.ts';
import { plainTable } from './plain-table.ts';

export interface SimEpDescription {
  readonly shape: EpShape;
  readonly protocol: EpProtocol;
  readonly routing: string;
  readonly simulatedRanks: number;
  readonly network: string;
  /** Of a rank. */
  readonly gigabitsPerSecond: number;
  readonly rails: number;
  readonly engines: number;
  readonly paths: number;
  readonly congestion: string;
  readonly segmentBytes: number;
  readonly loss: number;
  readonly slow?: { readonly host: number; readonly links: number; readonly memory: number };
  readonly seed: number;
}

/** Links that are named. */
const BUSIEST = 3;

export function simEpReport(description: SimEpDescription, result: EpResult): string {
  return [
    ...simEpHeading(description),
    phaseTable(result),
    ...epPhases.flatMap((phase) => [rowLine(description, phase, result[phase]), incastLine(phase, result[phase])]),
    ...countLines(result),
    simEpVerdict(result),
    '',
  ].join('\n');
}

export function simEpHeading(about: SimEpDescription): string[] {
  const { shape, protocol, routing, simulatedRanks, network, rails, engines, paths, slow } = about;
  const { hosts, ranksPerHost, tokens, hidden, topk, experts, dtype } = shape;
  const outstanding = Number.isFinite(protocol.outstandingBytes)
    ? `${formatBytes(protocol.outstandingBytes)} under way to a rank`
    : 'any number of bytes under way';
  const slower =
    slow === undefined ? '' : `; host ${slow.host}: links ${slow.links} and memory ${slow.memory} of the others' rate`;
  return [
    `expert parallelism across ${hosts} hosts of ${ranksPerHost} ranks: ${tokens} tokens each, hidden ${hidden}, ${dtype}, top ${topk} of ${experts} experts, routing ${routing}, seed ${about.seed}`,
    `network: ${network}, ${about.gigabitsPerSecond} Gbps per rank${several(rails, 'rails')}${several(engines, 'engines')}${several(paths, 'paths')}, congestion control ${about.congestion}, loss ${about.loss} per link${slower}`,
    `protocol: rows once ${protocol.rows.replace('-', ' ')}, order ${protocol.order}, chunks of up to ${formatBytes(protocol.chunkBytes)}, ${outstanding}`,
    `simulated: ${simulatedRanks} of ${ranksPerHost} ranks of each host, ${protocol.rowsPerWrite === 1 ? 'each row as a write of its own' : `${protocol.rowsPerWrite} rows per write`}, packets of ${formatBytes(about.segmentBytes)}`,
  ];
}

function several(count: number, what: string): string {
  return count === 1 ? '' : `, ${count} ${what}`;
}

function phaseTable(result: EpResult): string {
  const table = new Table({
    head: ['µs', 'simulated', 'least', 'ratio'],
    colAligns: ['left', 'right', 'right', 'right'],
    ...plainTable,
  });
  for (const phase of epPhases) {
    const { meeting, rows, tail, total, bounds } = result[phase];
    const row = (name: string, time: number, least?: number): void => {
      const ratio = least === undefined || least === 0 ? '' : (time / least).toFixed(3);
      table.push([`${phase}: ${name}`, time.toFixed(1), least?.toFixed(1) ?? '', ratio]);
    };
    row('meeting', meeting, bounds.meeting);
    row('rows on the network', rows, bounds.rows);
    row(phase === 'dispatch' ? 'rest of forwarding, barrier' : 'rest of adding, barrier', tail);
    row('all', total, bounds.total);
  }
  return table.toString();
}

function rowLine(
  { protocol }: SimEpDescription,
  phase: string,
  { rowBytes, bounds, otherRows, arrivals }: EpPhaseResult,
): string {
  const other = protocol.rows === 'per-host' ? 'per expert' : 'per host';
  return `${phase}: ${formatBytes(rowBytes)} of rows crossed the network; half of the ranks had theirs after ${arrivals.p50.toFixed(1)} µs; memory alone would take ${bounds.local.toFixed(1)} µs; with rows once ${other} links would take at least ${otherRows.toFixed(1)} µs (${(otherRows / bounds.rows).toFixed(2)} times)`;
}

function incastLine(phase: string, { incast, meanLinkBytes, dropped }: EpPhaseResult): string {
  const links = incast
    .slice(0, BUSIEST)
    .map(
      ({ host, rank, bytes, queueBytes }) =>
        `host ${host} rank ${rank}: ${formatBytes(bytes)} (${(bytes / meanLinkBytes).toFixed(2)} of the mean), longest queue ${formatBytes(Math.round(queueBytes))}`,
    );
  const longest = incast.reduce((most, { queueBytes }) => Math.max(most, queueBytes), 0);
  return `${phase}, busiest links: ${links.join('; ')}; longest queue of all ${formatBytes(Math.round(longest))}; ${dropped} packets dropped by full queues`;
}

function countLines({ network, transport, events, mostPackets }: EpResult): string[] {
  return [
    `packets: ${network.sent} sent; dropped ${network.droppedFull} by full queues, ${network.droppedLoss} at random`,
    `segments: ${transport.segments} sent, ${transport.retransmitted} of them again, ${transport.duplicates} arrived twice; ${transport.acks} acks, ${transport.timeouts} timeouts`,
    `simulation: ${events} events, at most ${mostPackets} packets under way`,
  ];
}

export function simEpVerdict({ end }: EpResult): string {
  if (end === 'done') return 'Dispatch and combine ended at all ranks.';
  return `NOT DONE: ${end === 'deadline' ? 'the time was over' : 'nothing more would have happened'}.`;
}
