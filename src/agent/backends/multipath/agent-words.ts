// What two agents tell each other in the hello of their connection: who they are, whom they expect, where mailboxes lie.
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';

const mailbox = {
  region: z
    .number()
    .int()
    .nonnegative()
    .max(2 ** 32 - 1),
  key: z
    .number()
    .int()
    .nonnegative()
    .max(2 ** 32 - 1),
};

/** Of the agent that connects; `region` is its message ring. */
const hello = z.object({ name: z.string(), incarnation: z.string(), expects: z.string(), ...mailbox });
/** Of the agent that is connected to; `region` is its inbox. */
const welcome = z.object({ incarnation: z.string(), ...mailbox });

export type Hello = z.infer<typeof hello>;
export type Welcome = z.infer<typeof welcome>;

/** Fails with WL_PROTOCOL for anything else. */
export function readHello(words: unknown): Hello {
  return read(hello, words, 'A caller');
}

/** Fails with WL_PROTOCOL for anything else. */
export function readWelcome(words: unknown, peer: string): Welcome {
  return read(welcome, words, peer);
}

function read<T>(schema: z.ZodType<T>, words: unknown, peer: string): T {
  const { success, data } = schema.safeParse(words);
  if (success) return data;
  throw new WeftlineError('WL_PROTOCOL', `${peer} sent a greeting that is not one of an agent`);
}
