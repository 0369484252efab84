// weftline/metrics: metrics of this process as data, tracing channels, OpenTelemetry.
import { collect } from './read-metrics.ts';

export { readMetrics, type MetricFamily, type MetricSeries, type MetricsSnapshot } from './read-metrics.ts';
export type { LastCall } from './metrics-sink.ts';
export type { CallLabel } from './metrics-sink.ts';
export { metricTable, type MetricKind, type MetricName } from '../core/metric-table.ts';
export { type CallContext, tracingChannelNames, type TransferContext } from '../core/call-channels.ts';
export {
  bridgeOpenTelemetry,
  type TelemetryAttributes,
  type TelemetryMeter,
  type TelemetryOptions,
  type TelemetrySpan,
  type TelemetryTracer,
} from './open-telemetry.ts';

/** From now on times of calls, waits and transfers of this thread are collected, as with the setting `metrics`. Idempotent. */
export function collectMetrics(): void {
  collect();
}
