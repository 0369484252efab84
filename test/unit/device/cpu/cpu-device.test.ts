import assert from 'node:assert/strict';
import { closeSync, ftruncateSync, openSync, unlinkSync } from 'node:fs';
import test from 'node:test';
import { CpuDevice, type Tensor, WeftlineError } from 'weftline';

test('a tensor keeps its values, shares memory with its slices and frees its range', async () => {
  const device = await CpuDevice.create();
  const tensor = await device.tensor('i32', [4, 2], Int32Array.from([1, 2, 3, 4, 5, 6, 7, 8]));
  assert.deepEqual([...tensor.slice(1, 3).view()], [3, 4, 5, 6]);
  tensor.slice(1, 2).view()[0] = 30;
  assert.deepEqual([...(await tensor.toHost())], [1, 2, 30, 4, 5, 6, 7, 8]);
  const used = device.space.used;
  tensor.close();
  assert.equal(device.space.used, used - 128);
  assert.throws(() => tensor.view(), { code: 'WL_CLOSED' });
  await assert.rejects(tensor.toHost(), { code: 'WL_CLOSED' });
  await assert.rejects(tensor.fromHost(new Int32Array(8)), { code: 'WL_CLOSED' });
});

test('mapFile() makes two ranges of the memory show the same bytes', async () => {
  const device = await CpuDevice.create();
  const path = `/dev/shm/weftline-test-${process.pid}`;
  const fd = openSync(path, 'w+');
  unlinkSync(path);
  ftruncateSync(fd, 131_072);
  const before = device.mappings;
  const first = device.mapFile(fd, 131_072);
  assert.notEqual(device.mappings, before);
  const second = device.mapFile(fd, 131_072);
  closeSync(fd);
  device.hostView('u8', first.address, 131_072)[70_000] = 77;
  assert.equal(device.hostView('u8', second.address, 131_072)[70_000], 77);
  device.kernels.copyBytes(second.address + 5, first.address + 70_000, 1);
  assert.equal(device.hostView('u8', first.address, 8)[5], 77);
  first[Symbol.dispose]();
  second[Symbol.dispose]();
});

test('a tensor beyond the address space fails with WL_MEMORY and says what is used', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  assert.throws(
    () => device.empty('u8', [32 << 20]),
    (error: unknown) =>
      error instanceof WeftlineError && error.code === 'WL_MEMORY' && error.message.includes('32 MiB'),
  );
});

/** In place of WebAssembly.Memory. */
function grantOnePage({ maximum }: { readonly maximum: number }): object {
  if (maximum > 1) throw new RangeError('refused');
  return { buffer: new SharedArrayBuffer(65_536) };
}

test('address space or memory that the system refuses is WL_MEMORY with what to do, and takes no range', async (t) => {
  const device = await CpuDevice.create();
  const { used } = device.space;
  t.mock.method(device.memory, 'grow', () => {
    throw new RangeError('refused');
  });
  assert.throws(() => device.empty('u8', [32 << 20]), { code: 'WL_MEMORY', message: /32\.\d MiB.*fewer tokens/ });
  assert.throws(() => device.mapFile(-1, 32 << 20), { code: 'WL_MEMORY' });
  assert.equal(device.space.used, used);
  const api = (globalThis as unknown as { WebAssembly: { Memory: unknown } }).WebAssembly;
  const memory = t.mock.method(api as { Memory: () => void }, 'Memory', () => {
    throw new RangeError('refused');
  });
  await assert.rejects(CpuDevice.create({ addressSpaceMiB: 512 }), {
    code: 'WL_MEMORY',
    message: /Cannot reserve 512 MiB.*ulimit -v.*--disable-wasm-trap-handler.*WEFTLINE_ADDRESS_SPACE_MIB/,
  });
  memory.mock.mockImplementation(grantOnePage as never);
  // Lowering helps, so that nothing else is advised.
  await assert.rejects(CpuDevice.create({ addressSpaceMiB: 512 }), {
    code: 'WL_MEMORY',
    message: /refused it; raise "ulimit -v", or set WEFTLINE_ADDRESS_SPACE_MIB to less \(/,
  });
});

test('tensors that nobody holds give their memory back, however tight the loop that makes them', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 256 });
  const kept = await device.tensor('i32', [4], Int32Array.of(1, 2, 3, 4));
  const values = new Uint8Array(32 * 1024).fill(7);
  for (let round = 0; round < 100_000; round += 1) {
    const tensor = await device.tensor('u8', [values.length], values);
    if (tensor.view()[values.length - 1] !== 7) assert.fail(`tensor ${round} has other bytes`);
  }
  assert.deepEqual([...kept.view()], [1, 2, 3, 4]);
});

test('tensors that are held keep their memory when there is no more', async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 16 });
  const values = new Uint8Array(1 << 20);
  const held: Tensor<'u8'>[] = [];
  await assert.rejects(
    async () => {
      for (;;) held.push(await device.tensor('u8', [values.length], values.fill(held.length)));
    },
    { code: 'WL_MEMORY', message: /close tensors/ },
  );
  assert.ok(held.length >= 14);
  for (const [index, tensor] of held.entries()) assert.equal(tensor.view()[values.length - 1], index);
});
