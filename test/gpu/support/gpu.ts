// What the GPU tests share: whether they can run here, and a device of their own for each test.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { CudaDevice, cudaDeviceCount } from 'weftline';

const gpus = cudaDeviceCount();

/** Why a test does not run here, or false. */
export const noGpu: string | false = gpus === 0 ? 'there is no GPU' : false;

/** How many ranks the tests of collective work start: one, two (which may share a GPU), one per GPU. */
export const rankCounts: readonly number[] = [...new Set([1, 2, Math.min(Math.max(gpus, 1), 8)])];

/** Compiled kernels of all tests of one file. */
export const cacheFolder: string = mkdtempSync(join(tmpdir(), 'weftline-gpu-'));
process.on('exit', () => rmSync(cacheFolder, { recursive: true, force: true }));

/** A test that gets a device, and is skipped where there is none. `timeout` in ms is for kernels that a fault would hang. */
export function gpuTest(
  name: string,
  run: (device: CudaDevice, context: TestContext) => Promise<void>,
  { timeout }: { readonly timeout?: number } = {},
): void {
  test(name, { skip: noGpu, ...(timeout === undefined ? {} : { timeout }) }, async (context) => {
    await using device = await CudaDevice.create({ cacheFolder, timeoutMs: 20_000 });
    await run(device, context);
  });
}

/** Reproducible bytes. */
export function noise(length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let state = 12_345;
  for (let index = 0; index < length; index += 1) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    bytes[index] = state >>> 16;
  }
  return bytes;
}
