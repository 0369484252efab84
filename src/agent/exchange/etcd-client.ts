// Requests to etcd through the JSON gateway of its version 3 interface.
import { z } from 'zod';
import { WeftlineError } from '../../core/errors.ts';
import { printable } from '../../core/quote.ts';

export interface EtcdClientOptions {
  readonly endpoint: string;
  /** Of one request. */
  readonly requestMs: number;
}

const rangeAnswer = z.object({ kvs: z.array(z.object({ value: z.string().optional() })).optional() });
const leaseAnswer = z.object({ ID: z.string() });
/** Without a time to live, the lease has expired. */
const keepAliveAnswer = z.object({ result: z.object({ TTL: z.string().optional() }) });

/** Each call fails with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if something else answers. */
export class EtcdClient {
  readonly #options: EtcdClientOptions;

  constructor(options: EtcdClientOptions) {
    this.#options = options;
  }

  /** Undefined if there is none. */
  async get(key: string, signal?: AbortSignal): Promise<Uint8Array | undefined> {
    const { kvs } = check(rangeAnswer, await this.#ask('kv/range', { key: encode(key) }, signal));
    const value = kvs?.[0]?.value;
    return value === undefined ? undefined : new Uint8Array(Buffer.from(value, 'base64'));
  }

  /** The key goes when the lease does. */
  async put(key: string, value: Uint8Array, lease: string): Promise<void> {
    await this.#ask('kv/put', { key: encode(key), value: Buffer.from(value).toString('base64'), lease });
  }

  async delete(key: string): Promise<void> {
    await this.#ask('kv/deleterange', { key: encode(key) });
  }

  /** Returns the lease's name. */
  async grant(seconds: number): Promise<string> {
    return check(leaseAnswer, await this.#ask('lease/grant', { TTL: seconds })).ID;
  }

  /** False if it has expired. */
  async keepAlive(lease: string): Promise<boolean> {
    const { TTL = '0' } = check(keepAliveAnswer, await this.#ask('lease/keepalive', { ID: lease })).result;
    return Number(TTL) > 0;
  }

  async revoke(lease: string): Promise<void> {
    await this.#ask('lease/revoke', { ID: lease });
  }

  async #ask(path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    const { endpoint, requestMs } = this.#options;
    const url = new URL(`/v3/${path}`, endpoint);
    const deadline = AbortSignal.timeout(requestMs);
    let answer: Response;
    let text: string;
    try {
      answer = await fetch(url, {
        method: 'POST',
        body: JSON.stringify(body),
        signal: signal === undefined ? deadline : AbortSignal.any([deadline, signal]),
      });
      text = await answer.text();
    } catch (cause) {
      signal?.throwIfAborted();
      const why = deadline.aborted ? `no answer within ${requestMs} ms` : String((cause as Error).cause ?? cause);
      throw new WeftlineError('WL_PEER_LOST', `Cannot reach etcd at ${url.origin}: ${why}`, {
        details: { endpoint: url.origin },
        cause,
      });
    }
    if (!answer.ok) throw notEtcd(url, `status ${answer.status}: ${printable(text, 200)}`);
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw notEtcd(url, 'an answer that is not JSON');
    }
  }
}

function encode(key: string): string {
  return Buffer.from(key).toString('base64');
}

function check<T>(schema: z.ZodType<T>, answer: unknown): T {
  const parsed = schema.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new WeftlineError('WL_PROTOCOL', 'etcd answered a request with something else');
}

function notEtcd(url: URL, what: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `${url.href} does not answer as etcd does: ${what}`, {
    details: { url: url.href },
  });
}
