// Registers memory of a GPU as a dmabuf, with a CUDA driver and an RDMA device that are pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Block } from '#lib/abi/layout.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import { NativeBlock } from '#lib/native/library.js';
import type { ProtectionDomain } from '#lib/native/verbs/context.js';
import { ibvMr } from '#lib/native/verbs/c-structs.js';
import { MemoryRegion, whyNoDmabuf } from '#lib/native/verbs/memory-region.js';
import { WeftlineError } from 'weftline';
import { withCode } from '../../support/with-code.ts';
import { pretendDriver } from '../support/pretended-driver.ts';

const DMABUF_DESCRIPTOR = 1;
const BASE = 0x7f00_0000_0000;
const PAGE = process.arch === 'arm64' ? 65_536 : 4096;

function pretendGpu(): { readonly gpu: CudaDevice } & ReturnType<typeof pretendDriver> {
  const pretended = pretendDriver();
  const context = CudaContext.retain(0, pretended.driver);
  const gpu = Object.create(CudaDevice.prototype, { context: { value: context } }) as CudaDevice;
  return { gpu, ...pretended };
}

test('whole pages around the memory are exported, and the descriptor comes with where in them it begins', () => {
  const { gpu, status } = pretendGpu();
  let asked: unknown[] = [];
  status.cuMemGetHandleForAddressRange = (descriptor, ...parameters) => {
    (descriptor as number[])[0] = 77;
    asked = parameters;
    return 0;
  };
  assert.deepEqual(gpu.exportDmabuf(BASE + 512, PAGE), { descriptor: 77, offset: 512 });
  assert.deepEqual(asked, [BASE, 2 * PAGE, DMABUF_DESCRIPTOR, 0]);
  assert.deepEqual(gpu.exportDmabuf(BASE, PAGE), { descriptor: 77, offset: 0 });
  assert.deepEqual(asked, [BASE, PAGE, DMABUF_DESCRIPTOR, 0]);
});

test('a driver that exports nothing after all says which call it refused', () => {
  const { gpu, status } = pretendGpu();
  status.cuMemGetHandleForAddressRange = 801;
  assert.throws(
    () => gpu.exportDmabuf(BASE, 64),
    withCode('WL_CUDA', /^cuMemGetHandleForAddressRange failed on GPU 0/),
  );
});

type RegisterDmabuf = (...parameters: number[]) => number;

function pretendDomain(ibv_reg_dmabuf_mr: RegisterDmabuf): ProtectionDomain {
  const context = {
    device: 'mlx5_0',
    attributes: { maxMrSize: 2 ** 40, maxMr: 1000 },
    counts: { regions: 0 },
    calls: { ibv_reg_dmabuf_mr, ibv_dereg_mr: () => 0 },
    requireOpen: () => {},
    adopt: () => {},
    release: () => {},
  };
  return { context, address: 4096 } as unknown as ProtectionDomain;
}

test('the device registers the descriptor, and peers name the memory by the address that the GPU has for it', () => {
  const made = new NativeBlock(ibvMr.size);
  const block = Block.over(ibvMr, made.bytes);
  block.set('localKey', 11);
  block.set('remoteKey', 12);
  const asked: number[][] = [];
  const domain = pretendDomain((...parameters) => (asked.push(parameters), made.address));
  const memory = { descriptor: 77, offset: 512, bytes: 1000, address: BASE + 512 };
  const region = MemoryRegion.dmabuf(domain, memory, { remoteWrite: true, remoteRead: true, remoteAtomic: true });
  const everything = 1 | 2 | 4 | 8;
  assert.deepEqual(asked, [[4096, 512, 1000, BASE + 512, 77, everything]]);
  assert.deepEqual([region.localKey, region.remoteKey], [11, 12]);
});

test('a window of the GPU that is too small for the memory is a limit', () => {
  const domain = pretendDomain(() => -12);
  const memory = { descriptor: 77, offset: 0, bytes: 1 << 30, address: BASE };
  assert.throws(
    () => MemoryRegion.dmabuf(domain, memory),
    withCode('WL_CAPACITY', /^ibv_reg_dmabuf_mr failed with ENOMEM/),
  );
});

test('whether a device registers dmabufs is asked with a descriptor that is none', () => {
  const asked: number[][] = [];
  const EBADF = 9;
  assert.equal(whyNoDmabuf(pretendDomain((...parameters) => (asked.push(parameters), -EBADF))), undefined);
  assert.deepEqual(asked, [[4096, 0, 0, 0, -1, 0]]);
  const says = /^the driver of mlx5_0, or the kernel, registers no dmabuf$/;
  for (const errno of [95, 25, 93]) assert.match(whyNoDmabuf(pretendDomain(() => -errno)) ?? '', says);
  const tooOld = new WeftlineError(
    'WL_UNSUPPORTED',
    'libibverbs.so.1 has no function ibv_reg_dmabuf_mr: it is too old',
  );
  const without = pretendDomain(() => {
    throw tooOld;
  });
  assert.equal(whyNoDmabuf(without), tooOld.message);
});
