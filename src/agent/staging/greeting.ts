// What staging threads tell each other beside pieces, as notifications of their backends: how rings are met and left.
import { z } from '#zod';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';

const whole = z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER);
const bytes = z.base64().transform((text): Uint8Array => new Uint8Array(Buffer.from(text, 'base64')));

/** Of the side that sends pieces: its ring, to which answers go, and how it is reached. */
const hello = z.object({
  is: z.literal('hello'),
  lane: whole,
  incarnation: z.string(),
  host: z.string(),
  process: whole,
  connectionInfo: bytes,
  ring: bytes,
  slots: whole,
  /** Between which the slots are dealt out. */
  channels: whole,
  pieceBytes: whole,
  /** How long the sender waits for the welcome. */
  timeoutMs: whole,
});
/** Of the side that takes pieces: its ring. */
const welcome = z.object({ is: z.literal('welcome'), lane: whole, ring: bytes });
/** `lane` is the number of the side that sends pieces; `from` says whose it is: of who says goodbye, or of who hears it. */
const goodbye = z.object({
  is: z.literal('goodbye'),
  lane: whole,
  from: z.enum(['sender', 'receiver']),
  code: z.string(),
  message: z.string(),
});

const greeting = z.discriminatedUnion('is', [hello, welcome, goodbye]);

type Greeting = z.infer<typeof greeting>;
export type Hello = Extract<Greeting, { is: 'hello' }>;

export function encodeGreeting(words: Greeting): Uint8Array {
  const plain = Object.entries(words).map(([name, value]) => [
    name,
    value instanceof Uint8Array ? Buffer.from(value).toString('base64') : value,
  ]);
  return Buffer.from(JSON.stringify(Object.fromEntries(plain)));
}

/** Fails with WL_PROTOCOL for anything else. */
export function decodeGreeting(message: Uint8Array, peer: string): Greeting {
  try {
    return greeting.parse(JSON.parse(Buffer.from(message).toString('utf8')));
  } catch (cause) {
    throw new WeftlineError('WL_PROTOCOL', `The staging thread of ${peer} sent what is no greeting`, { cause });
  }
}

export function goodbyeOf(lane: number, from: 'sender' | 'receiver', error: unknown): Greeting {
  const { code, message } = encodeError(error);
  return { is: 'goodbye', lane, from, code, message };
}

/** Why the other side has left. */
export function reasonOf({ code, message }: { readonly code: string; readonly message: string }): WeftlineError {
  return decodeError({ code, message, details: {} } as EncodedError);
}
