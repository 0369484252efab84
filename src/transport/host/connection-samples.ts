// The counters of a connection as samples of metrics.
import type { Sample } from '../../core/metric-table.ts';
import type { ConnectionStatistics } from '../engine/transport-engine.ts';

export function connectionSamples(
  peer: string,
  { sentBytes, receivedBytes, paths }: ConnectionStatistics,
): readonly Sample[] {
  return [
    { name: 'weftline_transport_sent_bytes_total', labels: [peer], value: sentBytes },
    { name: 'weftline_transport_received_bytes_total', labels: [peer], value: receivedBytes },
    ...paths.flatMap(({ path, smoothedRtt, sentSegments, lostSegments }): Sample[] => {
      const labels = [peer, String(path)];
      const rtt: Sample = { name: 'weftline_transport_rtt_seconds', labels, value: smoothedRtt / 1e6 };
      return [
        { name: 'weftline_transport_packets_total', labels, value: sentSegments },
        { name: 'weftline_transport_retransmits_total', labels, value: lostSegments },
        // Zero before the first measurement.
        ...(smoothedRtt > 0 ? [rtt] : []),
      ];
    }),
  ];
}
