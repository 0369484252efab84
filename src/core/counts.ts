// What expert parallelism and failed calls have counted on this thread. Hot path: an addition in one array for each.
import { type ErrorCode, WeftlineError } from './errors.ts';
import { addSamples, type Sample } from './metric-table.ts';

const epModes = ['buffer', 'layer', 'low_latency'] as const;
export type EpMode = (typeof epModes)[number];
const ops = ['dispatch', 'combine'] as const;
export type EpOp = (typeof ops)[number];
const links = ['self', 'host', 'network'] as const;
export type EpLink = (typeof links)[number];
const policies = ['drop', 'fail'] as const;

const bytes = new Float64Array(ops.length * links.length);
const tokens = new Float64Array(ops.length * epModes.length);
const overflows = new Float64Array(policies.length);
const imbalances = new Float64Array(epModes.length);
const counters = [bytes, tokens, overflows, imbalances];
const errors = new Map<ErrorCode, number>();

/** Hot path. */
export function countRowBytes(op: EpOp, link: EpLink, count: number): void {
  bytes[ops.indexOf(op) * links.length + links.indexOf(link)]! += count;
}

/** Hot path. */
export function countTokens(op: EpOp, mode: EpMode, count: number): void {
  tokens[ops.indexOf(op) * epModes.length + epModes.indexOf(mode)]! += count;
}

export function countOverflow(policy: (typeof policies)[number], rows: number): void {
  overflows[policies.indexOf(policy)]! += rows;
}

/** Hot path. `rows`: from place `first` on, what each of `ranks` ranks received. */
export function noteImbalance(mode: EpMode, rows: ArrayLike<number>, ranks: number, first = 0): void {
  let [most, all] = [0, 0];
  for (let at = first; at < first + ranks; at++) {
    most = Math.max(most, rows[at]!);
    all += rows[at]!;
  }
  imbalances[epModes.indexOf(mode)] = all === 0 ? 1 : (most * ranks) / all;
}

/** Runs work that no caller has asked for: the counters of rows and tokens are then what they were before it. */
export async function withoutCounts<T>(work: () => Promise<T>): Promise<T> {
  const before = counters.map((counts) => counts.slice());
  try {
    return await work();
  } finally {
    for (const [at, counts] of counters.entries()) counts.set(before[at]!);
  }
}

/** A call or a transfer has failed. */
export function countError(error: unknown): void {
  const code = error instanceof WeftlineError ? error.code : 'WL_INTERNAL';
  errors.set(code, (errors.get(code) ?? 0) + 1);
}

/** The samples hold only what has been counted: series that stay at zero say nothing. */
addSamples(() => {
  const samples: Sample[] = [];
  for (const [at, op] of ops.entries()) {
    for (const [index, link] of links.entries()) {
      add(samples, { name: 'weftline_ep_bytes_total', labels: [op, link], value: bytes[at * links.length + index]! });
    }
    for (const [index, mode] of epModes.entries()) {
      const value = tokens[at * epModes.length + index]!;
      add(samples, { name: 'weftline_ep_tokens_total', labels: [op, mode], value });
    }
  }
  for (const [at, mode] of epModes.entries())
    add(samples, { name: 'weftline_ep_imbalance_ratio', labels: [mode], value: imbalances[at]! });
  for (const [at, policy] of policies.entries())
    add(samples, { name: 'weftline_ep_overflow_total', labels: [policy], value: overflows[at]! });
  for (const [code, value] of errors) samples.push({ name: 'weftline_errors_total', labels: [code], value });
  return samples;
});

function add(samples: Sample[], sample: Sample): void {
  if (sample.value > 0) samples.push(sample);
}
