// Metadata in etcd, through the JSON gateway of its version 3 interface.
import { z } from 'zod';
import { WeftlineError } from '../../core/errors.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { MetadataStore } from './metadata-store.ts';

export interface EtcdOptions {
  /** Such as "http://10.0.0.7:2379". */
  readonly endpoint: string;
  /** Before each name; "/weftline/agents/" by default. */
  readonly prefix?: string;
  /** Of one request, in ms; 5000 by default. */
  readonly requestMs?: number;
}

const REQUEST_MS = 5000;
const FIRST_PAUSE_MS = 20;
const LAST_PAUSE_MS = 500;

const rangeAnswer = z.object({ kvs: z.array(z.object({ value: z.string().optional() })).optional() });

/** Fails with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if something else answers. */
export function etcdMetadataStore({
  endpoint,
  prefix = '/weftline/agents/',
  requestMs = REQUEST_MS,
}: EtcdOptions): MetadataStore {
  const keyOf = (name: string): string => Buffer.from(prefix + name).toString('base64');
  const ask = (path: string, body: unknown, signal?: AbortSignal): Promise<unknown> =>
    request(new URL(`/v3/kv/${path}`, endpoint), body, { requestMs, signal });
  return {
    put: async (name, blob) => {
      await ask('put', { key: keyOf(name), value: Buffer.from(blob).toString('base64') });
    },
    delete: async (name) => {
      await ask('deleterange', { key: keyOf(name) });
    },
    get: async (name, { timeoutMs = requestMs, signal }: WaitOptions) => {
      const end = performance.now() + timeoutMs;
      for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(LAST_PAUSE_MS, pause * 1.5)) {
        const { kvs } = parseRange(await ask('range', { key: keyOf(name) }, signal));
        const value = kvs?.[0]?.value;
        if (value !== undefined) return new Uint8Array(Buffer.from(value, 'base64'));
        if (performance.now() + pause > end) throw missing(name, endpoint, timeoutMs);
        await new Promise((resolve) => setTimeout(resolve, pause));
        signal?.throwIfAborted();
      }
    },
  };
}

interface RequestOptions {
  readonly requestMs: number;
  readonly signal: AbortSignal | undefined;
}

async function request(url: URL, body: unknown, { requestMs, signal }: RequestOptions): Promise<unknown> {
  const deadline = AbortSignal.timeout(requestMs);
  let answer: Response;
  try {
    answer = await fetch(url, {
      method: 'POST',
      body: JSON.stringify(body),
      signal: signal === undefined ? deadline : AbortSignal.any([deadline, signal]),
    });
  } catch (cause) {
    signal?.throwIfAborted();
    const why = deadline.aborted ? `no answer within ${requestMs} ms` : String((cause as Error).cause ?? cause);
    throw new WeftlineError('WL_PEER_LOST', `Cannot reach etcd at ${url.origin}: ${why}`, {
      details: { endpoint: url.origin },
      cause,
    });
  }
  const text = await answer.text();
  if (!answer.ok) throw notEtcd(url, `status ${answer.status}: ${text.slice(0, 200)}`);
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw notEtcd(url, 'an answer that is not JSON');
  }
}

function parseRange(answer: unknown): z.infer<typeof rangeAnswer> {
  const parsed = rangeAnswer.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new WeftlineError('WL_PROTOCOL', 'etcd answered a range request with something else');
}

function notEtcd(url: URL, what: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `${url.href} does not answer as etcd does: ${what}`, {
    details: { url: url.href },
  });
}

function missing(name: string, endpoint: string, timeoutMs: number): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `Agent ${name} has published nothing in etcd at ${endpoint} within ${timeoutMs} ms`,
    {
      details: { peer: name, endpoint, timeoutMs },
    },
  );
}
