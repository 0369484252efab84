// A backend without an agent: its context, and what it delivered.
import { randomBytes } from 'node:crypto';
import { readSettings, type Settings } from 'weftline';
import type { AgentMemory, Backend, BackendContext, BackendPeer, CreateBackend } from '#lib/agent/backend.js';
import { WakeWord } from '#lib/threads/wake-word.js';
import type { SharedMemory } from '#lib/windows/shared-memory.js';
import { addressOf } from '#lib/native/library.js';
import { hostIdentity } from '#lib/world/host-identity.js';

export interface OpenBackend {
  readonly name: string;
  readonly backend: Backend;
  readonly wake: WakeWord;
  readonly received: { readonly peer: string; readonly text: string }[];
  /** What other agents know of it. */
  readonly peer: BackendPeer;
}

export async function openBackend(
  create: CreateBackend,
  name: string,
  settings: Partial<Settings> = {},
): Promise<OpenBackend> {
  const received: { peer: string; text: string }[] = [];
  const wake = new WakeWord();
  const incarnation = randomBytes(8).toString('hex');
  const context: BackendContext = {
    agentName: name,
    incarnation,
    settings: readSettings(settings),
    token: '',
    host: '127.0.0.1',
    ownThread: false,
    wake,
    deliver: (peer, message) => received.push({ peer, text: Buffer.from(message).toString() }),
    mayDeliver: () => true,
  };
  const backend = await create(context);
  const { connectionInfo } = backend;
  const peer = { name, incarnation, host: hostIdentity(), process: process.pid, connectionInfo };
  return { name, backend, wake, received, peer };
}

export function hostMemory(view: Uint8Array): AgentMemory {
  const address = Number(addressOf(view));
  return { kind: 'host', address, bytes: view.length, view, device: undefined, shared: undefined };
}

export function sharedMemory(memory: SharedMemory, offset = 0, bytes: number = memory.bytes - offset): AgentMemory {
  const view = new Uint8Array(memory.buffer(), offset, bytes);
  return {
    kind: 'host',
    address: memory.address + offset,
    bytes,
    view,
    device: undefined,
    shared: { memory, offset },
  };
}

/** Polls both until it holds. */
export async function pollUntil(opens: readonly OpenBackend[], ready: () => boolean): Promise<void> {
  const end = performance.now() + 60_000;
  for (;;) {
    for (const { backend } of opens) backend.poll();
    if (ready()) return;
    if (performance.now() > end) throw new Error('nothing came');
    await new Promise((resolve) => setImmediate(resolve));
  }
}
