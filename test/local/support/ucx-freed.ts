// A process whose peer over the backend ucx is stopped while it takes large data. Closes the link, gives the data's memory up
// while the peer is killed, takes it away as soon as it may, and tells how that went. Argument: the peer's module.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { guardedMemory } from './guarded-memory.js';
import { introduced, UcxSide, until } from './ucx-side.js';

const [peerModule = ''] = process.argv.slice(2);
const MiB = 2 ** 20;
const BYTES = 16 * MiB;
/** Puts of a MiB, of which a peer that does not take them leaves most. */
const PUTS = 64;
/** How long UCX works on with the memory gone. */
const WATCH_MS = 500;

const near = await UcxSide.open('near');
const guarded = guardedMemory(BYTES);
const { address, bytes } = guarded;
const memory = { kind: 'host', address, bytes: BYTES, view: bytes, device: undefined, shared: undefined } as const;
const local = await near.backend.register(memory);
const child = spawn(process.execPath, [peerModule], { stdio: ['ignore', 'pipe', 'ignore'] });
process.on('exit', () => child.kill('SIGKILL'));
const [line] = (await once(child.stdout, 'data')) as [Buffer];
const { peer, region } = introduced(line.toString());
const link = await near.backend.connect(peer, { timeoutMs: 10_000 });
const remote = link.importRegion(region, { kind: 'host', bytes: MiB });
const channel = link.openChannel();

function put(count: number): void {
  for (let at = 0; at < count; at++) {
    channel.put({ local, localOffset: (at * MiB) % BYTES, remote, remoteOffset: 0, bytes: MiB });
  }
}

async function turns(count: number): Promise<void> {
  for (let at = 0; at < count; at++) {
    near.backend.poll();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

put(4);
await until([near], () => channel.delivered === 4);
put(PUTS);
await turns(5);
child.kill('SIGSTOP');
await turns(20);
const isUnderWay = channel.delivered < channel.posted;
await link.close();
const isQuiet = channel.isQuiet === true;
const released = local.release();
// Nobody takes the rest any more.
child.kill('SIGKILL');
await released;
guarded.takeAway();
const end = performance.now() + WATCH_MS;
await until([near], () => performance.now() > end);
await near.backend.close();
console.log(JSON.stringify({ isUnderWay, isQuiet }));
process.exit();
