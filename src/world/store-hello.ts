// What a rank and the store of rank 0 say of themselves in the hello of their connection.
import { WeftlineError } from '../core/errors.ts';
import type { Credentials } from '../meeting/credentials.ts';
import { protocolError } from '../meeting/frames.ts';
import type { HelloBody, HelloOptions } from '../meeting/hello.ts';

const VERSION = 2;
const MAX_HOST_LENGTH = 255;

/** What a rank says. */
export interface RankIntroduction {
  readonly rank: number;
  readonly size: number;
  readonly pid: number;
  readonly host: string;
}

export function storeHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-store', version: VERSION, credentials };
}

/** Fails with WL_PROTOCOL for anything else, WL_CONFIG_MISMATCH for a rank of a world of another size. */
export function readRank(body: HelloBody, size: number): RankIntroduction {
  const { rank, pid, host } = body;
  if (typeof rank !== 'number' || typeof body['size'] !== 'number') {
    throw protocolError('a greeting without rank and size');
  }
  if (body['size'] !== size || !Number.isInteger(rank) || rank < 0 || rank >= size) {
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `Rank ${rank} of a world of ${body['size']} cannot join: rank 0 was started for a world of ${size}`,
      { details: { rank, size: body['size'], expected: size } },
    );
  }
  return { rank, size, pid: Number(pid), host: String(host).slice(0, MAX_HOST_LENGTH) };
}
