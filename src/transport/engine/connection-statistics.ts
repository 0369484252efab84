// Counters of a connection, and how a user sees them.
import type { PathTable } from '../paths/path-table.ts';
import type { SendSide } from '../send/send-side.ts';
import type { ConnectionStatistics, PathStatistics } from './transport-engine.ts';

/** Each count is written by the code that does what is counted. */
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

interface Counted {
  readonly counters: Counters;
  readonly paths: PathTable;
  readonly send: SendSide;
}

/** A copy of the counters as they stand; `perPath`: each path has a congestion window of its own. */
export function connectionStatistics(counted: Counted, perPath: boolean): ConnectionStatistics {
  const { counters, paths } = counted;
  return {
    ...counters,
    paths: Array.from({ length: paths.count }, (_, path) => pathStatistics(counted, path, perPath)),
  };
}

function pathStatistics({ paths, send }: Counted, path: number, perPath: boolean): PathStatistics {
  const { bursts, congestion } = send;
  const window = congestion[perPath && congestion.length > 1 ? path : 0];
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
