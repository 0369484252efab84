// A command that runs on ranks: what a user of withRanks() writes.
import { withRanks } from '#lib/programs/cli/with-ranks.js';

await withRanks(3, async (world) => {
  if (process.argv[2] === 'busy') {
    process.on('SIGTERM', () => {});
    console.log(`process ${process.pid}`);
    for (;;);
  }
  const ranks = await world.allGather('ranks', world.rank);
  console.log(`rank ${world.rank} sees ${ranks.join()}, terminal ${String(process.env['WEFTLINE_LOCAL_RANK'])}`);
  if (process.argv[2] === 'fail' && world.rank === 1) throw new Error('on purpose');
  await world.barrier('end');
});
