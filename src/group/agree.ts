// All ranks must create a collective object with the same, valid configuration; otherwise all fail with the same error.
import type { CallWait } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { shareOutcome } from '../world/outcomes.ts';
import type { RankGroup } from '../world/rank-group.ts';

type AgreedValue = string | number | boolean | undefined;

interface Agreement<T> {
  /** The object, for errors. */
  readonly what: string;
  /** The configuration with defaults filled in, so that a default equals its explicit value. */
  readonly config: Readonly<Record<string, AgreedValue>>;
  /** Local checks and allocations; if they throw on one rank, all ranks get that error. */
  prepare(): T;
  /** Undoes prepare() when another rank failed. */
  release?(prepared: T): void;
}

/** Collective. WL_CONFIG_MISMATCH names the field, the ranks and the values; else the first rank's error, if any. */
export async function agreeOn<T>(group: RankGroup, agreement: Agreement<T>, wait: CallWait): Promise<T> {
  const { what, config } = agreement;
  const prepared: T[] = [];
  const work = (): void => {
    prepared.push(agreement.prepare());
  };
  try {
    const { facts, failure } = await shareOutcome(group, { name: `config/${what}`, facts: config, work }, wait);
    compareConfigs(what, facts, group.ranks);
    if (failure !== undefined) throw failure;
  } catch (thrown) {
    for (const one of prepared) agreement.release?.(one);
    throw thrown;
  }
  return prepared[0]!;
}

interface KernelAgreement<Loaded, T> {
  readonly what: string;
  load(): Promise<Loaded>;
  prepare(loaded: Loaded): T;
  release(prepared: T): void;
}

/** Collective. Compiling may fail or take long on one rank alone, so the ranks agree after it. */
export async function agreeOnKernels<Loaded, T>(
  group: RankGroup,
  kernels: KernelAgreement<Loaded, T>,
  wait: CallWait,
): Promise<T> {
  const prepare = await kernels.load().then(
    (loaded) => () => kernels.prepare(loaded),
    (error: unknown) => () => {
      throw error;
    },
  );
  const release = (prepared: T): void => kernels.release(prepared);
  return agreeOn(group, { what: `${kernels.what} kernels`, config: {}, prepare, release }, wait);
}

type Config = Readonly<Record<string, AgreedValue>>;

/** `ranks`: of the world. */
function compareConfigs(what: string, all: readonly Config[], ranks: readonly number[]): void {
  const first = all[0] ?? {};
  for (const field of new Set(all.flatMap((entry) => Object.keys(entry)))) {
    const other = all.findIndex((entry) => entry[field] !== first[field]);
    if (other === -1) continue;
    const values = [first[field], all[other]?.[field]];
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks create ${what} with different ${field}: ${String(values[0])} on rank ${ranks[0]}, ${String(values[1])} on rank ${ranks[other]}`,
      { details: { field, rank: ranks[other], rank0: values[0], other: values[1] } },
    );
  }
}
