// The counters of a connection over all its lanes.
import type { ConnectionStatistics } from '../engine/transport-engine.ts';
import type { HostStatistics, LaneStatistics } from './host-calls.ts';

/** `lanes`: at least one. Paths of later lanes are numbered on. */
export function addStatistics(lanes: readonly LaneStatistics[]): HostStatistics {
  const paths = lanes.flatMap(({ connection }) => connection.paths);
  return {
    connection: {
      ...(addCounters(lanes.map(({ connection }) => connection)) as Omit<ConnectionStatistics, 'paths'>),
      paths: paths.map((statistics, path) => ({ ...statistics, path })),
    },
    drops: addCounters(lanes.map(({ drops }) => drops)) as LaneStatistics['drops'],
    failures: addCounters(lanes.map(({ failures }) => failures)),
    lanes,
  };
}

function addCounters(objects: readonly object[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const object of objects) {
    for (const [name, value] of Object.entries(object)) {
      if (typeof value === 'number') sums[name] = (sums[name] ?? 0) + value;
    }
  }
  return sums;
}
