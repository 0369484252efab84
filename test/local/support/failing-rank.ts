// What a rank does in the tests of how jobs end: argv names the way; argv[3] is the rank that fails.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, WeftlineError } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { freePort } from '../../support/free-port.js';

const [, , way, failing = '0'] = process.argv;
if (way === 'wrapped') {
  // As npx does: what it starts has none of its descriptors.
  const words = process.argv.slice(1).map((word) => (word === 'wrapped' ? 'meet' : word));
  process.exit(spawnSync(process.execPath, words, { stdio: ['ignore', 'inherit', 'inherit'] }).status ?? 1);
}
if (way === 'early') throw new TypeError('on purpose, before join()');
if (way === 'lives') {
  for (let life = 0; life < 4; life += 1) {
    const world = await join();
    console.log(`${life} ${world.jobId} ${(await world.allGather('ranks', world.rank)).join()}`);
    await world.close();
  }
  process.exit(0);
}
if (way === 'inner') {
  const [, file = ''] = process.argv;
  const port = String(await freePort());
  const ended = [0, 1].map(async (rank) => {
    const own = { WEFTLINE_RANK: `${rank}`, WEFTLINE_LOCAL_RANK: `${rank}`, WEFTLINE_MASTER_PORT: port };
    const size = { WEFTLINE_WORLD_SIZE: '2', WEFTLINE_LOCAL_WORLD_SIZE: '2', WEFTLINE_MASTER_ADDR: '127.0.0.1' };
    const env = { ...process.env, ...own, ...size };
    const [code] = await once(spawn(process.execPath, [file, 'meet'], { stdio: 'inherit', env }), 'exit');
    return code;
  });
  process.exit((await Promise.all(ended)).every((code) => code === 0) ? 0 : 1);
}
const world = await join();
if (way === 'signalled') {
  process.once('SIGUSR2', () => {
    throw new Error('x\u001b]0;pwn\u0007 y');
  });
  console.log(JSON.stringify({ pid: process.pid, log: process.env['WEFTLINE_FAILURE_LOG'] }));
  await sleep(600_000);
}
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
if (way === 'buffer') {
  const device = await CpuDevice.create();
  const buffer = await EpBuffer.create(world, device, { maxTokensPerRank: 8, hidden: 64, numExperts: 16, maxTopk: 2 });
  console.log('linked');
  await buffer.close();
  await device.close();
  await world.close();
}
if (way === 'alone' && isFailing) process.exit(3);
if (way === 'stay') console.log('met');
// Ranks of node 0 end, those of node 1 stay.
if (way === 'half') {
  console.log(`process ${process.pid}`);
  if (world.rank >= 2) await sleep(600_000);
}
if (way === 'alone' || way === 'stay') await sleep(600_000);
// No close().
if (way === 'unclosed' || way === 'exits') {
  for (let round = 0; round < 20; round += 1) await world.barrier('round');
  if (way === 'exits') process.exit(0);
}
if (way === 'meet') {
  console.log(`met ${(await world.allGather('ranks', world.rank)).join()}`);
  await world.close();
}
