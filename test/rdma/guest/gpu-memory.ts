// In the guest: memory of a GPU that the RDMA device registers itself. The GPU is pretended, and its memory is the host's, which
// is registered as nvidia-peermem has it: by its addresses.
import assert from 'node:assert/strict';
import { fstatSync, openSync } from 'node:fs';
import test from 'node:test';
import type { Settings } from 'weftline';
import type { AgentMemory } from '#lib/agent/backend.js';
import { loadHostBackend } from '#lib/agent/backends/backend-table.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import { NativeBlock } from '#lib/native/library.js';
import { openBackend, type OpenBackend } from '../../local/support/backend-context.ts';
import { planned } from '../../local/support/planned-transfer.ts';
import { withCode } from '../../support/with-code.ts';
import { type PretendedDriver, pretendDriver } from '../../unit/support/pretended-driver.ts';
import { fill } from './support/pair.ts';
import { pollAll } from './support/agents.ts';

const BYTES = 1 << 20;

/** A GPU that says of all attributes that it does not have them: it does not show writes in order either. */
function pretendGpu(): { readonly gpu: CudaDevice; readonly status: PretendedDriver['status'] } {
  const { driver, status } = pretendDriver();
  status.cuDeviceGetAttribute = 1;
  const context = CudaContext.retain(0, driver);
  return { gpu: Object.create(CudaDevice.prototype, { context: { value: context } }) as CudaDevice, status };
}

function memoryOf(device: CudaDevice, { address, bytes }: NativeBlock): AgentMemory {
  return { kind: 'cuda', address, bytes: bytes.length, view: undefined, device, shared: undefined };
}

async function openOne(device: string, rdmaGpuMemory: Settings['rdmaGpuMemory']): Promise<OpenBackend> {
  const create = await loadHostBackend('verbs');
  return openBackend(create, device, { rdmaDevices: device, rdmaGpuMemory });
}

test('memory of GPUs is written, read, put to and told of behind its flush', async () => {
  const { gpu } = pretendGpu();
  const [here, there] = [await openOne('rxe0', 'peermem'), await openOne('rxe1', 'peermem')];
  const both = [here, there];
  try {
    const [out, into] = [new NativeBlock(BYTES), new NativeBlock(BYTES)];
    const local = await here.backend.register(memoryOf(gpu, out));
    const offered = await there.backend.register(memoryOf(gpu, into));
    const link = await here.backend.connect(there.peer, { timeoutMs: 120_000 });
    const remote = link.importRegion(offered.info, { kind: 'cuda', bytes: BYTES });
    assert.equal(
      here.backend.describePath?.([
        { kind: 'cuda', local },
        { kind: 'cuda', remote: offered.info },
      ]),
      "GPU memory by peermem: the setting rdmaGpuMemory names it; the peer's GPU memory by its RDMA device",
    );
    const half = BYTES / 2;
    const parts = [
      { local, localOffset: 0, remote, remoteOffset: half, bytes: half - 8 },
      { local, localOffset: half, remote, remoteOffset: 8, bytes: half - 8 },
    ];
    const write = await link.prepare('write', planned(parts));
    const read = await link.prepare('read', planned(parts));
    for (let round = 1; round <= 6; round += 1) {
      fill(out.bytes, round);
      const told = round % 2 === 0 ? 'abc' : `round ${round}`;
      write.post(Buffer.from(told));
      // ORDER: nothing but the message is waited for.
      await pollAll(both, () => there.received.length === round, 'the message does not come');
      assert.equal(there.received.at(-1)?.text, told);
      assert.deepEqual(into.bytes.subarray(half, BYTES - 8), out.bytes.subarray(0, half - 8));
      assert.deepEqual(into.bytes.subarray(8, half), out.bytes.subarray(half, BYTES - 8));
      await pollAll(both, () => write.state === 'done', 'the write does not end');
      out.bytes.fill(0);
      read.post();
      await pollAll(both, () => read.state !== 'pending', 'the read does not end');
      assert.equal(read.error, undefined);
      assert.deepEqual(out.bytes.subarray(0, half - 8), into.bytes.subarray(half, BYTES - 8));
    }
    const cells = new BigInt64Array(into.bytes.buffer, into.bytes.byteOffset, 1);
    cells[0] = 0n;
    const channel = link.openChannel();
    for (let round = 1; round <= 40; round += 1) {
      out.bytes.fill(round, 0, 4096);
      assert.ok(channel.put({ local, localOffset: 0, remote, remoteOffset: 4096, bytes: 4096 }));
      assert.ok(channel.signal(remote, 0, 1));
      await pollAll(both, () => Atomics.load(cells, 0) === BigInt(round), 'the signal does not come');
      assert.ok(into.bytes.subarray(4096, 8192).every((byte) => byte === (round & 0xff)));
      await pollAll(both, () => channel.delivered === channel.posted, 'the signal is not delivered');
    }
    await channel.close();
  } finally {
    for (const { backend } of both) await backend.close();
  }
});

test('by itself the device of the guest reaches no memory of a GPU, and says why', async () => {
  const { gpu, status } = pretendGpu();
  status.cuDeviceGetAttribute = (value) => (((value as number[])[0] = 1), 0);
  const { backend } = await openOne('rxe0', 'auto');
  const why = backend.whyNotMemory(memoryOf(gpu, new NativeBlock(4096)));
  assert.match(why ?? '', /^the driver of rxe0, or the kernel, registers no dmabuf; and nvidia-peermem is not loaded/);
  await backend.close();
});

test('a way that the setting names and that is not there is refused by name, and leaves no descriptor open', async () => {
  const { gpu, status } = pretendGpu();
  const { backend } = await openOne('rxe0', 'dmabuf');
  let descriptor = -1;
  status.cuMemGetHandleForAddressRange = (out) => {
    descriptor = openSync('/dev/zero', 'r');
    (out as number[])[0] = descriptor;
    return 0;
  };
  const memory = memoryOf(gpu, new NativeBlock(4096));
  await assert.rejects(backend.register(memory), withCode('WL_UNSUPPORTED', /^rxe0 cannot register memory of other/));
  assert.throws(() => fstatSync(descriptor), /EBADF/);
  status.cuMemGetHandleForAddressRange = 801;
  await assert.rejects(backend.register(memory), withCode('WL_CUDA', /^cuMemGetHandleForAddressRange failed/));
  await backend.close();
});
