// Takes times of calls, phases and transfers from the trace points of this thread. Hot path: no allocation but for a new series.
import type { EpMode } from '../core/counts.ts';
import { type MetricName, metricTable } from '../core/metric-table.ts';
import { type TracePoint, tracePoints, type TraceSink } from '../core/trace.ts';

// What trace points and labels of calls mean as series of metrics.

/** A call of a collective object, as CallGuard labels it. */
interface CallLabel {
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
function readCallLabel(label: string): CallLabel | undefined {
  const match = /^(\w+)(?: \d+)?\.(.+) of ([\d,-]+)$/.exec(label);
  if (match === null) return undefined;
  const [, object = '', call = '', ranks = ''] = match;
  const [first = 0, last = first] = ranks.split('-').map(Number);
  return { object, call, ranks: ranks.includes(',') ? ranks.split(',').length : last - first + 1 };
}

function modeOf(label: CallLabel): EpMode | undefined {
  return modes[label.object];
}

function seriesOfCall(label: CallLabel): SeriesName | undefined {
  const mode = modeOf(label);
  const world = String(label.ranks);
  if (mode !== undefined) return { name: 'weftline_ep_step_seconds', labels: [label.call, 'call', mode, world] };
  if (label.object !== 'Communicator' && label.object !== 'SparseAllReduce') return undefined;
  return { name: 'weftline_collective_seconds', labels: [label.call, world] };
}

/** "ep.dispatch.rows" is phase rows of op dispatch; points of one word, such as ep.closing, are of the call that runs. */
function phaseOf(point: TracePoint): { readonly op: string | undefined; readonly phase: string } | undefined {
  const [owner, ...words] = point.split('.');
  if (owner !== 'ep' && owner !== 'layer') return undefined;
  const [op, phase] = words.length === 1 ? [undefined, words[0]!] : [words[0]!, words.slice(1).join('.')];
  return { op, phase };
}

// Histograms of times in typed arrays: an observation allocates nothing.

/** Upper bounds of the buckets, in seconds: 1, 2.5 and 5 of each decade from 1 µs to 50 s. Behind them is one without a bound. */
export const secondBounds: readonly number[] = Array.from({ length: 24 }, (_, at) =>
  Number(`${[1, 2.5, 5][at % 3]}e${Math.floor(at / 3) - 6}`),
);

export class Histogram {
  readonly labels: readonly string[];
  /** Observations in each bucket, not cumulative; the last bucket is for what is above all bounds. */
  readonly buckets: Float64Array = new Float64Array(secondBounds.length + 1);
  readonly #total: Float64Array = new Float64Array(2);

  constructor(labels: readonly string[]) {
    this.labels = labels;
  }

  /** Hot path. */
  observe(seconds: number): void {
    let at = 0;
    while (at < secondBounds.length && seconds > secondBounds[at]!) at++;
    this.buckets[at]!++;
    this.#total[0]! += seconds;
    this.#total[1]!++;
  }

  /** Sum in seconds. */
  get sum(): number {
    return this.#total[0]!;
  }

  get count(): number {
    return this.#total[1]!;
  }
}

/** Transfers that may be under way at once; a power of two. */
const TRANSFERS = 4096;

/** The last call of an object under one name. */
export interface LastCall extends CallLabel {
  /** The object's name, with its number among those of the same ranks. */
  readonly label: string;
  readonly number: number;
  readonly seconds: number;
  readonly bytes: number;
  /** Milliseconds since the Unix epoch. */
  readonly endedAt: number;
}

class Call {
  readonly facts: CallLabel;
  readonly label: string;
  readonly histogram: Histogram | undefined;
  /** Histograms of phases that ran in it, by the number of the trace point. */
  readonly phases: (Histogram | undefined)[] = [];
  /** Begin of the present one, or -1; number, seconds, bytes and end of the last. */
  readonly times: Float64Array = Float64Array.of(-1, 0, 0, 0, 0);

  constructor(label: string, facts: CallLabel, histogram: Histogram | undefined) {
    this.label = label;
    this.facts = facts;
    this.histogram = histogram;
  }
}

class Transfers {
  readonly seconds: Histogram;
  readonly bytes: Float64Array = new Float64Array(1);

  constructor(seconds: Histogram) {
    this.seconds = seconds;
  }
}

/** Hears of every observation; may cost what it costs. */
type ObservationListener = (name: MetricName, labels: readonly string[], seconds: number) => void;

export class MetricsSink implements TraceSink {
  readonly #histograms = new Map<string, { readonly name: MetricName; readonly histogram: Histogram }>();
  readonly #calls = new Map<string, Call | undefined>();
  readonly #transfers = new Map<string, Transfers>();
  readonly #numbers = new Map<TracePoint, number>(tracePoints.map((point, number) => [point, number]));
  readonly #phaseBegins: Float64Array = new Float64Array(tracePoints.length).fill(-1);
  readonly #transferBegins: Float64Array = new Float64Array(TRANSFERS).fill(-1);
  readonly #transferSubjects: Float64Array = new Float64Array(TRANSFERS);
  readonly #listeners = new Set<ObservationListener>();
  #present: Call | undefined;
  #dropped = 0;

