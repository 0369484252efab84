// Where the network side of a GPU lies, among ranks that an RDMA device reaches or not, which are pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { GpuReach } from '#lib/agent/rdma/gpu-reach.js';
import { CudaHostNetwork } from '#lib/ep/across-hosts/cuda-host-network.js';
import { hostRoutes } from '#lib/group/network/host-routes.js';
import { withCode } from '../../../support/with-code.ts';

const direct: GpuReach = {
  memory: { way: 'dmabuf', reason: 'the CUDA driver exports dmabufs', flush: 'none' },
  linkLayer: 'InfiniBand',
  backends: ['verbs'],
};
const none: GpuReach = {
  memory: { way: 'pinned', reason: 'this host has no RDMA device with an active port', flush: 'none' },
  linkLayer: undefined,
  backends: [],
};

/** What becomes of a network whose caller passes memory of the GPU, on rank 0 of two hosts. Nothing is allocated. */
async function create(own: GpuReach, there: GpuReach): Promise<CudaHostNetwork> {
  const { findReach } = CudaHostNetwork;
  CudaHostNetwork.findReach = async () => own;
  const hosts = [[0], [1]];
  const group = {
    rank: 0,
    size: 2,
    ranks: [4, 5],
    worldRank: 4,
    settings: {},
    topology: { hosts, scaleUpRanks: [0] },
    // The other rank fails at nothing.
    allGather: async (name: string, mine: { readonly facts: unknown }) => [
      mine,
      { facts: mine.facts, error: null, value: name.endsWith('/reach') ? there : undefined },
    ],
  };
  assert.deepEqual(hostRoutes(hosts, 0).peers, [1]);
  const device = {
    context: { ordinal: 3 },
    // What follows the choice ends here.
    allocateHost: () => {
      throw new Error('the network side may lie in memory of the GPU');
    },
  };
  const parts = { group, device, name: 'ep', size: { regions: { cells: {}, aborts: {} } }, rdmaBuffer: {} };
  try {
    return await CudaHostNetwork.create(parts as never);
  } finally {
    CudaHostNetwork.findReach = findReach;
  }
}

test('memory of the caller that no RDMA device reaches is refused with the reason', async () => {
  await assert.rejects(
    create(none, none),
    withCode(
      'WL_UNSUPPORTED',
      /^rdmaBuffer is memory of GPU 3, which no RDMA device reaches here: this host has no RDMA device .*\. Leave it out/,
    ),
  );
});

test('where RDMA does not lead to some rank, nobody puts the network side into memory of a GPU', async () => {
  await assert.rejects(
    create(direct, none),
    withCode(
      'WL_UNSUPPORTED',
      /RDMA does not lead to rank 5: this host has no RDMA device with an active port\. Leave/,
    ),
  );
  await assert.rejects(
    create(direct, { ...direct, linkLayer: 'Ethernet' }),
    withCode('WL_UNSUPPORTED', /RDMA does not lead to rank 5: its RDMA port is of Ethernet, this rank's of InfiniBand/),
  );
});

test('a rank whose GPU is reached goes on though that of another rank is pinned', async () => {
  const pinnedThere = { ...none, linkLayer: 'InfiniBand' };
  await assert.rejects(create(direct, pinnedThere), /the network side may lie in memory of the GPU/);
});
