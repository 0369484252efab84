// What two endpoints say of themselves in the hello of their connection: agents and connection numbers.
import { z } from '#zod';
import { ENDPOINT_VERSION } from '../../abi/endpoint-message.ts';
import { printable } from '../../core/quote.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { protocolError } from '../../meeting/frames.ts';
import type { HelloBody, HelloOptions } from '../../meeting/hello.ts';

export interface Introduction {
  readonly gpuIndex: number;
  /** This side's number of the connection. */
  readonly connection: number;
  /** Of the agent, without regions. */
  readonly metadata: Uint8Array;
}

const introduction = z.object({
  gpuIndex: z.number().int().nonnegative(),
  connection: z.number().int().nonnegative(),
  metadata: z.string(),
});

export function endpointHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-endpoint', version: ENDPOINT_VERSION, credentials };
}

export function introduce({ gpuIndex, connection, metadata }: Introduction): HelloBody {
  return { gpuIndex, connection, metadata: Buffer.from(metadata).toString('base64') };
}

/** Fails with WL_PROTOCOL for anything else. */
export function readIntroduction(body: HelloBody): Introduction {
  const { success, data, error } = introduction.safeParse(body);
  if (!success)
    throw protocolError(`a greeting that is not one of an endpoint: ${printable(error.issues[0]?.message ?? '')}`);
  // A copy: a Buffer of the pool shares its memory with others.
  return { ...data, metadata: Uint8Array.from(Buffer.from(data.metadata, 'base64')) };
}
