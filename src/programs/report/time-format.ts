// How measured times and their spread are written.
import type { Summary } from '../bench/statistics.ts';

/** Quartiles: "31.3 ms to 33.3 ms". */
export function spread(summary: Summary, show: (value: number) => string): string {
  return `${show(summary.p25)} to ${show(summary.p75)}`;
}

/** Three significant digits or so: "85 µs", "1.92 ms", "104 ms". */
export function formatTime(microseconds: number): string {
  const size = Math.abs(microseconds);
  if (size < 1000) return `${microseconds.toFixed(0)} µs`;
  if (size < 10_000) return `${(microseconds / 1000).toFixed(2)} ms`;
  if (size < 100_000) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1000).toFixed(0)} ms`;
}
