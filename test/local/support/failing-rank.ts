// What a rank does in the tests of how jobs end: argv names the way; argv[3] is the rank that fails.
import { spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, WeftlineError } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';

const [, , way, failing = '0'] = process.argv;
if (way === 'wrapped') {
  // As npx does: what it starts has none of its descriptors.
  const words = process.argv.slice(1).map((word) => (word === 'wrapped' ? 'meet' : word));
  process.exit(spawnSync(process.execPath, words, { stdio: ['ignore', 'inherit', 'inherit'] }).status ?? 1);
}
if (way === 'early') throw new TypeError('on purpose, before join()');
const world = await join();
const isFailing = world.rank === Number(failing);
await world.barrier('start');
if (way === 'throw' && isFailing) throw new WeftlineError('WL_CHECK', 'on purpose');
if (way === 'exit' && isFailing) process.exit(3);
if (way === 'kill' && isFailing) process.kill(process.pid, 'SIGKILL');
if (way === 'throw' || way === 'exit' || way === 'kill') {
  // Some report as fast as they can, some late.
  if (Math.random() < 0.5) await sleep(Math.random() * 20);
  try {
    await world.barrier('never');
  } catch (error) {
    if (way === 'exit') process.exit(1);
    throw error;
  }
}
if (way === 'argument') {
  const device = await CpuDevice.create();
  await EpBuffer.create(world, device, { maxTokensPerRank: 8, hidden: 7, numExperts: 16, maxTopk: 2 });
}
if (way === 'alone' && isFailing) process.exit(3);
if (way === 'stay') console.log('met');
// Those of node 0 end, those of node 1 stay.
if (way === 'half') {
  console.log(`process ${process.pid}`);
  if (world.rank >= 2) await sleep(60_000);
}
if (way === 'alone' || way === 'stay') await sleep(60_000);
// No close().
if (way === 'unclosed' || way === 'exits') {
  for (let round = 0; round < 20; round += 1) await world.barrier('round');
  if (way === 'exits') process.exit(0);
}
if (way === 'meet') {
  console.log(`met ${(await world.allGather('ranks', world.rank)).join()}`);
  await world.close();
}
