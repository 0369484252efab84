// The clock of benchmarks: one time line for all processes of a host.

/** Microseconds since the host started (CLOCK_MONOTONIC), so that times of different ranks can be subtracted. */
export function monotonicMicroseconds(): number {
  return Number(process.hrtime.bigint()) / 1000;
}
