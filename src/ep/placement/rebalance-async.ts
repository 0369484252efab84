// rebalanceExperts() on a thread of its own, so that the caller's stays free.
import { checkOptions } from '../../core/check-options.ts';
import { checkTimeout, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { packageFile } from '../../core/package-file.ts';
import { readSettings } from '../../settings/settings.ts';
import { WorkerLink } from '../../threads/worker-link.ts';
import type { ExpertPlan } from './expert-plan.ts';
import { checkRebalance, type RebalanceOptions } from './rebalance.ts';
import type { RebalanceCalls, RebalanceRequest } from './rebalance-worker.ts';

/**
 * The same plan as rebalanceExperts() gives, made by another thread, which the next such call uses again. Fails with
 * WL_INVALID_ARGUMENT before that, with WL_TIMEOUT, and with the signal's reason.
 * @param weights [layers, experts]: the load of each logical expert. They are copied before the call returns.
 * @param options Copies, ranks, nodes, groups.
 * @param wait How long it may take.
 */
export async function rebalanceExpertsAsync(
  weights: readonly ArrayLike<number>[],
  options: RebalanceOptions,
  wait: WaitOptions = {},
): Promise<ExpertPlan> {
  checkRebalance(weights, options);
  checkOptions(wait, waitOptionNames, 'wait options of rebalanceExpertsAsync');
  const timeoutMs = checkTimeout(wait.timeoutMs ?? readSettings().timeoutMs);
  const request: RebalanceRequest = { weights: weights.map((row) => Float64Array.from(row)), options: { ...options } };
  const link = new WorkerLink<RebalanceCalls>({
    entry: packageFile('./rebalance-worker.js', import.meta.url),
    name: 'rebalance',
    what: 'thread that rebalances experts',
    closedMessage: 'The thread that rebalances experts has ended',
    data: undefined,
    timeoutMs,
    onEvent: () => undefined,
    onEnd: () => undefined,
  });
  try {
    return await link.callWith({ signal: wait.signal, endsThread: true }, 'rebalance', request);
  } finally {
    // A thread that is busy with a call that nobody waits for is not waited for either.
    void link.stop().catch(() => undefined);
  }
}
