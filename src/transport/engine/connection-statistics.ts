// Counters of a connection, and how a user sees them.
import type { Connection } from './connection.ts';
import type { ConnectionStatistics, PathStatistics } from './transport-engine.ts';

/** Written by whoever does what is counted. */
export interface Counters {
  sentSegments: number;
  sentBytes: number;
  retransmittedSegments: number;
  receivedSegments: number;
  receivedBytes: number;
  duplicateSegments: number;
  sentAcks: number;
  receivedAcks: number;
  timeouts: number;
  probes: number;
}

export function createCounters(): Counters {
  return {
    sentSegments: 0,
    sentBytes: 0,
    retransmittedSegments: 0,
    receivedSegments: 0,
    receivedBytes: 0,
    duplicateSegments: 0,
    sentAcks: 0,
    receivedAcks: 0,
    timeouts: 0,
    probes: 0,
  };
}

/** A copy of the counters as they stand. */
export function connectionStatistics(connection: Connection): ConnectionStatistics {
  const { counters, paths } = connection;
  return {
    ...counters,
    paths: Array.from({ length: paths.count }, (_, path) => pathStatistics(connection, path)),
  };
}

function pathStatistics({ paths, bursts, congestion, engine }: Connection, path: number): PathStatistics {
  const window = congestion[engine.settings.perPath && congestion.length > 1 ? path : 0];
  return {
    path,
    alive: paths.alive[path] === 1,
    smoothedRtt: paths.rtt[path]!,
    sentSegments: paths.sentSegments[path]!,
    lostSegments: paths.lostSegments[path]!,
    inFlightBytes: bursts.pathBytes[path]!,
    windowBytes: window?.windowBytes ?? Number.POSITIVE_INFINITY,
  };
}
