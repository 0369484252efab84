// What a rank, a node's launcher and the store say of themselves in the hello of their connection.
import { WeftlineError } from '../core/errors.ts';
import type { Credentials } from '../meeting/credentials.ts';
import { protocolError } from '../meeting/frames.ts';
import type { HelloBody, HelloOptions } from '../meeting/hello.ts';

const VERSION = 3;
const MAX_HOST_LENGTH = 255;

/** Who takes part in a store: the ranks of the job, and the launchers of its nodes among themselves. */
export type MemberKind = 'rank' | 'node';

/** What a rank says, or a launcher of its node. */
interface RankIntroduction {
  readonly kind: MemberKind;
  readonly rank: number;
  readonly size: number;
  readonly pid: number;
  readonly host: string;
}

/** What somebody says who takes no part, but asks the members what they wait for. */
export const observerBody: HelloBody = { kind: 'observer' };

export function isObserver(body: HelloBody): boolean {
  return body['kind'] === observerBody['kind'];
}

export function storeHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-store', version: VERSION, credentials };
}

/**
 * Reads what a caller says; `sizes` holds how many members of each kind there are. Fails with WL_PROTOCOL for anything
 * else, WL_CONFIG_MISMATCH for a member of a job of another size.
 */
export function readRank(body: HelloBody, sizes: Readonly<Record<MemberKind, number>>): RankIntroduction {
  const { rank, pid, host } = body;
  const kind = body['kind'] === 'node' ? 'node' : 'rank';
  const size = sizes[kind];
  if (typeof rank !== 'number' || typeof body['size'] !== 'number') {
    throw protocolError('a greeting without rank and size');
  }
  if (body['size'] !== size || !Number.isInteger(rank) || rank < 0 || rank >= size) {
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      kind === 'rank'
        ? `Rank ${rank} of a world of ${body['size']} cannot join: rank 0 was started for a world of ${size}`
        : `Node ${rank} of ${body['size']} cannot join: node 0 was started with --nnodes ${size}; start all nodes with the same --nnodes`,
      { details: { rank, size: body['size'], expected: size } },
    );
  }
  return { kind, rank, size, pid: Number(pid), host: String(host).slice(0, MAX_HOST_LENGTH) };
}
