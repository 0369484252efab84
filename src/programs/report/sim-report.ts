// What `weftline sim` prints: one table of what was reached against what the network could do, and what was lost on the way.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { PatternResult } from '../sim/pattern-result.ts';

/** No lines between rows. */
const chars = { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' };

/** What was simulated, for the first line. */
export interface SimDescription {
  readonly pattern: string;
  readonly network: string;
  readonly gigabitsPerSecond: number;
  readonly rails: number;
  readonly engines: number;
  readonly paths: number;
  readonly congestion: string;
  readonly load: number;
  readonly loss: number;
  /** The only rail that loses packets; all of them if missing. */
  readonly lossRail?: number;
  readonly flows: number;
  readonly messages: number;
  readonly messageBytes: number;
  readonly seed: number;
}

export function simReport(description: SimDescription, result: PatternResult): string {
  return [
    ...simHeading(description),
    speedTable(description, result),
    ...countLines(result),
    ...outageLines(result),
    simVerdict(result),
    '',
  ].join('\n');
}

export function simHeading(about: SimDescription): string[] {
  const { pattern, network, gigabitsPerSecond, rails, engines, paths, congestion, load, loss, lossRail, seed } = about;
  const { flows, messages, messageBytes } = about;
  return [
    `${pattern} on ${network}, ${gigabitsPerSecond} Gbps per host${rails === 1 ? '' : `, ${rails} rails`}${engines === 1 ? '' : `, ${engines} engines`}; ${paths} ${paths === 1 ? 'path' : 'paths'}, congestion control ${congestion}`,
    `${flows} ${flows === 1 ? 'flow' : 'flows'} per sender, ${messages} ${messages === 1 ? 'message' : 'messages'} of ${formatBytes(messageBytes)} each, load ${load}, loss ${loss} per link${lossRail === undefined ? '' : ` of rail ${lossRail}`}, seed ${seed}`,
  ];
}

function speedTable({ load }: SimDescription, result: PatternResult): string {
  const { theory, completion, goodputGbps, microseconds } = result;
  const table = new Table({
    head: ['', 'simulated', 'ideal', 'ratio'],
    colAligns: ['left', 'right', 'right', 'right'],
    chars,
    style: { head: [], border: [] },
  });
  const row = (name: string, value: string, ideal: string, ratio: number | undefined): void => {
    table.push([name, value, ideal, ratio === undefined ? '' : ratio.toFixed(3)]);
  };
  const offered = theory.goodputGbps * load;
  row('goodput, Gbps', goodputGbps.toFixed(2), offered.toFixed(2), goodputGbps / offered);
  const senders = Math.round(theory.goodputGbps / theory.fairShareGbps);
  const share = goodputGbps / senders;
  row('per sender, Gbps', share.toFixed(2), (theory.fairShareGbps * load).toFixed(2), undefined);
  row('fairness between flows (Jain)', result.fairness.toFixed(4), '1', undefined);
  if (completion !== undefined) {
    const alone = theory.messageMicroseconds;
    row('completion of a message, P50, µs', completion.p50.toFixed(1), alone.toFixed(1), completion.p50 / alone);
    row('completion of a message, P99, µs', completion.p99.toFixed(1), alone.toFixed(1), completion.p99 / alone);
    row('slowest message, µs', completion.max.toFixed(1), alone.toFixed(1), completion.max / alone);
  }
  if (load === 1) {
    const ideal = theory.totalMicroseconds;
    row('all messages, µs', microseconds.toFixed(1), ideal.toFixed(1), microseconds / ideal);
  }
  return table.toString();
}

function countLines({ network, transport, events, mostPackets, longestQueueBytes }: PatternResult): string[] {
  const share = transport.segments === 0 ? 0 : (100 * transport.retransmitted) / transport.segments;
  return [
    `packets: ${network.sent} sent; dropped ${network.droppedFull} by full queues, ${network.droppedLoss} at random, ${network.droppedDown} on dead links; ${network.marked} marked; longest queue ${formatBytes(Math.round(longestQueueBytes))}`,
    `segments: ${transport.segments} sent, ${transport.retransmitted} of them again (${share.toFixed(2)} %), ${transport.duplicates} arrived twice; ${transport.acks} acks, ${transport.timeouts} timeouts`,
    `simulation: ${events} events, at most ${mostPackets} packets under way`,
  ];
}

function ms(microseconds: number): string {
  return `${(microseconds / 1000).toFixed(1)} ms`;
}

function gbps(value: number | undefined): string {
  return value === undefined ? 'unknown' : `${value.toFixed(1)} Gbps`;
}

function outageLines({ outage, railBytes }: PatternResult): string[] {
  const all = railBytes.reduce((sum, bytes) => sum + bytes, 0);
  const shares = railBytes.map((bytes) => `${((100 * bytes) / Math.max(1, all)).toFixed(1)} %`);
  const lines = railBytes.length === 1 ? [] : [`share of each rail: ${shares.join(', ')}`];
  if (outage === undefined) return lines;
  const { rail, from, to, before, worst, during, after } = outage;
  const end = Number.isFinite(to) ? `to ${ms(to)}` : 'on';
  return [
    ...lines,
    `rail ${rail} dead from ${ms(from)} ${end}: goodput ${gbps(before)} before, ${gbps(worst)} in the worst millisecond, ${gbps(during)} from 100 ms after its death on${Number.isFinite(to) ? `, ${gbps(after)} from 100 ms after its return on` : ''}`,
  ];
}

export function simVerdict({ end, completed, messages }: PatternResult): string {
  if (end === 'done') return `All ${messages} messages arrived.`;
  const why = end === 'deadline' ? 'the time was over' : 'nothing more would have happened';
  return `NOT DONE: ${completed} of ${messages} messages arrived when ${why}.`;
}
