// An agent here and one in another process, which know each other.
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Agent, type AgentOptions, type BackendName } from 'weftline/agent';
import type { AgentConfiguration } from './agent-configurations.ts';
import type { PeerCommand } from './agent-peer.ts';
import { decodeError, type EncodedError } from '#lib/core/errors.js';

const script = fileURLToPath(new URL('./agent-peer.js', import.meta.url));

/** What a test gives the peer to do. */
export class AgentPeer implements AsyncDisposable {
  readonly child: ChildProcess;

  static async start(name: string, options: AgentOptions): Promise<AgentPeer> {
    const peer = new AgentPeer();
    await peer.do({ do: 'create', name, options });
    return peer;
  }

  private constructor() {
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
    this.child = fork(script, { serialization: 'advanced', env, execArgv: [] });
  }

  async do(command: PeerCommand): Promise<unknown> {
    const settled = new AbortController();
    const { signal } = settled;
    const answer = once(this.child, 'message', { signal });
    const lost = once(this.child, 'exit', { signal }).then(() => assert.fail(`the peer ended at ${command.do}`));
    for (const end of [answer, lost]) end.catch(() => {});
    this.child.send(command);
    const [message] = (await Promise.race([answer, lost])) as [{ result?: unknown; error?: EncodedError }];
    settled.abort();
    if (message.error !== undefined) throw decodeError(message.error);
    return message.result;
  }

  async bytes(name: string, offset: number, count: number): Promise<Uint8Array> {
    return (await this.do({ do: 'bytes', name, offset, count })) as Uint8Array;
  }

  async metadata(): Promise<Uint8Array> {
    return (await this.do({ do: 'metadata' })) as Uint8Array;
  }

  async kill(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill('SIGKILL');
    await once(this.child, 'exit');
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}

export interface AgentPair extends AsyncDisposable {
  readonly agent: Agent;
  readonly peer: AgentPeer;
}

const remoteNames = ['allocated', 'plain'];

/** `bytes` of memory named `allocated` and of memory named `plain` at the peer, filled with 7. */
export async function openPair(
  configuration: AgentConfiguration | BackendName,
  bytes: number,
  options: AgentOptions = {},
): Promise<AgentPair> {
  const { backend, here, there } =
    typeof configuration === 'string' ? { backend: configuration, here: {}, there: {} } : configuration;
  const all = { token: 'secret', settings: { timeoutMs: 120_000 }, ...options, backends: [backend] };
  const settingsOf = (own: AgentOptions): AgentOptions => ({ settings: { ...all.settings, ...own.settings } });
  const agent = await Agent.create('here', { ...all, ...here, ...settingsOf(here) });
  const peer = await AgentPeer.start('there', { ...all, ...there, ...settingsOf(there), ownThread: true });
  await peer.do({ do: 'allocate', name: 'allocated', bytes });
  await peer.do({ do: 'register', name: 'plain', bytes });
  for (const name of remoteNames) await peer.do({ do: 'fill', name, value: 7 });
  assert.equal(await agent.loadRemoteMetadata(await peer.metadata()), 'there');
  return {
    agent,
    peer,
    [Symbol.asyncDispose]: async () => {
      await agent.close();
      await peer.kill();
    },
  };
}

/** A pair that tests use one after the other, and leave as they found it. Opened when first asked for. */
export class SharedPair {
  readonly #configuration: AgentConfiguration;
  readonly #bytes: number;
  #pair: AgentPair | undefined;

  /** `bytes`: of each of the peer's memories. */
  constructor(configuration: AgentConfiguration, bytes: number) {
    this.#configuration = configuration;
    this.#bytes = bytes;
  }

  /** Its memory is filled with 7 again. */
  async use(): Promise<AgentPair> {
    if (this.#pair === undefined) this.#pair = await openPair(this.#configuration, this.#bytes);
    else for (const name of remoteNames) await this.#pair.peer.do({ do: 'fill', name, value: 7 });
    return this.#pair;
  }

  /** The pair is the caller's, who closes it. */
  async take(): Promise<AgentPair> {
    const pair = await this.use();
    this.#pair = undefined;
    return pair;
  }

  async close(): Promise<void> {
    await this.#pair?.[Symbol.asyncDispose]();
    this.#pair = undefined;
  }
}
