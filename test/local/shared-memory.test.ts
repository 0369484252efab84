import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { SharedMemory, type SharedMemoryName } from '#lib/windows/shared-memory.js';

const peerModule = new URL('./support/shared-memory-peer.js', import.meta.url).pathname;

test('SharedMemory is one memory in two processes, and has no path', async () => {
  using memory = SharedMemory.create('test', 10_000, true);
  const bytes = new Uint8Array(memory.buffer());
  bytes[9_999] = 41;
  const peer = spawn(process.execPath, [peerModule, JSON.stringify(memory.name)], { stdio: 'inherit' });
  const [code] = (await once(peer, 'exit')) as [number];
  assert.equal(code, 0);
  assert.equal(bytes[9_999], 42);
  assert.deepEqual(
    readdirSync('/dev/shm').filter((name) => name.startsWith('weftline-test')),
    [],
  );
});

test('SharedMemory.open() tells memory that is gone, another file and a process that is gone', () => {
  const memory = SharedMemory.create('test', 4096, false);
  const { name } = memory;
  const refuses = (changed: Partial<SharedMemoryName>): void => {
    assert.throws(
      () => SharedMemory.open({ ...name, ...changed }, 'agent b'),
      (error: unknown) =>
        error instanceof WeftlineError && error.code === 'WL_PEER_LOST' && error.message.includes('agent b'),
    );
  };
  using other = SharedMemory.open(name, 'agent b');
  assert.equal(new Uint8Array(other.buffer()).length, 4096);
  refuses({ inode: name.inode + 1 });
  refuses({ bytes: 8192 });
  refuses({ fd: 0 });
  refuses({ pid: 2 ** 22 + 1 });
  memory[Symbol.dispose]();
  memory[Symbol.dispose]();
  refuses({});
});

test('SharedMemory.create() refuses sizes that cannot be', () => {
  for (const bytes of [0, -1, 1.5, 2 ** 32]) {
    assert.throws(
      () => SharedMemory.create('test', bytes, false),
      (error: unknown) => error instanceof WeftlineError && error.code === 'WL_INVALID_ARGUMENT',
    );
  }
});
