// One side of a conversation over the backend ucx: a backend, memory, and what it was told.
import { createBackend } from '#lib/agent/backends/ucx/ucx-backend.js';
import type { AgentMemory } from '#lib/agent/agent-memory.js';
import type { Backend, BackendPeer, BackendRegion } from '#lib/agent/backend.js';
import { WakeWord } from '#lib/threads/wake-word.js';
import { addressOf } from '#lib/native/library.js';
import { openUcx } from '#lib/native/ucx.js';
import { readSettings } from '#lib/settings/settings.js';
import { hostIdentity } from '#lib/world/host-identity.js';
import { reasonOf, skipWithout } from './requirements.js';

export interface SideOptions {
  readonly ownThread?: boolean;
  readonly token?: string;
  readonly incarnation?: string;
  /** 10 s by default. */
  readonly timeoutMs?: number;
}

export class UcxSide implements AsyncDisposable {
  readonly name: string;
  readonly peer: BackendPeer;
  readonly backend: Backend;
  readonly wake: WakeWord;
  readonly messages: string[];

  static async open(name: string, options: SideOptions = {}): Promise<UcxSide> {
    const wake = new WakeWord();
    const messages: string[] = [];
    const incarnation = options.incarnation ?? '0123456789abcdef';
    const backend = await createBackend({
      agentName: name,
      incarnation,
      settings: readSettings({ timeoutMs: options.timeoutMs ?? 10_000 }),
      token: options.token ?? 'token',
      host: '127.0.0.1',
      ownThread: options.ownThread ?? true,
      wake,
      deliver: (peer, message) => messages.push(`${peer}: ${Buffer.from(message).toString()}`),
      mayDeliver: () => true,
    });
    const peer = { name, incarnation, host: hostIdentity(), process: process.pid };
    return new UcxSide(backend, { ...peer, connectionInfo: backend.connectionInfo }, { wake, messages });
  }

  private constructor(
    backend: Backend,
    peer: BackendPeer,
    { wake, messages }: { readonly wake: WakeWord; readonly messages: string[] },
  ) {
    this.backend = backend;
    this.peer = peer;
    this.name = peer.name;
    this.wake = wake;
    this.messages = messages;
  }

  async register(view: Uint8Array): Promise<BackendRegion> {
    return this.backend.register(memoryOf(view));
  }

  /** There is a link that has not ended. */
  get hasLinks(): boolean {
    return this.backend.gainsFromPolling === true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.backend.close();
  }
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

/** What one process tells another of its side, as JSON. */
export function introduce({ peer }: UcxSide, { info }: BackendRegion): string {
  return JSON.stringify({ ...peer, connectionInfo: hex(peer.connectionInfo), region: hex(info) });
}

export function introduced(text: string): { readonly peer: BackendPeer; readonly region: Uint8Array } {
  const { region, ...said } = JSON.parse(text) as BackendPeer & { connectionInfo: string; region: string };
  return {
    peer: { ...said, connectionInfo: Buffer.from(said.connectionInfo, 'hex') },
    region: Buffer.from(region, 'hex'),
  };
}

/** Memory that does not move. */
export function fixedBytes(bytes: number): Uint8Array {
  return new Uint8Array(new SharedArrayBuffer(bytes));
}

function memoryOf(view: Uint8Array): AgentMemory {
  const address = Number(addressOf(view));
  return { kind: 'host', address, bytes: view.length, view, device: undefined, shared: undefined };
}

/** Lets all sides work until the condition holds. */
export async function until(sides: readonly UcxSide[], isSo: () => boolean): Promise<void> {
  const end = performance.now() + 20_000;
  while (!isSo()) {
    for (const side of sides) side.backend.poll();
    if (performance.now() > end) throw new Error('it did not come to pass within 20 s');
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Why tests of UCX are to be skipped; false if they are not. */
export function whyNoUcx(): string | false {
  try {
    openUcx();
    return false;
  } catch (error) {
    return skipWithout('ucx', reasonOf(error));
  }
}
