// How two endpoints meet over TCP: proof of the token both ways, agents and connection numbers.
import { z } from 'zod';
import { ENDPOINT_VERSION } from '../../abi/endpoint-message.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ControlChannel, ControlFrame } from '../../meeting/control-channel.ts';
import { createNonce, keyedProof, sameProof } from '../../meeting/proof.ts';

const PROTOCOL_NAME = 'weftline-endpoint';

export interface GreetingOptions {
  readonly token: string;
  readonly gpuIndex: number;
  /** This side's number of the connection. */
  readonly connection: number;
  /** Of the agent, without regions. */
  readonly metadata: Uint8Array;
}

export interface Greeting {
  readonly gpuIndex: number;
  readonly connection: number;
  readonly metadata: Uint8Array;
}

const challenge = z.object({
  protocol: z.literal(PROTOCOL_NAME),
  version: z.literal(ENDPOINT_VERSION),
  nonce: z.string(),
});
const introduction = z.object({
  proof: z.string(),
  gpuIndex: z.number().int().nonnegative(),
  connection: z.number().int().nonnegative(),
  metadata: z.string(),
});
const hello = introduction.extend({ nonce: z.string() });

/** The side that was called. Refuses strangers with the reason, and throws it. */
export async function receiveGuest(channel: ControlChannel, options: GreetingOptions): Promise<Greeting> {
  try {
    const nonce = createNonce();
    channel.send({ protocol: PROTOCOL_NAME, version: ENDPOINT_VERSION, nonce });
    const guest = parse(hello, await channel.receive('greeting'));
    if (!sameProof(keyedProof(options.token, ['client', nonce, guest.nonce]), guest.proof)) throw unauthorized();
    channel.send(introduce(options, keyedProof(options.token, ['server', nonce, guest.nonce])));
    return greeting(guest);
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

/** The side that calls. */
export async function visitHost(channel: ControlChannel, options: GreetingOptions): Promise<Greeting> {
  try {
    const { nonce } = parse(challenge, await channel.receive('greeting'));
    const own = createNonce();
    channel.send({ ...introduce(options, keyedProof(options.token, ['client', nonce, own])), nonce: own });
    const host = parse(introduction, await channel.receive('answer'));
    if (!sameProof(keyedProof(options.token, ['server', nonce, own]), host.proof)) throw unauthorized();
    return greeting(host);
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

function introduce({ gpuIndex, connection, metadata }: GreetingOptions, proof: string): ControlFrame {
  return { proof, gpuIndex, connection, metadata: Buffer.from(metadata).toString('base64') };
}

function greeting({ gpuIndex, connection, metadata }: z.infer<typeof introduction>): Greeting {
  return { gpuIndex, connection, metadata: new Uint8Array(Buffer.from(metadata, 'base64')) };
}

function parse<T>(schema: z.ZodType<T>, frame: ControlFrame): T {
  const { success, data, error } = schema.safeParse(frame);
  if (success) return data;
  throw new WeftlineError('WL_PROTOCOL', `The other side is no endpoint of this version: ${error.issues[0]?.message}`);
}

function unauthorized(): WeftlineError {
  return new WeftlineError(
    'WL_UNAUTHORIZED',
    'The endpoints do not hold the same token (WEFTLINE_TOKEN, or the option token)',
  );
}
