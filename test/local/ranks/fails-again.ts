// Rank 1 fails whenever it is started; rank 0 waits for it. Both print which start of theirs it is.
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from 'weftline';
import { join } from 'weftline/world';

await using world = await join();
if (world.rank === 1) {
  // Rank 0 may come later.
  while (world.view.members.length < world.size) await sleep(5);
  console.log(`life ${world.life} among ${world.view.members.join(', ')}`);
  throw new WeftlineError('WL_CHECK', 'the weights are missing');
}
await world.store.get('never', { from: [0] });
