// A peer that is pretended: signals that a GPU pushes for it are summed and at once delivered, nothing else is taken.
import assert from 'node:assert/strict';
import { CommandReader, queuesIn } from '#lib/device-api/service/command-queue.js';
import { CommandServer } from '#lib/device-api/service/command-server.js';
import type { CudaRequests } from '#lib/device-api/service/cuda-requests.js';

/** A peer of the one queue of `requests`. `handle`: of a request to the peer. */
export async function countingPeer(requests: CudaRequests, capacity: number) {
  const shape = { number: 0, peer: 0, inlines: false, local: { address: 0, bytes: 0 } };
  const handle = await requests.add({ ...shape, remotes: [{ direct: 0, bytes: 8 }] });
  const channel = { posted: 0, delivered: 0, error: undefined };
  const seen = { sum: 0 };
  const route = {
    channel,
    put: () => false,
    store: () => false,
    set: () => false,
    signal: (_target: number, add: number) => {
      seen.sum += add;
      channel.posted += 1;
      channel.delivered += 1;
      return true;
    },
  };
  const [memory] = queuesIn(requests.buffer, 1, capacity);
  assert.ok(memory !== undefined);
  const served = [{ peer: 'nobody', remotes: [route] }];
  const server = new CommandServer(new CommandReader(memory), served, { onFailure: (error) => assert.fail(error) });
  return { handle, seen, server };
}
