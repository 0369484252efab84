// Metrics and spans for the OpenTelemetry of a program, through the meter and the tracer that it passes: no dependency on either.
import { tracingChannel } from 'node:diagnostics_channel';
import { type CallContext, type TransferContext, tracingChannelNames } from '../core/call-channels.ts';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { invalidArgument } from '../core/errors.ts';
import { type MetricName, metricTable } from '../core/metric-table.ts';
import { collect, readMetrics } from './read-metrics.ts';
import { secondBounds } from './metrics-sink.ts';

/** Attributes of OpenTelemetry. */
type TelemetryAttributes = Readonly<Record<string, string | number | boolean>>;

/** What is used of a Meter of @opentelemetry/api. */
export interface TelemetryMeter {
  /** Makes a histogram of times, in seconds. */
  createHistogram(name: string, options?: object): { record(value: number, attributes?: TelemetryAttributes): void };
  /** Read when the meter collects. */
  createObservableCounter(name: string, options?: object): object;
  /** Read when the meter collects. */
  createObservableGauge(name: string, options?: object): object;
  /** Calls back at each collection. */
  // oxlint-disable-next-line typescript/no-explicit-any -- instruments of the meter's own types go back to it
  addBatchObservableCallback(callback: (result: any) => void | Promise<void>, observables: any[]): void;
  /** Takes the callback back. */
  // oxlint-disable-next-line typescript/no-explicit-any -- as above
  removeBatchObservableCallback(callback: (result: any) => void | Promise<void>, observables: any[]): void;
}

/** What is used of a Tracer of @opentelemetry/api. */
export interface TelemetryTracer {
  /** A child of the active span. */
  startSpan(name: string, options?: { attributes?: Record<string, string | number> }): TelemetrySpan;
}

/** What is used of its spans. */
interface TelemetrySpan {
  /** Says that it failed. */
  setStatus(status: { code: number; message?: string }): unknown;
  /** Says why. */
  recordException(exception: Error): void;
  /** When the call or transfer has ended. */
  end(): void;
}

/** The meter and the tracer that metrics and spans go to; either may be left out. */
export interface TelemetryOptions {
  readonly meter?: TelemetryMeter;
  readonly tracer?: TelemetryTracer;
}

interface ObservableResult {
  observe(instrument: object, value: number, attributes: TelemetryAttributes): void;
}

const optionNames: OptionNames<TelemetryOptions> = { meter: true, tracer: true };
/** SpanStatusCode.ERROR. */
const ERROR = 2;

/**
 * From now on times of this thread go to histograms of the meter, counters and gauges are there when it collects, and each
 * collective call and transfer of an agent is a span of the tracer. Begins collecting as the setting `metrics` does.
 * Returns how to end it.
 * @param options Meter and tracer of the program.
 */
export function bridgeOpenTelemetry(options: TelemetryOptions): () => void {
  checkOptions(options, optionNames, 'options of bridgeOpenTelemetry');
  const { meter, tracer } = options;
  requireCall('meter', meter, 'createHistogram');
  requireCall('tracer', tracer, 'startSpan');
  const ends = [meter === undefined ? [] : bridgeMeter(meter), tracer === undefined ? [] : bridgeTracer(tracer)].flat();
  return () => {
    for (const end of ends) end();
  };
}

function bridgeMeter(meter: TelemetryMeter): (() => void)[] {
  const instruments = new Map<string, object>();
  const histograms = new Map<MetricName, ReturnType<TelemetryMeter['createHistogram']>>();
  for (const [name, { kind, help: description }] of Object.entries(metricTable)) {
    if (kind === 'histogram') {
      const advice = { explicitBucketBoundaries: [...secondBounds] };
      histograms.set(name as MetricName, meter.createHistogram(name, { description, unit: 's', advice }));
    } else if (kind === 'gauge') instruments.set(name, meter.createObservableGauge(name, { description }));
    else {
      // OpenTelemetry has no summaries that can be observed.
      for (const part of kind === 'summary' ? [`${name}_sum`, `${name}_count`] : [name])
        instruments.set(part, meter.createObservableCounter(part, { description }));
    }
  }
  const observables = [...instruments.values()];
  const observe = async (result: ObservableResult): Promise<void> => {
    for (const { name, kind, series } of (await readMetrics()).metrics) {
      if (kind === 'histogram') continue;
      for (const { labels, value, sum, count } of series) {
        const values = kind === 'summary' ? { [`${name}_sum`]: sum, [`${name}_count`]: count } : { [name]: value };
        for (const [part, amount = 0] of Object.entries(values)) result.observe(instruments.get(part)!, amount, labels);
      }
    }
  };
  meter.addBatchObservableCallback(observe, observables);
  const unlisten = collect().sink.listen((name, labels, seconds) => {
    const names = metricTable[name].labels;
    histograms.get(name)?.record(seconds, Object.fromEntries(names.map((label, at) => [label, labels[at] ?? ''])));
  });
  return [unlisten, () => meter.removeBatchObservableCallback(observe, observables)];
}

function bridgeTracer(tracer: TelemetryTracer): (() => void)[] {
  return tracingChannelNames.map((name) => {
    const spans = new WeakMap<object, TelemetrySpan>();
    const subscribers = {
      start(context: object): void {
        spans.set(context, tracer.startSpan(name.replace(':', '.'), { attributes: attributesOf(context) }));
      },
      end(): void {},
      asyncStart(): void {},
      asyncEnd(context: object): void {
        spans.get(context)?.end();
        spans.delete(context);
      },
      error(context: object): void {
        const { error } = context as { readonly error?: unknown };
        const failure = error instanceof Error ? error : new Error(String(error));
        spans.get(context)?.recordException(failure);
        spans.get(context)?.setStatus({ code: ERROR, message: failure.message });
      },
    };
    const channel = tracingChannel<unknown, object>(name);
    channel.subscribe(subscribers);
    return () => channel.unsubscribe(subscribers);
  });
}

function attributesOf(told: object): Record<string, string | number> {
  if ('backend' in told) {
    const { agent, peer, operation, backend, bytes } = told as TransferContext;
    return {
      'weftline.agent': agent,
      'weftline.peer': peer,
      'weftline.operation': operation,
      'weftline.backend': backend,
      'weftline.bytes': bytes,
    };
  }
  const { object, call, number, ranks } = told as CallContext;
  return {
    'weftline.object': object,
    'weftline.call': call,
    'weftline.number': number,
    'weftline.ranks': ranks.length,
  };
}

function requireCall(name: string, given: unknown, call: string): void {
  if (given === undefined) return;
  const { [call]: known } = (typeof given === 'object' && given !== null ? given : {}) as Record<string, unknown>;
  if (typeof known !== 'function') throw invalidArgument(name, given, `a ${name} of OpenTelemetry`);
}
