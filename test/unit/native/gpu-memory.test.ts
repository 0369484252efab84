// How an RDMA device reaches memory of a GPU: chosen by what GPU, driver, kernel and device say, with a driver that is pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  chooseGpuMemory,
  type GpuMemoryFacts,
  gpuRdmaFacts,
  listGpuRdmaFacts,
  peermemModule,
} from '#lib/native/verbs/gpu-memory.js';
import { localFiles } from '#lib/native/file-probe.js';
import { pretendDriver } from '../support/pretended-driver.ts';

const hopper: GpuMemoryFacts = {
  gpu: { isReachable: true, exportsDmabuf: true, ordersWrites: true },
  dmabufProblem: undefined,
  peermem: undefined,
  distanceProblem: undefined,
};
const noDmabuf = { ...hopper, dmabufProblem: 'the driver of mlx4_0, or the kernel, registers no dmabuf' };

test('a dmabuf comes before nvidia-peermem, and that before pinned memory', () => {
  assert.equal(chooseGpuMemory({ ...hopper, peermem: 'nvidia-peermem' }, 'auto').way, 'dmabuf');
  const { way, reason } = chooseGpuMemory({ ...noDmabuf, peermem: 'nvidia-peermem' }, 'auto');
  assert.deepEqual([way, reason], ['peermem', `${noDmabuf.dmabufProblem}; nvidia-peermem is loaded`]);
  const last = chooseGpuMemory(noDmabuf, 'auto');
  assert.equal(last.way, 'pinned');
  assert.match(
    last.reason,
    /^the driver of mlx4_0, .*; and nvidia-peermem is not loaded \("modprobe nvidia-peermem"\)$/,
  );
});

test('a driver that exports no dmabuf is named rather than the RDMA device', () => {
  const gpu = { ...hopper.gpu, exportsDmabuf: false };
  assert.match(chooseGpuMemory({ ...noDmabuf, gpu }, 'auto').reason, /^the CUDA driver exports no memory/);
});

test('a GPU whose memory nobody else reaches is left alone, whatever is loaded', () => {
  const gpu = { ...hopper.gpu, isReachable: false };
  const { way, reason } = chooseGpuMemory({ ...hopper, gpu, peermem: 'nvidia-peermem' }, 'auto');
  assert.deepEqual([way, reason], ['pinned', 'the CUDA driver lets no other device reach memory of this GPU']);
});

test('a device that is too far away reaches no memory by itself, and does when it is told to', () => {
  const far = { ...hopper, distanceProblem: 'mlx5_0 is on NUMA node 1 and the GPU on 0' };
  assert.deepEqual(chooseGpuMemory(far, 'auto'), { way: 'pinned', reason: far.distanceProblem, flush: 'none' });
  assert.equal(chooseGpuMemory(far, 'dmabuf').way, 'dmabuf');
});

test('a way that the setting names is taken without a look', () => {
  for (const way of ['dmabuf', 'peermem', 'pinned'] as const) {
    assert.equal(chooseGpuMemory(noDmabuf, way).way, way);
    assert.match(chooseGpuMemory(noDmabuf, way).reason, /the setting rdmaGpuMemory/);
  }
});

test('arrivals are flushed on a GPU that does not show writes in order, and only there', () => {
  const gpu = { ...hopper.gpu, ordersWrites: false };
  assert.equal(chooseGpuMemory(hopper, 'auto').flush, 'none');
  assert.equal(chooseGpuMemory({ ...hopper, gpu }, 'auto').flush, 'read');
  assert.equal(chooseGpuMemory({ ...hopper, gpu }, 'peermem').flush, 'read');
  assert.equal(chooseGpuMemory({ ...noDmabuf, gpu }, 'auto').flush, 'none');
  assert.equal(chooseGpuMemory({ ...hopper, gpu }, 'pinned').flush, 'none');
});

/** CUdevice_attribute: GPU_DIRECT_RDMA_SUPPORTED, GPU_DIRECT_RDMA_WRITES_ORDERING, DMA_BUF_SUPPORTED. */
const [REACHABLE, ORDERING, DMABUF] = [116, 118, 124];

function pretendGpu(attributes: Readonly<Record<number, number>>): ReturnType<typeof pretendDriver> {
  const pretended = pretendDriver();
  pretended.status.cuDeviceGetAttribute = (out, attribute) => {
    const value = attributes[attribute as number];
    if (value === undefined) return 1;
    (out as number[])[0] = value;
    return 0;
  };
  return pretended;
}

function factsOf(attributes: Readonly<Record<number, number>>): unknown {
  return gpuRdmaFacts(pretendGpu(attributes).driver, 0);
}

test('the driver is asked for what it says of the GPU', () => {
  const all = { isReachable: true, exportsDmabuf: true, ordersWrites: true };
  assert.deepEqual(factsOf({ [REACHABLE]: 1, [ORDERING]: 100, [DMABUF]: 1 }), all);
  assert.deepEqual(factsOf({ [REACHABLE]: 1, [ORDERING]: 200, [DMABUF]: 1 }), all);
  assert.deepEqual(factsOf({ [REACHABLE]: 1, [ORDERING]: 0, [DMABUF]: 0 }), {
    isReachable: true,
    exportsDmabuf: false,
    ordersWrites: false,
  });
});

test('a driver that does not know these questions offers nothing', () => {
  assert.deepEqual(factsOf({}), {
    isReachable: false,
    exportsDmabuf: false,
    ordersWrites: false,
  });
});

test('each GPU is listed by its PCI address; none where the driver does not start', () => {
  const { driver, status } = pretendGpu({ [REACHABLE]: 1 });
  status.cuDeviceGetCount = (out) => (((out as number[])[0] = 2), 0);
  status.cuDeviceGet = (out, ordinal) => (((out as number[])[0] = ordinal as number), 0);
  status.cuDeviceGetPCIBusId = (id, _bytes, device) => {
    Buffer.from(`0000:${device === 0 ? '3B' : 'AF'}:00.0\0`).copy(id as Uint8Array);
    return 0;
  };
  assert.deepEqual(
    listGpuRdmaFacts(driver).map(({ gpu, facts }) => [gpu, facts.isReachable]),
    [
      ['0000:3b:00.0', true],
      ['0000:af:00.0', true],
    ],
  );
  status.cuInit = 100;
  assert.deepEqual(listGpuRdmaFacts(driver), []);
});

function moduleAt(place: string): string | undefined {
  return peermemModule({ ...localFiles(), exists: (path) => path === place });
}

test('the module that translates addresses of GPUs is found under each of its names', () => {
  assert.equal(moduleAt('/sys/module/nvidia_peermem'), 'nvidia-peermem');
  assert.equal(moduleAt('/sys/kernel/mm/memory_peers/nv_mem'), 'nv_peer_mem');
  assert.equal(moduleAt('/sys/module/nvidia'), undefined);
});