  begin(point: TracePoint, subject: number, label = ''): void {
    if (point === 'call') {
      const call = this.#callOf(label);
      if (call === undefined) return;
      if (call.times[0]! >= 0) this.#dropped++;
      call.times[0] = performance.now();
      this.#present = call;
    } else if (point === 'agent.transfer') {
      const at = subject & (TRANSFERS - 1);
      if (this.#transferBegins[at]! >= 0) this.#dropped++;
      this.#transferBegins[at] = performance.now();
      this.#transferSubjects[at] = subject;
    } else {
      // What failed has left its begin behind: the next one replaces it.
      this.#phaseBegins[this.#numbers.get(point)!] = performance.now();
    }
  }

  end(point: TracePoint, subject: number, label = '', bytes = 0): void {
    if (point === 'call') this.#endCall(this.#callOf(label), subject, bytes);
    else if (point === 'agent.transfer') this.#endTransfer(subject, label, bytes);
    else this.#endPhase(point, this.#numbers.get(point)!);
  }

  /** The listener hears of every observation from now on. Returns how to take it back. */
  listen(listener: ObservationListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  get dropped(): number {
    return this.#dropped;
  }

  /** All histograms so far, by the name of their metric. */
  histograms(): readonly { readonly name: MetricName; readonly histogram: Histogram }[] {
    return [...this.#histograms.values()];
  }

  /** Bytes of transfers that have ended, by backend and operation. */
  transferBytes(): readonly { readonly labels: readonly string[]; readonly bytes: number }[] {
    return [...this.#transfers.values()].map(({ seconds, bytes }) => ({ labels: seconds.labels, bytes: bytes[0]! }));
  }

  /** The last call that has ended, for each object and kind of call. */
  lastCalls(): LastCall[] {
    return [...this.#calls.values()].flatMap((call) => {
      if (call === undefined || call.times[1] === 0) return [];
      const [, number = 0, seconds = 0, bytes = 0, end = 0] = call.times;
      const endedAt = performance.timeOrigin + end;
      return [{ ...call.facts, label: call.label, number, seconds, bytes, endedAt }];
    });
  }

  #endCall(call: Call | undefined, number: number, bytes: number): void {
    if (call === undefined || call.times[0]! < 0) return;
    const now = performance.now();
    const seconds = (now - call.times[0]!) / 1000;
    call.times[0] = -1;
    call.times[1] = number;
    call.times[2] = seconds;
    call.times[3] = bytes;
    call.times[4] = now;
    if (call.histogram !== undefined) this.#observe(call.histogram, seconds);
  }

  #endTransfer(subject: number, label: string, bytes: number): void {
    const at = subject & (TRANSFERS - 1);
    const begin = this.#transferBegins[at]!;
    if (begin < 0 || this.#transferSubjects[at] !== subject) {
      this.#dropped++;
      return;
    }
    this.#transferBegins[at] = -1;
    const transfers = this.#transfersOf(label);
    transfers.bytes[0]! += bytes;
    this.#observe(transfers.seconds, (performance.now() - begin) / 1000);
  }

  /** It counts for the call that began last on this thread. */
  #endPhase(point: TracePoint, number: number): void {
    const begin = this.#phaseBegins[number]!;
    const call = this.#present;
    if (begin < 0 || call === undefined) return;
    this.#phaseBegins[number] = -1;
    const histogram = call.phases[number] ?? this.#phaseHistogram(call, point, number);
    if (histogram !== undefined) this.#observe(histogram, (performance.now() - begin) / 1000);
  }

  #observe(histogram: Histogram, seconds: number): void {
    histogram.observe(seconds);
    if (this.#listeners.size === 0) return;
    const name = this.#nameOf(histogram);
    for (const listener of this.#listeners) listener(name, histogram.labels, seconds);
  }

  #nameOf(histogram: Histogram): MetricName {
    return [...this.#histograms.values()].find((entry) => entry.histogram === histogram)!.name;
  }

  #callOf(label: string): Call | undefined {
    const known = this.#calls.get(label);
    if (known !== undefined || this.#calls.has(label)) return known;
    const facts = readCallLabel(label);
    const series = facts === undefined ? undefined : seriesOfCall(facts);
    const histogram = series === undefined ? undefined : this.#histogram(series.name, series.labels);
    const call = facts === undefined ? undefined : new Call(label, facts, histogram);
    this.#calls.set(label, call);
    return call;
  }

  #phaseHistogram(call: Call, point: TracePoint, number: number): Histogram | undefined {
    const phase = phaseOf(point);
    const mode = modeOf(call.facts);
    if (phase === undefined || mode === undefined) return undefined;
    const labels = [phase.op ?? call.facts.call, phase.phase, mode, String(call.facts.ranks)];
    const histogram = this.#histogram('weftline_ep_step_seconds', labels);
    call.phases[number] = histogram;
    return histogram;
  }

  /** `label`: "write by local". */
  #transfersOf(label: string): Transfers {
    const known = this.#transfers.get(label);
    if (known !== undefined) return known;
    const [operation = '', backend = ''] = label.split(' by ');
    const made = new Transfers(this.#histogram('weftline_agent_transfer_seconds', [backend, operation]));
    this.#transfers.set(label, made);
    return made;
  }

  #histogram(name: MetricName, labels: readonly string[]): Histogram {
    const key = `${name} ${labels.join(' ')}`;
    const known = this.#histograms.get(key);
    if (known !== undefined) return known.histogram;
    const histogram = new Histogram(labels);
    this.#histograms.set(key, { name, histogram });
    if (labels.length !== metricTable[name].labels.length) throw new RangeError(`${name} has other labels`);
    return histogram;
  }
}
