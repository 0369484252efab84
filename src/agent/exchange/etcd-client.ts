// Requests to etcd through the JSON gateway of its version 3 interface.
import { z } from '#zod';
import type { Deadline } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { printable } from '../../core/quote.ts';

/** Until when a request is answered; several may share a deadline. */
export interface EtcdWait {
  readonly deadline: Deadline;
  readonly signal?: AbortSignal | undefined;
}

const rangeAnswer = z.object({ kvs: z.array(z.object({ value: z.string().optional() })).optional() });
const leaseAnswer = z.object({ ID: z.string() });
/** Without a time to live, the lease has expired. */
const keepAliveAnswer = z.object({ result: z.object({ TTL: z.string().optional() }) });

/** Each call fails with WL_PEER_LOST if etcd cannot be reached, WL_PROTOCOL if something else answers. */
export class EtcdClient {
  /** Such as "http://10.0.0.7:2379". */
  readonly origin: string;

  /** Fails with WL_INVALID_ARGUMENT for an endpoint that is no origin of http or https. */
  constructor(endpoint: string) {
    this.origin = originOf(endpoint);
  }

  /** Undefined if there is none. */
  async get(key: string, wait: EtcdWait): Promise<Uint8Array | undefined> {
    const { kvs } = check(rangeAnswer, await this.#ask('kv/range', { key: encode(key) }, wait));
    const value = kvs?.[0]?.value;
    return value === undefined ? undefined : new Uint8Array(Buffer.from(value, 'base64'));
  }

  /** The key goes when the lease does. */
  async put(key: string, what: { readonly value: Uint8Array; readonly lease: string }, wait: EtcdWait): Promise<void> {
    const value = Buffer.from(what.value).toString('base64');
    await this.#ask('kv/put', { key: encode(key), value, lease: what.lease }, wait);
  }

  async delete(key: string, wait: EtcdWait): Promise<void> {
    await this.#ask('kv/deleterange', { key: encode(key) }, wait);
  }

  /** Returns the lease's name. */
  async grant(seconds: number, wait: EtcdWait): Promise<string> {
    return check(leaseAnswer, await this.#ask('lease/grant', { TTL: seconds }, wait)).ID;
  }

  /** False if it has expired. */
  async keepAlive(lease: string, wait: EtcdWait): Promise<boolean> {
    const { TTL = '0' } = check(keepAliveAnswer, await this.#ask('lease/keepalive', { ID: lease }, wait)).result;
    return Number(TTL) > 0;
  }

  async revoke(lease: string, wait: EtcdWait): Promise<void> {
    await this.#ask('lease/revoke', { ID: lease }, wait);
  }

  async #ask(path: string, body: unknown, { deadline, signal }: EtcdWait): Promise<unknown> {
    const url = new URL(`/v3/${path}`, this.origin);
    const late = AbortSignal.timeout(Math.ceil(deadline.leftMs));
    let answer: Response;
    let text: string;
    try {
      answer = await fetch(url, {
        method: 'POST',
        body: JSON.stringify(body),
        signal: signal === undefined ? late : AbortSignal.any([late, signal]),
      });
      text = await answer.text();
    } catch (cause) {
      signal?.throwIfAborted();
      const why = late.aborted ? `no answer within ${deadline.timeoutMs} ms` : String((cause as Error).cause ?? cause);
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

/** Credentials are refused, and not shown: fetch() takes no URL with them, and its error would quote them. */
function originOf(endpoint: unknown): string {
  const expected = 'http or https, a host and a port, such as "http://10.0.0.7:2379", without user, password and path';
  const url = typeof endpoint === 'string' && URL.canParse(endpoint) ? new URL(endpoint) : undefined;
  const isHttp = url !== undefined && (url.protocol === 'http:' || url.protocol === 'https:');
  // A URL that has more than an origin differs from it: user, password, path, query or fragment.
  if (isHttp && url.href === `${url.origin}/`) return url.origin;
  const shown = typeof endpoint === 'string' ? endpoint.replace(/^.*@/s, '…@').replace(/[?#].*$/s, '…') : endpoint;
  throw invalidArgument('endpoint', shown, expected);
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
