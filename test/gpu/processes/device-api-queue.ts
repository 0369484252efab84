// How many commands a second one thread takes from a queue that a GPU fills, and how long a command is on its way.
import assert from 'node:assert/strict';
import type { CudaDevice } from 'weftline';
import { CudaRequests } from '#lib/device-api/service/cuda-requests.js';
import { countingPeer } from '../support/counting-peer.ts';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

export interface QueueSpeed {
  readonly warps: number;
  /** Lanes of each warp that push. */
  readonly lanes: number;
  readonly order: string;
  readonly commands: number;
  readonly millionPerSecond: number;
}

/** Peers are pretended: what is posted is delivered at once. Fails if a signal is lost or comes twice. */
export async function measureQueue(device: CudaDevice): Promise<QueueSpeed[]> {
  const { benchDevicePush } = await device.loadKernels(kernelFiles.benchDeviceApi);
  const layout = { queues: 1, capacity: 4096 };
  using requests = await CudaRequests.create({ device, trap: device.traps.address, timeoutMs: 10_000, ...layout });
  const { handle, seen, server } = await countingPeer(requests, layout.capacity);
  const results: QueueSpeed[] = [];
  const shapes = [1, 2, 4, 32, 128].flatMap((warps) => [
    { warps, lanes: 1, order: 'release' },
    { warps, lanes: 1, order: 'relaxed' },
    { warps, lanes: 32, order: 'release' },
  ]);
  for (const { warps, lanes, order } of shapes) {
    const each = Math.floor(400_000 / warps / lanes / (warps === 1 ? 4 : 1));
    const plan = benchDevicePush.plan({ grid: Math.ceil(warps / 8), block: Math.min(warps, 8) * 32 });
    plan.arguments.set('request', handle);
    plan.arguments.set('count', each);
    plan.arguments.set('channels', 1);
    plan.arguments.set('lanes', lanes);
    plan.arguments.set('isRelaxed', order === 'relaxed' ? 1 : 0);
    const commands = each * warps * lanes;
    for (let round = 0; round < 3; round += 1) {
      seen.sum = 0;
      const start = performance.now();
      plan.launch();
      const isOver = (): boolean => seen.sum >= commands || performance.now() - start > 10_000;
      while (!isOver()) for (let turn = 0; turn < 64; turn += 1) server.step();
      const milliseconds = performance.now() - start;
      await device.stream.idle();
      assert.equal(seen.sum, commands);
      results.push({ warps, lanes, order, commands, millionPerSecond: commands / milliseconds / 1000 });
    }
    console.log(
      `queue, ${warps} warps, ${lanes} lanes, ${order}: ${results.at(-1)?.millionPerSecond.toFixed(2)} M commands/s`,
    );
  }
  return results;
}
