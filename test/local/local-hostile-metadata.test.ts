// Metadata of a peer of this host that lie: no byte outside of the peer's memory is touched, nobody else is disturbed.
import assert from 'node:assert/strict';
import { type ChildProcess, fork, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { Agent } from 'weftline/agent';
import { MAILBOX_REGIONS } from '#lib/agent/backends/local/mailbox-layout.js';
import { localRegionInfo } from '#lib/agent/backends/local/local-region.js';
import { Block } from '#lib/abi/layout.js';
import type { BackendLink } from '#lib/agent/backend.js';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';
import { skipWithout } from './support/requirements.ts';
import { openBackend, type OpenBackend, sharedMemory } from './support/backend-context.ts';

const BYTES = 4096;

type Field = keyof typeof localRegionInfo.offset;

async function openTwo(): Promise<{ a: OpenBackend; b: OpenBackend; link: BackendLink } & AsyncDisposable> {
  const a = await openBackend(createBackend, 'agent a');
  const b = await openBackend(createBackend, 'agent b');
  const link = await a.backend.connect(b.peer, { timeoutMs: 120_000 });
  return {
    a,
    b,
    link,
    [Symbol.asyncDispose]: async () => {
      await a.backend.close();
      await b.backend.close();
    },
  };
}

/** A region's description with some fields changed. */
function changed(info: Uint8Array, fields: Readonly<Partial<Record<Field, number>>>): Uint8Array {
  const copy = Uint8Array.from(info);
  const block = Block.over(localRegionInfo, copy);
  for (const [name, value] of Object.entries(fields) as [Field, number][]) block.set(name, value);
  return copy;
}

test('a region that claims more of a mapped file than the file has is refused', async () => {
  await using two = await openTwo();
  const { b, link } = two;
  using memory = SharedMemory.create('test', BYTES, false);
  const { info } = await b.backend.register(sharedMemory(memory));
  link.importRegion(info, { kind: 'host', bytes: BYTES });
  // The file is mapped by now; what the same metadata say of it a second time must fit as well.
  const lies: readonly Readonly<Partial<Record<Field, number>>>[] = [
    { mappedBytes: 1 << 30, address: 1 << 20 },
    { mappedBytes: 2 * BYTES, address: BYTES },
  ];
  for (const lie of lies) {
    assert.throws(() => link.importRegion(changed(info, lie), { kind: 'host', bytes: BYTES }), {
      code: 'WL_PROTOCOL',
    });
  }
  // A file of another device with the same inode is not that one.
  const elsewhere = changed(info, { device: 2 ** 40 });
  assert.throws(() => link.importRegion(elsewhere, { kind: 'host', bytes: BYTES }), { code: 'WL_PEER_LOST' });
  link.importRegion(info, { kind: 'host', bytes: BYTES });
});

test('a region outside of the table of regions is refused, and the backend goes on', async () => {
  await using two = await openTwo();
  const { a, b, link } = two;
  using memory = SharedMemory.create('test', BYTES, false);
  const { info } = await b.backend.register(sharedMemory(memory));
  for (const slot of [MAILBOX_REGIONS, 2 ** 31, 2 ** 32 - 1]) {
    assert.throws(() => link.importRegion(changed(info, { slot }), { kind: 'host', bytes: BYTES }), {
      code: 'WL_PROTOCOL',
    });
  }
  link.importRegion(info, { kind: 'host', bytes: BYTES });
  for (let round = 0; round < 1000; round += 1) a.backend.poll();
});

/** Nobody. */
const OTHER_USER = 65_534;
const script = fileURLToPath(new URL('./support/agent-of-other-user.js', import.meta.url));

function whyNoOtherUser(): string | undefined {
  if (process.geteuid?.() !== 0) return 'needs root, to run a process as another user';
  const { status } = spawnSync(process.execPath, ['--check', script], { uid: OTHER_USER, gid: OTHER_USER, cwd: '/' });
  return status === 0 ? undefined : `user ${OTHER_USER} cannot read this folder`;
}

const lacking = skipWithout('other-user', whyNoOtherUser());

test(
  'root does not take an agent of another user for a peer, whatever its metadata say',
  { skip: lacking },
  async () => {
    const child: ChildProcess = fork(script, {
      uid: OTHER_USER,
      gid: OTHER_USER,
      execArgv: [],
      serialization: 'advanced',
    });
    const agent = await Agent.create('A', { backends: ['local'] });
    try {
      const [asItIs, asRoot] = ((await once(child, 'message')) as [readonly [Uint8Array, Uint8Array]])[0];
      for (const blob of [asItIs, asRoot]) {
        await agent.forget('B');
        await agent.loadRemoteMetadata(Uint8Array.from(blob));
        await assert.rejects(agent.connect('B'), (error: { readonly code?: string }) =>
          /^WL_(UNSUPPORTED|SHARED_MEMORY)$/.test(error.code ?? ''),
        );
      }
    } finally {
      child.kill('SIGKILL');
      await agent.close();
    }
  },
);
