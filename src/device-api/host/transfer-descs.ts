// Ranges of registered memory as bytes for a peer, who makes requests from them: serialised transfer descriptors.
import { z } from '#zod';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';

const rangeSchema = z.object({
  /** Of the owner's registered memory, as its metadata numbers it. */
  region: z.number().int().nonnegative(),
  offset: z.number().int().nonnegative(),
  bytes: z.number().int().positive(),
  /** How another process of the host maps the GPU memory; the range begins `offset` behind the allocation's start. */
  ipc: z
    .object({ handle: z.string(), offset: z.number().int().nonnegative(), bytes: z.number().int().positive() })
    .optional(),
});

const descsSchema = z.object({
  schema: z.literal('weftline.descs/1'),
  agent: z.string(),
  /** Tells hosts apart: memory is mapped only on the same one. */
  host: z.string(),
  process: z.number().int(),
  ranges: z.array(rangeSchema).min(1),
});

export type DescRange = z.infer<typeof rangeSchema>;
export type TransferDescs = Omit<z.infer<typeof descsSchema>, 'schema'>;

export function encodeDescs(descs: TransferDescs): Uint8Array {
  return Buffer.from(JSON.stringify({ schema: 'weftline.descs/1', ...descs }));
}

/** Fails with WL_PROTOCOL for bytes that are none, WL_INVALID_ARGUMENT for what is not bytes. */
export function decodeDescs(bytes: Uint8Array): TransferDescs {
  if (!(bytes instanceof Uint8Array)) {
    throw invalidArgument('remoteDescs', bytes, 'the Uint8Array that serializeXferDescs() of the peer returned');
  }
  try {
    return descsSchema.parse(JSON.parse(Buffer.from(bytes).toString('utf8')));
  } catch (cause) {
    throw new WeftlineError(
      'WL_PROTOCOL',
      `${bytes.length} bytes are no transfer descriptors: pass what serializeXferDescs() of the peer returned`,
      { cause },
    );
  }
}
