// The thread of rebalanceExpertsAsync().
import { workerData } from 'node:worker_threads';
import { type LinkedThread, WorkerPort } from '../../threads/worker-port.ts';
import type { ExpertPlan } from './expert-plan.ts';
import { rebalanceExperts } from './rebalance.ts';
import type { RebalanceOptions } from './rebalance-options.ts';

/** What the thread is asked. */
export interface RebalanceRequest {
  readonly weights: readonly Float64Array[];
  readonly options: RebalanceOptions;
}

const calls = {
  rebalance: ({ weights, options }: RebalanceRequest): ExpertPlan => rebalanceExperts(weights, options),
  stop(): void {},
};

export type RebalanceCalls = typeof calls;

new WorkerPort((workerData as LinkedThread<undefined>).port).serve(calls);
