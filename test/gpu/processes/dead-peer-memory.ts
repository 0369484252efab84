// What elastic ranks build on: memory of a killed process that another one has mapped can be read and written until it is
// unmapped, and a new process under the same rank number shares memory anew.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { CudaDevice, cudaDeviceCount, Tensor, WeftlineError } from 'weftline';
import { join } from 'weftline/world';

const BYTES = 64 << 20;
interface Shared {
  readonly handle: string;
  readonly pid: number;
}

await using world = await join();
await using device = await CudaDevice.create({ ordinal: world.rank % cudaDeviceCount() });
const key = `memory/${world.rank === 1 ? world.life : 0}`;
if (world.rank === 1) {
  const own = device.allocateShared(BYTES);
  device.setBytes(own, 7 + world.life);
  await device.stream.idle();
  await world.store.setJson(key, { handle: device.exportMemory(own), pid: process.pid });
  // Until it is killed, or the other is done.
  await world.store.get('done', { timeoutMs: 60_000 });
} else {
  const former = await world.store.getJson<Shared>('memory/0');
  const mapped = device.openPeerMemory(former.handle, BYTES);
  process.kill(former.pid, 'SIGKILL');
  const { handle } = await nextLife();
  const bytes = new Tensor(mapped, 'u8', [BYTES]);
  assert.ok((await bytes.toHost()).every((byte) => byte === 7));
  device.setBytes(mapped, 9);
  assert.ok((await bytes.toHost()).every((byte) => byte === 9));
  const next = device.openPeerMemory(handle, BYTES);
  assert.ok((await new Tensor(next, 'u8', [BYTES]).toHost()).every((byte) => byte === 8));
  mapped[Symbol.dispose]();
  assert.ok((await new Tensor(next, 'u8', [BYTES]).toHost()).every((byte) => byte === 8));
  next[Symbol.dispose]();
  await world.store.set('done', new Uint8Array(1));
}
console.log('done');

/** Waits of the store fail while a rank is gone. */
async function nextLife(): Promise<Shared> {
  for (;;) {
    try {
      return await world.store.getJson<Shared>('memory/1', { timeoutMs: 60_000 });
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_PEER_LOST') throw error;
    }
    await sleep(20);
  }
}
