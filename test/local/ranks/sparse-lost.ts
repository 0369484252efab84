// Ranks of `weftline run --aggregators` that never join: the first of the job fails, and the others end well shortly afterwards.
// Argument: the ranks that it says it lost, as JSON.
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from 'weftline';

const missing = JSON.parse(process.argv[2] ?? '[]') as number[];
if (process.env['WEFTLINE_RANK'] === '0') {
  throw new WeftlineError('WL_PEER_LOST', 'a peer is gone', { details: { missing } });
}
await sleep(1_500);
