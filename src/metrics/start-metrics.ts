// Metrics of this process, if the setting `metrics` says so: collects them, and serves them where it says. Once per process.
import { hostname } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { WeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import type { Settings } from '../settings/settings.ts';
import { collect, readMetrics } from './read-metrics.ts';

/** A rank of a job, whose metrics are served. */
interface MeasuredRank {
  readonly rank: number;
  /** How many ranks of this machine are before it: its port is by so many higher. */
  readonly machineRank: number;
  readonly jobId: string;
}

const MAX_PORT = 65_535;

let place: MeasuredRank | undefined;
let serving: Promise<void> | undefined;

/** Fails with WL_CONFIG for a setting that is no address, or one where nothing can listen. */
export async function startMetrics({ metrics }: Pick<Settings, 'metrics'>, rank?: MeasuredRank): Promise<void> {
  place = rank ?? place;
  if (metrics === '' || !isMainThread) return;
  const address = readMetricsAddress(metrics);
  collect();
  if (address === undefined) return;
  const port = address.port === 0 ? 0 : address.port + (place?.machineRank ?? 0);
  if (port > MAX_PORT) {
    throw new WeftlineError(
      'WL_CONFIG',
      `Invalid setting metrics (WEFTLINE_METRICS): expected a port of which every rank of this machine finds its own, the first one plus its number there, at most ${MAX_PORT}; got ${metrics}, which is ${port} for rank ${place?.machineRank} of the machine`,
      { details: { setting: 'metrics', value: metrics, port } },
    );
  }
  serving ??= serve({ ...address, port });
  await serving;
}

async function serve(address: { readonly host: string; readonly port: number }): Promise<void> {
  const { serveMetrics } = await import('./metrics-server.ts');
  const port = await serveMetrics(address, async () => {
    // The module is not loaded before the first scrape: few jobs are scraped.
    const { contentType, prometheusOfRanks } = await import('./prometheus-text.ts');
    return {
      type: contentType,
      text: await prometheusOfRanks([{ labels: identityLabels(), ...(await readMetrics()) }]),
    };
  });
  log('world', 'info', `metrics are served on http://${address.host}:${port}/metrics`);
}

/** Labels of every series of this process. */
export function identityLabels(): Readonly<Record<string, string>> {
  const own = { hostname: hostname(), pid: String(process.pid) };
  if (place === undefined) return own;
  return { ...own, rank: String(place.rank), local_rank: String(place.machineRank), job_id: place.jobId };
}

/** Address at which the setting `metrics` says that metrics are served. */
interface MetricsAddress {
  readonly host: string;
  /** The port of the first rank of a machine; 0 for any. */
  readonly port: number;
}

/** undefined for "on". Fails with WL_CONFIG. */
export function readMetricsAddress(text: string): MetricsAddress | undefined {
  if (text === 'on') return undefined;
  const match = /^(?:\[([^\]\s]+)\]|([^:\s]+)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  const host = match?.[1] ?? match?.[2];
  if (host !== undefined && port < 65_536) return { host, port };
  throw new WeftlineError(
    'WL_CONFIG',
    `Invalid setting metrics (WEFTLINE_METRICS): expected HOST:PORT, such as 127.0.0.1:9400 or [::1]:9400, on, or nothing, got ${quote(text)}`,
    { details: { setting: 'metrics', value: text } },
  );
}
