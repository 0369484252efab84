// What agents that exchange metadata ask of each other over a connection, once both have proven themselves.
import { quote } from '../../core/quote.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { type FrameLimits, protocolError } from '../../meeting/frames.ts';
import type { HelloOptions } from '../../meeting/hello.ts';

const VERSION = 2;
/** Metadata of tens of thousands of regions. */
const metadataLimits: FrameLimits = { headerBytes: 4096, payloadBytes: 64 << 20 };

/** What one side asks of the other: take these metadata, give yours, forget an agent. */
export type MetadataRequest =
  | { readonly verb: 'load'; readonly blob: Uint8Array }
  | { readonly verb: 'fetch' }
  | { readonly verb: 'invalidate'; readonly name: string };

interface MetadataAnswer {
  readonly name: string;
  /** The answer to a fetch. */
  readonly blob: Uint8Array | undefined;
}

export function metadataHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-agent', version: VERSION, credentials };
}

export class MetadataChannel {
  readonly #channel: ControlChannel;

  /** Of a connection whose other end has proven itself. */
  constructor(channel: ControlChannel) {
    this.#channel = channel;
    channel.limits = metadataLimits;
  }

  /** Fails with what the other side answers if it cannot do it. */
  async ask(request: MetadataRequest): Promise<MetadataAnswer> {
    if (request.verb === 'load') this.#channel.send({ verb: 'load' }, [request.blob]);
    else this.#channel.send(request);
    const { header, parts } = await this.#channel.receiveFrame('answer');
    if (typeof header['name'] !== 'string') throw protocolError('an answer without a name');
    return { name: header['name'], blob: parts[0] };
  }

  /** The next request, or undefined when the other side has no more. */
  async nextRequest(): Promise<MetadataRequest | undefined> {
    const { header, parts } = await this.#channel.receiveFrame('request');
    const { verb, name } = header;
    if (verb === 'bye') return undefined;
    if (verb === 'load' && parts[0] !== undefined) return { verb, blob: parts[0] };
    if (verb === 'fetch') return { verb };
    if (verb === 'invalidate' && typeof name === 'string') return { verb, name };
    throw protocolError(verb === undefined ? 'a request without a verb' : `a request ${quote(verb, 40)}`);
  }

  answer(name: string, ...parts: readonly Uint8Array[]): void {
    this.#channel.send({ name }, parts);
  }

  /** No more requests follow. */
  end(): void {
    this.#channel.send({ verb: 'bye' });
  }
}
