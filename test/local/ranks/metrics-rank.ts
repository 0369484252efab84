// A rank that makes some calls, reads the metrics of all ranks of its host as Prometheus and `weftline stats` would, and prints them.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { CpuDevice } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';

const main = fileURLToPath(new URL('../../../../dist/programs/cli/main.js', import.meta.url));
const [, , port = '0'] = process.argv;

function statsOf(format: string, waitMs: number) {
  const words = [main, 'stats', String(process.ppid), '--format', format, '--wait', String(waitMs)];
  const { stdout, stderr, status } = spawnSync(process.execPath, words, { encoding: 'utf8' });
  return { stdout, stderr, status };
}

const world = await join();
const device = await CpuDevice.create();
const buffer = await EpBuffer.create(world, device, { maxTokensPerRank: 4, hidden: 64, numExperts: 4, maxTopk: 1 });
const x = await device.tensor('bf16', [2, 64], new Uint16Array(128));
const topkIdx = await device.tensor('i32', [2, 1], Int32Array.of(0, 3));
const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
const y = buffer.combineInput(handle);
y.view().set(recvX.view());
await buffer.combine({ x: y, handle });
if (world.rank === 0) {
  for (const rank of [0, 1]) {
    const answer = await fetch(`http://127.0.0.1:${Number(port) + rank}/metrics`);
    console.log(JSON.stringify({ rank, type: answer.headers.get('content-type'), text: await answer.text() }));
  }
  const url = `http://127.0.0.1:${port}`;
  const refusals = [await fetch(url), await fetch(`${url}/metrics`, { method: 'POST' })].map(({ status }) => status);
  console.log(JSON.stringify({ refusals }));
  await world.store.set('asked', new Uint8Array());
}
// Its event loop runs: it answers rank 0.
await world.store.get('asked');
if (world.rank === 1) {
  for (const format of ['json', 'inspector', 'prometheus']) {
    // Not this rank, whose event loop stands still meanwhile, but the launcher's store and rank 0 answer: on a busy machine
    // later than a wait that is to be over soon.
    let told = statsOf(format, 500);
    for (let waitMs = 1000; waitMs < 60_000 && !/ from ranks 1\n/.test(told.stderr); waitMs *= 2) {
      told = statsOf(format, waitMs);
    }
    console.log(JSON.stringify({ format, ...told }));
  }
  await world.store.set('told', new Uint8Array());
}
await world.store.get('told');
await buffer.close();
await device.close();
await world.close();
