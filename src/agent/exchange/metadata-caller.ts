// Asks another agent's listener: gives it this agent's metadata, takes its own.
import { connect, type Socket } from 'node:net';
import { WeftlineError } from '../../core/errors.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { Agent } from '../agent.ts';
import type { MetadataOptions } from '../agent-options.ts';
import { MetadataChannel } from './metadata-channel.ts';

export interface ListenerAddress extends WaitOptions {
  readonly host: string;
  readonly port: number;
}

/**
 * Each fails with WL_TIMEOUT, WL_PEER_LOST (nobody listens, or it broke off), WL_UNAUTHORIZED (another token), WL_PROTOCOL
 * (not an agent), WL_STALE (a later life of the agent is known there).
 */
export async function sendMetadata(agent: Agent, address: ListenerAddress, options?: MetadataOptions): Promise<void> {
  const blob = agent.localMetadata(options);
  await call(agent, address, (channel) => channel.ask({ verb: 'load', blob }));
}

/** Loads the listener's metadata; returns its name. */
export async function fetchMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return call(agent, address, (channel) => fetchFrom(agent, channel));
}

/** Both at once: afterwards the two agents know each other. Returns the other's name. */
export async function exchangeMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return call(agent, address, async (channel) => {
    await channel.ask({ verb: 'load', blob: agent.localMetadata() });
    return fetchFrom(agent, channel);
  });
}

/** Tells the listener's agent to forget this one. */
export async function sendInvalidation(agent: Agent, address: ListenerAddress): Promise<void> {
  await call(agent, address, (channel) => channel.ask({ verb: 'invalidate', name: agent.name }));
}

async function fetchFrom(agent: Agent, channel: MetadataChannel): Promise<string> {
  const { blob } = await channel.ask({ verb: 'fetch' });
  if (blob === undefined) throw new WeftlineError('WL_PROTOCOL', 'A listener answered without metadata');
  return agent.loadRemoteMetadata(blob);
}

async function call<T>(
  agent: Agent,
  address: ListenerAddress,
  talk: (channel: MetadataChannel) => Promise<T>,
): Promise<T> {
  const { host, port, timeoutMs = agent.settings.timeoutMs, signal } = address;
  signal?.throwIfAborted();
  const socket = await dial(host, port, timeoutMs);
  const abort = (): void => void socket.destroy();
  signal?.addEventListener('abort', abort);
  using channel = new MetadataChannel(socket, timeoutMs, `The listener at ${host} port ${port}`);
  try {
    await channel.proveSelf(agent.token);
    const result = await talk(channel);
    channel.send({ verb: 'bye' });
    return result;
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

function dial(host: string, port: number, milliseconds: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port });
    const fail = (code: 'WL_TIMEOUT' | 'WL_PEER_LOST', why: string): void => {
      socket.destroy();
      reject(new WeftlineError(code, `No agent listens at ${host} port ${port}: ${why}`, { details: { host, port } }));
    };
    const timer = setTimeout(() => fail('WL_TIMEOUT', `no answer within ${milliseconds} ms`), milliseconds);
    socket.once('error', (error) => {
      clearTimeout(timer);
      fail('WL_PEER_LOST', error.message);
    });
    socket.once('connect', () => {
      clearTimeout(timer);
      resolve(socket);
    });
  });
}
