// The setting `metrics`: where metrics are served, or that they are collected alone.
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';

export interface MetricsAddress {
  readonly host: string;
  /** Of the first rank of a machine; 0 for any. */
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
