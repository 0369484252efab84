// Everything that listens, in one process, and how an honest process reaches each of them.
import { type Settings, WeftlineError } from 'weftline';
import { Agent, Endpoint, fetchMetadata, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';
import { join, type World } from 'weftline/world';
import { decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';
import { freePort } from '../../support/free-port.ts';

export type TargetKind = 'store' | 'transport' | 'endpoint' | 'metadata' | 'multipath';

/** Where a listener is, and what an honest process knows of it beside that. */
export interface Target {
  readonly kind: TargetKind;
  readonly port: number;
  /** Metadata of the agent behind the port. */
  readonly metadata?: Uint8Array;
}

/** Short, so that strangers are through with soon; small, so that a flood is one. */
export const settings: Partial<Settings> = { timeoutMs: 60_000, greetingMs: 1500, maxStrangers: 64 };

const host = '127.0.0.1';
/** An empty token is none: the variable of the environment must not take its place. */
const common = (token: string) => (token === '' ? { settings } : { settings, token });

/** All listeners of this process. */
export async function listenAtAll(token: string): Promise<readonly Target[]> {
  const targets: Target[] = [];
  const transport = await Transport.create({ ...common(token), name: 'host' });
  const listener = await transport.listen({ host, port: 0 });
  targets.push({ kind: 'transport', port: listener.port });
  void acceptAll(
    () => listener.accept({ timeoutMs: 2 ** 30 }),
    (connection) => void connection.close(),
  );
  const endpoint = await Endpoint.create(common(token));
  targets.push({ kind: 'endpoint', port: endpoint.port });
  void acceptAll(
    () => endpoint.accept({ timeoutMs: 2 ** 30 }),
    () => {},
  );
  const agent = await Agent.create('host', { ...common(token), backends: ['multipath'] });
  const metadata = await MetadataListener.open(agent, { host, port: 0 });
  targets.push({ kind: 'metadata', port: metadata.port });
  const blob = agent.localMetadata();
  targets.push({ kind: 'multipath', port: portOf(blob), metadata: blob });
  const port = await freePort(host);
  // A world of two, both of whom are here.
  await Promise.all([joinAs(0, port, token), joinAs(1, port, token)]);
  targets.push({ kind: 'store', port });
  return targets;
}

/** Meets a listener as its user would, and leaves again. `number`: of the caller, for its name. */
export async function reach(target: Target, token: string, number: number): Promise<void> {
  const { kind, port, metadata } = target;
  switch (kind) {
    case 'transport': {
      await using transport = await Transport.create({ ...common(token), name: 'caller' });
      await transport.connect({ host, port });
      return;
    }
    case 'endpoint': {
      await using endpoint = await Endpoint.create(common(token));
      await endpoint.connect(host, port);
      return;
    }
    case 'metadata': {
      await using agent = await Agent.create(`caller ${number}`, { ...common(token), backends: ['multipath'] });
      await fetchMetadata(agent, { host, port });
      return;
    }
    case 'store': {
      // Only who has proven itself hears that the rank is there already.
      const outcome = await joinAs(1, port, token).then(
        () => 'it joined',
        (error: unknown) => error,
      );
      if (outcome instanceof WeftlineError && outcome.code === 'WL_RANK_TAKEN') return;
      throw outcome;
    }
    case 'multipath': {
      await using agent = await Agent.create(`caller ${number}`, { ...common(token), backends: [kind] });
      const peer = await agent.loadRemoteMetadata(withPort(metadata as Uint8Array, port));
      await agent.connect(peer, { backend: kind });
      return;
    }
    default:
      kind satisfies never;
  }
}

async function acceptAll<T>(accept: () => Promise<T>, then: (connection: T) => void): Promise<void> {
  for (;;) then(await accept());
}

function joinAs(rank: number, port: number, token: string): Promise<World> {
  const environment = {
    RANK: String(rank),
    WORLD_SIZE: '2',
    LOCAL_RANK: String(rank),
    LOCAL_WORLD_SIZE: '2',
    MASTER_ADDR: host,
    MASTER_PORT: String(port),
    TORCHELASTIC_RUN_ID: 'strangers',
    ...(token === '' ? {} : { WEFTLINE_TOKEN: token }),
  };
  return join({ environment, settings });
}

function portOf(blob: Uint8Array): number {
  const info = decodeMetadata(blob).connections.get('multipath') ?? new Uint8Array();
  return (JSON.parse(Buffer.from(info).toString()) as { port: number }).port;
}

/** The same agent, reached through another port, at which somebody listens in between. */
function withPort(blob: Uint8Array, port: number): Uint8Array {
  const metadata = decodeMetadata(blob);
  const info = Buffer.from(metadata.connections.get('multipath') ?? []);
  const moved = Buffer.from(JSON.stringify({ ...(JSON.parse(info.toString()) as object), port }));
  return encodeMetadata({ ...metadata, connections: new Map([...metadata.connections, ['multipath', moved]]) });
}
