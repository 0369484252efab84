// Every listener that weftline has, each with a way to visit it: for tests of who is let in.
import { Agent, Endpoint, fetchMetadata, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';
import { decodeMetadata } from '#lib/agent/metadata.js';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { StoreClient } from '#lib/world/store-client.js';
import { StoreServer } from '#lib/world/store-server.js';

export interface Target {
  readonly name: string;
  readonly port: number;
  /** Whatever else a visitor must know, as JSON expresses it. */
  readonly facts: Readonly<Record<string, unknown>>;
}

export interface OpenListener extends Target {
  readonly close: () => Promise<unknown>;
}

export const host = '127.0.0.1';
const settings = { timeoutMs: 120_000, transportThread: false };
/** The store lets twice as many strangers in. */
const STORE_SIZE = 128;

export async function openListeners(token: string): Promise<OpenListener[]> {
  const transport = await Transport.create({ token, settings });
  const { port } = await transport.listen({ host, port: 0 });
  const endpoint = await Endpoint.create({ token, settings, backends: ['multipath'] });
  const agent = await Agent.create('visited', { token, settings, backends: ['multipath'] });
  const metadata = await MetadataListener.open(agent);
  const { connections, incarnation } = decodeMetadata(agent.localMetadata());
  const multipath = JSON.parse(Buffer.from(connections.get('multipath') ?? []).toString()) as { readonly port: number };
  const store = await StoreServer.listen({
    listen: { host, port: 0 },
    size: STORE_SIZE,
    credential: credentialsOf(token, 'job').read(),
    jobId: 'job',
    maxValueBytes: 1024,
    // The world has few ranks.
    settings: { maxStrangers: 64, greetingMs: 10_000, timeoutMs: 120_000 },
  });
  return [
    { name: 'transport', port, facts: {}, close: () => transport.close() },
    { name: 'endpoint', port: endpoint.port, facts: {}, close: () => endpoint.close() },
    { name: 'metadata', port: metadata.port, facts: {}, close: () => metadata.close() },
    { name: 'multipath', port: multipath.port, facts: { incarnation }, close: () => agent.close() },
    { name: 'store', port: store.port, facts: {}, close: () => store.stop(0) },
  ];
}

/** Each visit takes a rank; those of a visitor's process begin elsewhere. */
let nextRank = process.argv[1]?.endsWith('visitor.js') === true ? STORE_SIZE / 2 : 0;

const visitors: Readonly<Record<string, (target: Target, token: string, timeoutMs: number) => Promise<void>>> = {
  async transport({ port, facts }, token, timeoutMs) {
    await using transport = await Transport.create({ token, settings });
    const connection = await transport.connect({ host, port }, { timeoutMs, ...facts });
    await connection.close();
  },

  async endpoint({ port }, token, timeoutMs) {
    await using endpoint = await Endpoint.create({ token, settings, backends: ['multipath'] });
    await endpoint.connect(host, port, { timeoutMs });
  },

  async metadata({ port }, token, timeoutMs) {
    await using agent = await Agent.create('visitor', { token, settings, backends: ['multipath'] });
    await fetchMetadata(agent, { host, port, timeoutMs });
  },

  async multipath({ facts, ...target }, token, timeoutMs) {
    const hello = { name: 'visitor', incarnation: '0', expects: facts['incarnation'], region: 0, key: 0 };
    await visitors['transport']?.({ ...target, facts: { hello } }, token, timeoutMs);
  },

  async store({ port }, token, timeoutMs) {
    const credentials = credentialsOf(token, 'job');
    const rank = nextRank++;
    const client = await StoreClient.connect({ host, port, rank, size: STORE_SIZE, credentials, timeoutMs });
    await client.close();
  },
};

/** Meets the listener and leaves. Fails as the listener's own client does. */
export async function visit(target: Target, token: string, timeoutMs = 60_000): Promise<void> {
  await visitors[target.name]?.(target, token, timeoutMs);
}

/** The code of the error that the visit ended with, or "met". */
export async function outcomeOf(target: Target, token: string, timeoutMs?: number): Promise<string> {
  try {
    await visit(target, token, timeoutMs);
    return 'met';
  } catch (error) {
    return (error as { readonly code?: string }).code ?? String(error);
  }
}
