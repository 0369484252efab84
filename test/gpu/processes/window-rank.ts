// Every rank writes its number into a place of its own in each rank's part of a window, then checks its own part.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { CudaDevice, openDevice, Tensor } from 'weftline';
import { join } from 'weftline/world';
import { CudaWindow, keptBytes } from '#lib/windows/cuda-window.js';

const BYTES = 1000;
await using world = await join();
await using device = await openDevice('cuda', world);
assert.ok(device instanceof CudaDevice);

if (world.size > 1) {
  const uneven = CudaWindow.create({ group: world, device, name: 'uneven', bytes: 8 + world.rank });
  await assert.rejects(uneven, { code: 'WL_CONFIG_MISMATCH' });
}

const window = await CudaWindow.create({ group: world, device, name: 'test', bytes: BYTES });
assert.equal(window.bytes, BYTES);
assert.equal(window.address, window.addresses[window.index]);
assert.equal(new Set(window.addresses).size, world.size);
const own = new Tensor(window.storage, 'u8', [BYTES]);
assert.ok((await own.toHost()).every((byte) => byte === 0));
await world.barrier('read');
for (const address of window.addresses) {
  const cell = { device, address: address + world.rank, bytes: 1, disposed: false, [Symbol.dispose]: () => undefined };
  await new Tensor(cell, 'u8', [1]).fromHost(Uint8Array.of(world.rank + 1));
}
await world.barrier('written');
const seen = await own.toHost();
assert.deepEqual(
  [...seen.subarray(0, world.size + 1)],
  [...Array.from({ length: world.size }, (_, rank) => rank + 1), 0],
);
await world.barrier('checked');
// Kept as long as another rank has it mapped.
if (world.rank === 0) window[Symbol.dispose]();
assert.equal(window.storage.disposed, world.size === 1);
await world.barrier('one has left');
window[Symbol.dispose]();
window[Symbol.dispose]();
const end = performance.now() + 10_000;
while (!window.storage.disposed && performance.now() < end) await sleep(5);
assert.ok(window.storage.disposed);
assert.equal(keptBytes(), 0);
