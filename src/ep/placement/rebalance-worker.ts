// The thread of rebalanceExpertsAsync().
import type { MessagePort } from 'node:worker_threads';
import { WorkerPort } from '../../threads/worker-port.ts';
import type { ExpertPlan } from './expert-plan.ts';
import { rebalanceExperts, type RebalanceOptions } from './rebalance.ts';

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

export function run(_: undefined, port: MessagePort): void {
  new WorkerPort(port).serve(calls);
}
