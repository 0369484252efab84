// Ranks that are named die (argv[2], "none" for whom somebody else kills); the others go on as a group. With "stop" (argv[3]) those
// that are named stop instead and stay so; with "twice" one that is started again asks for a place in the group of the others.
import { WeftlineError } from 'weftline';
import { join } from 'weftline/world';

const [, , about = '', way = ''] = process.argv;
const victims = about.split(',').map(Number);
const world = await join();
if (world.life > 0) {
  // It has joined the world again, and is of no group that was made before.
  await world.store.set('again', new Uint8Array());
  const code = await world.shrink().then(
    () => 'none',
    (error: unknown) => (error instanceof WeftlineError ? error.code : String(error)),
  );
  console.log(`again: ${code}`);
  await world.close();
  process.exit(0);
}
await world.barrier('start');
console.log(`process ${process.pid}`);
const isReady = (rank: number): string => `ready ${rank}`;
if (victims.includes(world.rank)) {
  // Nobody still waits for the store, which may end with this rank.
  await world.store.wait(world.ranks.filter((rank) => !victims.includes(rank)).map(isReady));
  process.kill(process.pid, way === 'stop' ? 'SIGSTOP' : 'SIGKILL');
}
await world.store.set(isReady(world.rank), new Uint8Array());
const { peerLost } = world;
// Nothing else keeps the process meanwhile.
const keeper = setInterval(() => {}, 1000);
if (way !== 'stop' && !peerLost.aborted) await new Promise((resolve) => peerLost.addEventListener('abort', resolve));
clearInterval(keeper);
// Not in a wait that would fail for the rank that is lost.
if (way === 'twice') await world.store.get('again', { from: [world.rank] });
try {
  const group = await world.shrink(way === 'stop' ? { timeoutMs: 1_000 } : {});
  await group.barrier('end');
  console.log(`left ${group.ranks.join()}`);
} catch (error) {
  console.log((error as Error).message);
}
await world.close();
