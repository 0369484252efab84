// What trace points and labels of calls mean as series of metrics.
import type { EpMode } from '../core/counts.ts';
import type { MetricName } from '../core/metric-table.ts';
import type { TracePoint } from '../core/trace.ts';

/** A call of a collective object, as CallGuard labels it. */
export interface CallLabel {
  readonly object: string;
  readonly call: string;
  readonly ranks: number;
}

interface SeriesName {
  readonly name: MetricName;
  readonly labels: readonly string[];
}

const modes: Readonly<Record<string, EpMode>> = {
  EpBuffer: 'buffer',
  EPAll2AllLayer: 'layer',
  EpLowLatency: 'low_latency',
};

/** "EpBuffer 2.dispatch of 0-3". */
export function readCallLabel(label: string): CallLabel | undefined {
  const match = /^(\w+)(?: \d+)?\.(.+) of ([\d,-]+)$/.exec(label);
  if (match === null) return undefined;
  const [, object = '', call = '', ranks = ''] = match;
  const [first = 0, last = first] = ranks.split('-').map(Number);
  return { object, call, ranks: ranks.includes(',') ? ranks.split(',').length : last - first + 1 };
}

export function modeOf(label: CallLabel): EpMode | undefined {
  return modes[label.object];
}

export function seriesOfCall(label: CallLabel): SeriesName | undefined {
  const mode = modeOf(label);
  const world = String(label.ranks);
  if (mode !== undefined) return { name: 'weftline_ep_step_seconds', labels: [label.call, 'call', mode, world] };
  if (label.object !== 'Communicator' && label.object !== 'SparseAllReduce') return undefined;
  return { name: 'weftline_collective_seconds', labels: [label.call, world] };
}

/** "ep.dispatch.rows" is phase rows of op dispatch; points of one word, such as ep.closing, are of the call that runs. */
export function phaseOf(point: TracePoint): { readonly op: string | undefined; readonly phase: string } | undefined {
  const [owner, ...words] = point.split('.');
  if (owner !== 'ep' && owner !== 'layer') return undefined;
  const [op, phase] = words.length === 1 ? [undefined, words[0]!] : [words[0]!, words.slice(1).join('.')];
  return { op, phase };
}
