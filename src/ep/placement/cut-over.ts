// A step that all ranks take or none: they tell each other how they fared, then the first to reach the store decides for all.
import { type CallWait, Deadline, remaining, within } from '../../core/deadline.ts';
import { asWeftlineError, decodeError, type EncodedError, WeftlineError } from '../../core/errors.ts';
import { encodeFailure, shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';

/** Beyond the deadline: the ranks that waited in vain until then still decide. */
const DECISION_MS = 5000;

interface CutOver<Facts> {
  /** With the number, of the exchange and of the decision in the store: no other step of the group has both. */
  readonly name: string;
  readonly number: number;
  /** What this rank tells the others; JSON. */
  readonly facts: Facts;
  /** Fails if the ranks, whose facts these are, cannot take the step together. Called if all are ready. */
  readonly compare: (all: readonly Facts[]) => void;
  /** Resolves when this rank can take the step. The signal says that it need not wait any longer. */
  readonly ready: (signal: AbortSignal) => Promise<void>;
}

/** Why the step is not taken; null if it is. */
interface Decision {
  readonly error: EncodedError | null;
}

/**
 * Collective. Resolves if the step is taken, fails if it is not, alike on all ranks that live and reach the store: a rank
 * that waited in vain for others learns what those have decided that did not, and else decides against it for all. `onUndecided`
 * is called if this rank cannot learn it.
 */
export async function cutOverTogether<Facts>(
  group: RankGroup,
  step: CutOver<Facts>,
  wait: CallWait,
  onUndecided: (error: WeftlineError) => void,
): Promise<void> {
  const key = `${step.name}/${step.number}`;
  const proposal: Decision = { error: await whyNot(group, { ...step, key }, wait) };
  let decision: Decision;
  try {
    const desired = Buffer.from(JSON.stringify(proposal));
    const deadline = new Deadline((wait.deadline?.leftMs ?? group.settings.timeoutMs) + DECISION_MS);
    const { value } = await within(group.store.compareAndSet(key, undefined, desired), { deadline }, () =>
      storeIsLate(),
    );
    decision = value === undefined ? proposal : decode(value);
    if (group.rank === 0 && proposal.error === null) forget(group, `${step.name}/${step.number - 1}`);
  } catch (cause) {
    const error = undecided(step, proposal, cause);
    onUndecided(error);
    throw error;
  }
  if (decision.error !== null) throw decodeError(decision.error);
}

/** All ranks have read that decision, or they would not have taken part in the next step. */
function forget(group: RankGroup, key: string): void {
  // What is left behind in the store does no harm.
  group.store.delete(key).catch(() => undefined);
}

function storeIsLate(): WeftlineError {
  const message = `The store of rank 0 did not answer within ${DECISION_MS} ms beyond the deadline: rank 0 is stopped or cut off`;
  return new WeftlineError('WL_TIMEOUT', message, { details: { missing: [0], timeoutMs: DECISION_MS } });
}

async function whyNot<Facts>(
  group: RankGroup,
  { key, facts, ready, compare }: CutOver<Facts> & { readonly key: string },
  wait: CallWait,
): Promise<EncodedError | null> {
  const ending = new AbortController();
  const refused = new AbortController();
  const signalOf = (own: AbortController): AbortSignal =>
    wait.signal === undefined ? own.signal : AbortSignal.any([own.signal, wait.signal]);
  // Ranks that have given up do not come to the exchange any more, but they have decided.
  const noticed = group.store.get(key, { ...remaining(wait), signal: signalOf(ending) }).then(
    (value) => {
      const { error } = decode(value);
      if (error !== null) refused.abort(decodeError(error));
    },
    () => undefined,
  );
  try {
    const signal = signalOf(refused);
    const work = (): Promise<void> => ready(signal);
    const outcomes = await shareOutcome(group, { name: key, facts, work }, { ...wait, signal });
    if (outcomes.failure !== undefined) throw outcomes.failure;
    compare(outcomes.facts);
    return null;
  } catch (error) {
    return encodeFailure(await group.firstCause(error), group);
  } finally {
    ending.abort();
    await noticed;
  }
}

function decode(value: Uint8Array): Decision {
  return JSON.parse(Buffer.from(value).toString()) as Decision;
}

function undecided(
  { name, number }: Pick<CutOver<unknown>, 'name' | 'number'>,
  { error: reason }: Decision,
  thrown: unknown,
): WeftlineError {
  const cause = asWeftlineError(thrown);
  const why = reason === null ? '' : ` (before that: ${reason.message})`;
  return new WeftlineError(
    cause.code,
    `Cannot learn whether the ranks have cut over (${name}/${number}): ${cause.message}${why}`,
    {
      details: { ...cause.details },
      cause,
    },
  );
}
