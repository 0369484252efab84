// What two agents tell each other over a fresh connection: who they are, whom they expect, where mailboxes lie.
import { z } from 'zod';
import { WeftlineError } from '../../../core/errors.ts';
import type { Connection, MemoryRegion, Request, Transport } from '../../../transport/index.ts';

/** The last of the transport's flows: nothing else uses it. */
const GREETING_FLOW = 65_535;
const GREETING_BYTES = 4096;

const mailbox = { region: z.number().int().nonnegative(), key: z.number().int().nonnegative() };

/** Of the agent that connects; `region` is its outbox. */
const hello = z.object({ name: z.string(), incarnation: z.string(), expects: z.string(), ...mailbox });
/** Of the agent that is connected to; `region` is its inbox. */
const welcome = z.object({ incarnation: z.string(), ...mailbox });

export type Hello = z.infer<typeof hello>;
export type Welcome = z.infer<typeof welcome>;

export interface GreetingTime {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
}

/** Says hello; resolves to the answer. */
export async function greet(
  transport: Transport,
  connection: Connection,
  words: Hello,
  time: GreetingTime,
): Promise<Welcome> {
  return exchange(transport, connection, async (talk) => {
    const answer = talk.listen();
    await talk.say(words, time);
    return talk.parse(welcome, await transport.wait(answer, time));
  });
}

/** Hears who connected and answers with what `answer` makes of it. */
export async function receive(
  transport: Transport,
  connection: Connection,
  answer: (words: Hello) => Promise<Welcome>,
  time: GreetingTime,
): Promise<Hello> {
  return exchange(transport, connection, async (talk) => {
    const words = talk.parse(hello, await transport.wait(talk.listen(), time));
    await talk.say(await answer(words), time);
    return words;
  });
}

async function exchange<T>(
  transport: Transport,
  connection: Connection,
  converse: (talk: Talk) => Promise<T>,
): Promise<T> {
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(2 * GREETING_BYTES)));
  const talk = new Talk(transport, connection, region);
  try {
    return await converse(talk);
  } catch (error) {
    // The connection's own reason says more than that of a request.
    throw connection.error ?? error;
  } finally {
    await transport.release(region);
    talk.forget();
  }
}

/** One message each way. */
class Talk {
  readonly #transport: Transport;
  readonly #connection: Connection;
  readonly #region: MemoryRegion;
  readonly #requests: Request[] = [];

  constructor(transport: Transport, connection: Connection, region: MemoryRegion) {
    this.#transport = transport;
    this.#connection = connection;
    this.#region = region;
  }

  listen(): Request {
    const place = { region: this.#region, flow: GREETING_FLOW, offset: GREETING_BYTES, bytes: GREETING_BYTES };
    return this.#note(this.#connection.receive(place));
  }

  async say(words: unknown, time: GreetingTime): Promise<void> {
    const text = Buffer.from(JSON.stringify(words));
    this.#region.bytes.set(text);
    const message = { region: this.#region, bytes: text.length, flow: GREETING_FLOW };
    await this.#transport.wait(this.#note(this.#connection.send(message)), time);
  }

  parse<T>(schema: z.ZodType<T>, bytes: number): T {
    try {
      const text = Buffer.from(this.#region.bytes.slice(GREETING_BYTES, GREETING_BYTES + bytes)).toString('utf8');
      return schema.parse(JSON.parse(text));
    } catch (cause) {
      const peer = this.#connection.peerName;
      throw new WeftlineError('WL_PROTOCOL', `${peer} sent a greeting that is not one of an agent`, { cause });
    }
  }

  /** The region is released, so that everything has ended: what nobody waited for to the end is given back. */
  forget(): void {
    for (const request of this.#requests) {
      try {
        this.#transport.take(request);
      } catch {
        // It was taken by whoever waited, or has failed, which that wait was not to hear of.
      }
    }
  }

  #note(request: Request): Request {
    this.#requests.push(request);
    return request;
  }
}
