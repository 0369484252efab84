// The thread of rebalanceExpertsAsync().
import type { MessagePort } from 'node:worker_threads';
import { WorkerPort } from '../../threads/worker-link.ts';
import { type RebalanceCalls, rebalanceExperts } from './rebalance.ts';

const calls: RebalanceCalls = {
  rebalance: ({ weights, options }) => rebalanceExperts(weights, options),
  stop: () => {},
};

export function run(_: undefined, port: MessagePort): void {
  new WorkerPort(port).serve(calls);
}
