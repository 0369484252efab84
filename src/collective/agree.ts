// All ranks must create a collective object with the same, valid configuration; otherwise all fail with the same error.
import { type CallWait, remaining } from '../core/deadline.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import type { World } from '../world/world.ts';

type Scalar = string | number | boolean | undefined;

export interface Agreement<T> {
  /** Of the object, for errors. */
  readonly what: string;
  /** With defaults filled in, so that a default equals its explicit value. */
  readonly config: Readonly<Record<string, Scalar>>;
  /** Local checks and allocations; if they throw on one rank, all ranks get that error. */
  prepare(): T;
  /** Undoes prepare() when another rank failed. */
  release?(prepared: T): void;
}

/** Collective. WL_CONFIG_MISMATCH names the field, the ranks and the values; else the first rank's error, if any. */
export async function agreeOn<T>(world: World, agreement: Agreement<T>, wait: CallWait): Promise<T> {
  const { what, config } = agreement;
  let prepared: T | undefined;
  let error: EncodedError | null = null;
  try {
    prepared = agreement.prepare();
  } catch (thrown) {
    error = encodeError(thrown, world.rank);
  }
  try {
    const all = await world.allGather(`config/${what}`, { config, error }, remaining(wait));
    compareConfigs(
      what,
      all.map((entry) => entry.config),
    );
    const failed = all.find((entry) => entry.error !== null);
    if (failed?.error) throw decodeError(failed.error);
  } catch (thrown) {
    if (error === null) agreement.release?.(prepared as T);
    throw thrown;
  }
  return prepared as T;
}

function compareConfigs(what: string, all: readonly Readonly<Record<string, Scalar>>[]): void {
  const first = all[0] ?? {};
  for (const field of new Set(all.flatMap((entry) => Object.keys(entry)))) {
    const rank = all.findIndex((entry) => entry[field] !== first[field]);
    if (rank === -1) continue;
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks create ${what} with different ${field}: ${String(first[field])} on rank 0, ${String(all[rank]?.[field])} on rank ${rank}`,
      { details: { field, rank, rank0: first[field], other: all[rank]?.[field] } },
    );
  }
}

/** Collective objects live on one host until a transport between hosts carries them. */
export function requireOneHost(world: World, what: string): void {
  if (world.localRanks.length === world.size) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `${what} needs all ranks on one host; of ${world.size} ranks only ${world.localRanks.join(', ')} share this one's memory`,
    { details: { size: world.size, localRanks: world.localRanks } },
  );
}
