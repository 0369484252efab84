// weftline/metrics: metrics of this process as data, tracing channels, OpenTelemetry.
import { collect } from './read-metrics.ts';

export { type MetricFamily, type MetricsSnapshot, readMetrics } from './read-metrics.ts';
export type { LastCall } from './metrics-sink.ts';
export { type CallContext, tracingChannelNames, type TransferContext } from '../core/call-channels.ts';
export { bridgeOpenTelemetry, type TelemetryOptions } from './open-telemetry.ts';

/** Times of calls, waits and transfers of this thread are collected from now on, as with the setting `metrics`. Idempotent. */
export function collectMetrics(): void {
  collect();
}
