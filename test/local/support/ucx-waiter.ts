// A process whose peer over the backend ucx is stopped and killed while it waits blocking, so that its event loop stands still.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { BackendPeer } from '#lib/agent/backend.js';
import { fixedBytes, UcxSide } from './ucx-side.js';
import { planned } from './planned-transfer.ts';

const BYTES = 64 * 2 ** 20;
const DEADLINE_MS = 20_000;

const child = spawn(process.execPath, [process.argv[2] as string], { stdio: ['ignore', 'pipe', 'inherit'] });
const [line] = (await once(child.stdout, 'data')) as [Buffer];
const said = JSON.parse(line.toString()) as BackendPeer & { connectionInfo: string; region: string };
await using near = await UcxSide.open('near');
const local = await near.register(fixedBytes(BYTES));
const peer = { ...said, connectionInfo: Buffer.from(said.connectionInfo, 'hex') };
const link = await near.backend.connect(peer, { timeoutMs: 10_000 });
const remote = link.importRegion(Buffer.from(said.region, 'hex'), { kind: 'host', bytes: BYTES });
const transfer = await link.prepare(
  'write',
  planned([{ local, localOffset: 0, remote, remoteOffset: 0, bytes: BYTES }]),
);
// What stands still takes nothing, so that the transfer is under way when it dies, in half a second.
process.kill(said.process, 'SIGSTOP');
spawn('sh', ['-c', `sleep 0.5; kill -9 ${said.process}`], { stdio: 'ignore' });
transfer.post();
const start = performance.now();
while (transfer.state === 'pending' && performance.now() - start < DEADLINE_MS) {
  const { seen } = near.wake;
  near.backend.poll();
  const pause = Math.min(near.backend.prepareSleep(), 1000);
  if (pause > 0) near.wake.sleepBlocking(seen, pause);
}
const milliseconds = performance.now() - start;
const { error } = transfer;
process.stdout.write(JSON.stringify({ code: error?.code ?? 'none', message: error?.message, milliseconds }));
await link.close();
