// Memory of GPUs that a backend reaches itself, beside memory that is staged because it does not. The GPUs are pretended: their
// memory is the host's, which multipath then carries as a backend over RDMA would carry theirs.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import type { AgentMemory, CreateBackend, PathMemory } from '#lib/agent/backend.js';
import { loadHostBackend } from '#lib/agent/backends/backend-table.js';
import { withDeviceMemory } from '#lib/agent/staging/staged-backend.js';
import { NativeBlock } from '#lib/native/library.js';
import { withCode } from '../support/with-code.ts';
import { hostMemory, openBackend, type OpenBackend, pollUntil } from './support/backend-context.ts';
import { planned } from './support/planned-transfer.ts';

const BYTES = 300_000;

/** What the pretended RDMA device does with memory of GPUs. */
type Device = 'registers' | 'refuses' | 'has none';

async function open(name: string, device: Device, rdmaGpuMemory: 'auto' | 'dmabuf' = 'auto'): Promise<OpenBackend> {
  const createMultipath = await loadHostBackend('multipath');
  const create: CreateBackend = async (context) => {
    const backend = await createMultipath(context);
    const register = backend.register.bind(backend);
    const replaced: Partial<typeof backend> = {
      whyNotMemory: () => (device === 'has none' ? 'the device reaches no memory of GPUs' : undefined),
      register: (memory) => {
        if (memory.kind === 'host') return register(memory);
        if (device === 'registers') return register(hostMemory(memoryOf.get(memory)!.bytes));
        throw new WeftlineError('WL_CAPACITY', 'the window of the GPU is full');
      },
      describePath: (memory: readonly PathMemory[]) => `direct: ${memory.map(({ kind }) => kind).join(' ')}`,
    };
    return Object.assign(backend, replaced);
  };
  return openBackend(withDeviceMemory(create), name, { rdmaGpuMemory });
}

const memoryOf = new WeakMap<AgentMemory, NativeBlock>();

function gpuMemory(): { readonly memory: AgentMemory; readonly bytes: Uint8Array } {
  const block = new NativeBlock(BYTES);
  const { address, bytes } = block;
  const memory: AgentMemory = {
    kind: 'cuda',
    address,
    bytes: bytes.length,
    view: undefined,
    device: undefined,
    shared: undefined,
  };
  memoryOf.set(memory, block);
  return { memory, bytes };
}

const ways: readonly (readonly [here: Device, there: Device, how: string])[] = [
  ['registers', 'registers', 'direct: cuda cuda'],
  ['has none', 'registers', 'staged through pinned memory: the device reaches no memory of GPUs'],
  ['refuses', 'registers', 'staged through pinned memory: the window of the GPU is full'],
  ['registers', 'has none', 'staged through pinned memory: the peer stages its memory'],
  ['refuses', 'refuses', 'staged through pinned memory: the window of the GPU is full'],
];

for (const [atHere, atThere, how] of ways) {
  test(`a device that ${atHere} moves memory from and to one that ${atThere}`, async () => {
    const [here, there] = [await open('here', atHere), await open('there', atThere)];
    const both = [here, there];
    try {
      const [own, theirs] = [gpuMemory(), gpuMemory()];
      const local = await here.backend.register(own.memory);
      const offered = await there.backend.register(theirs.memory);
      assert.equal(
        here.backend.describePath?.([
          { kind: 'cuda', local },
          { kind: 'cuda', remote: offered.info },
        ]),
        how,
      );
      const link = await here.backend.connect(there.peer, { timeoutMs: 60_000 });
      const remote = link.importRegion(offered.info, { kind: 'cuda', bytes: BYTES });
      const part = { local, localOffset: 8, remote, remoteOffset: 16, bytes: BYTES - 16 };
      own.bytes.forEach((_, index) => (own.bytes[index] = index % 251));
      const write = await link.prepare('write', planned([part]));
      write.post(Buffer.from('written'));
      await pollUntil(both, () => there.received.length === 1 && write.state !== 'pending');
      assert.equal(write.error, undefined);
      assert.deepEqual(theirs.bytes.subarray(16), own.bytes.subarray(8, BYTES - 8));
      const read = await link.prepare('read', planned([part]));
      own.bytes.fill(0);
      read.post();
      await pollUntil(both, () => read.state !== 'pending');
      assert.equal(read.error, undefined);
      assert.deepEqual(own.bytes.subarray(8, BYTES - 8), theirs.bytes.subarray(16));
      const channel = link.openChannel();
      await channel.prepare?.(local, remote);
      own.bytes.fill(7);
      const place = { local, localOffset: 0, remote, remoteOffset: 64, bytes: 5000 };
      await pollUntil(both, () => channel.put(place));
      await pollUntil(both, () => channel.signal(remote, 0, 3, 3));
      const cells = new BigInt64Array(theirs.bytes.buffer, theirs.bytes.byteOffset, 1);
      await pollUntil(both, () => Atomics.load(cells, 0) === 3n);
      assert.ok(theirs.bytes.subarray(64, 5064).every((byte) => byte === 7));
      await channel.close();
      await local.release();
      await offered.release();
    } finally {
      for (const { backend } of both) await backend.close();
    }
  });
}

test('a way that the setting names is not replaced by staging when it fails', async () => {
  const { backend } = await open('here', 'refuses', 'dmabuf');
  try {
    await assert.rejects(
      async () => backend.register(gpuMemory().memory),
      withCode('WL_CAPACITY', /the window of the GPU is full/),
    );
  } finally {
    await backend.close();
  }
});
