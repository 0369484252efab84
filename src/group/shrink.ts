// Makes a collective object anew over the ranks of its group that live, after a failure that ended the object.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { checkSignal, checkTimeout, type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { RankGroup } from '../world/rank-group.ts';

/** Options of shrink() of a collective object whose configuration is a `Config`. */
export interface ShrinkOptions<Config> extends WaitOptions {
  /** How long to wait for ranks that live and do not come, and then for each step of making the object, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number;
  /**
   * What is to differ from the configuration of the object, which fits another number of ranks: `numExperts` must be a multiple of
   * `group.size`. It is called with the new group on each of its ranks, and again if further ranks die meanwhile; all ranks
   * must return the same.
   */
  readonly config?: (group: RankGroup) => Partial<Config>;
}

const shrinkOptionNames: OptionNames<ShrinkOptions<unknown>> = { ...waitOptionNames, config: true };

interface Shrinking<T, Config> {
  /** Name in errors: 'EpBuffer'. */
  readonly object: string;
  readonly group: RankGroup;
  /** Ends the former object; idempotent. */
  readonly close: () => Promise<void>;
  readonly create: (group: RankGroup, changes: Partial<Config>, wait: WaitOptions) => Promise<T>;
}

/** Collective over the ranks that live. Ranks that die while the object is made are left out in turn, so there are at most as many rounds as ranks. */
export async function shrinkObject<T, Config>(
  { object, group, close, create }: Shrinking<T, Config>,
  options: ShrinkOptions<Config>,
): Promise<T> {
  checkOptions(options, shrinkOptionNames, `options of ${object}.shrink`);
  const { config, ...wait } = options;
  if (config !== undefined && typeof config !== 'function') {
    throw invalidArgument('config', config, 'a function that returns what differs for a group');
  }
  checkSignal(wait.signal);
  if (wait.timeoutMs !== undefined) checkTimeout(wait.timeoutMs);
  // ORDER: before the others can have their new object. What a late rank still writes then meets memory that nobody uses.
  await close();
  for (let present = await group.shrink(wait); ;) {
    try {
      return await create(present, config?.(present) ?? {}, wait);
    } catch (error) {
      const next = await afterFailure(error, present, wait);
      if (next === undefined) throw withHint(error, object, { from: group.size, to: present.size });
      present = next;
    }
  }
}

/** What a rank gets from a step that another one does not take any more. */
const losses: ReadonlySet<unknown> = new Set(['WL_PEER_LOST', 'WL_PEER_FAILED', 'WL_TIMEOUT']);

/** The group without ranks that were lost meanwhile; undefined if none was. */
async function afterFailure(error: unknown, present: RankGroup, wait: WaitOptions): Promise<RankGroup | undefined> {
  if (present.size === 1 || !(error instanceof WeftlineError) || !losses.has(error.code)) return undefined;
  const next = await present.shrink(wait);
  return next.size < present.size ? next : undefined;
}

/** What was good for all ranks may not be good for fewer. */
function withHint(
  error: unknown,
  object: string,
  { from, to }: { readonly from: number; readonly to: number },
): unknown {
  if (!(error instanceof WeftlineError) || error.code !== 'WL_INVALID_ARGUMENT') return error;
  const hint = `${to} of ${from} ranks are left: call shrink({ config: (group) => … }) with what must differ for them`;
  return new WeftlineError(error.code, `The ${object} cannot be made anew: ${error.message}; ${hint}`, {
    details: error.details,
    cause: error,
  });
}
