// What two agents tell each other over a fresh connection: who they are, whom they expect, where mailboxes lie.
import { z } from 'zod';
import { WeftlineError } from '../../../core/errors.ts';
import type { Connection, MemoryRegion, Transport } from '../../../transport/index.ts';

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
  return exchange(transport, connection, async (region) => {
    const answer = connection.receive({ region, flow: GREETING_FLOW, offset: GREETING_BYTES, bytes: GREETING_BYTES });
    // Unheard until it is waited for.
    const heard = transport.wait(answer, time);
    heard.catch(() => {});
    await send(transport, connection, region, words);
    return parse(welcome, region, await heard, connection.peerName);
  });
}

/** Hears who connected and answers with what `answer` makes of it. */
export async function receive(
  transport: Transport,
  connection: Connection,
  answer: (words: Hello) => Promise<Welcome>,
  time: GreetingTime,
): Promise<Hello> {
  return exchange(transport, connection, async (region) => {
    const request = connection.receive({ region, flow: GREETING_FLOW, offset: GREETING_BYTES, bytes: GREETING_BYTES });
    const bytes = await transport.wait(request, time);
    const words = parse(hello, region, bytes, connection.peerName);
    await send(transport, connection, region, await answer(words));
    return words;
  });
}

async function exchange<T>(
  transport: Transport,
  connection: Connection,
  talk: (region: MemoryRegion) => Promise<T>,
): Promise<T> {
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(2 * GREETING_BYTES)));
  try {
    return await talk(region);
  } catch (error) {
    // The connection's own reason says more than that of a request.
    throw connection.error ?? error;
  } finally {
    await transport.release(region);
  }
}

async function send(transport: Transport, connection: Connection, region: MemoryRegion, words: unknown): Promise<void> {
  const text = Buffer.from(JSON.stringify(words));
  region.bytes.set(text);
  await transport.wait(connection.send({ region, bytes: text.length, flow: GREETING_FLOW }));
}

function parse<T>(schema: z.ZodType<T>, region: MemoryRegion, bytes: number, peer: string): T {
  try {
    const text = Buffer.from(region.bytes.slice(GREETING_BYTES, GREETING_BYTES + bytes)).toString('utf8');
    return schema.parse(JSON.parse(text));
  } catch (cause) {
    throw new WeftlineError('WL_PROTOCOL', `${peer} sent a greeting that is not one of an agent`, { cause });
  }
}
