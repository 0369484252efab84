// Asks another agent's listener: gives it this agent's metadata, takes its own.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { deadlineOf, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import { call } from '../../meeting/dial.ts';
import type { Agent } from '../agent.ts';
import { credentialsOfAgent } from '../agent-credentials.ts';
import type { MetadataOptions } from '../agent-options.ts';
import { MetadataChannel, metadataHello } from './metadata-channel.ts';
import { requireAgent } from './require-agent.ts';

/** Where a MetadataListener listens. */
export interface ListenerAddress extends WaitOptions {
  readonly host: string;
  readonly port: number;
}

export const addressNames: OptionNames<ListenerAddress> = { ...waitOptionNames, host: true, port: true };

/**
 * Each fails with WL_TIMEOUT, WL_PEER_LOST (nobody listens, or it broke off), WL_UNAUTHORIZED (another token or user), WL_PROTOCOL
 * (not an agent). What is learnt of another life of the agent is replaced, whether that still answers or not.
 * @param agent Whose metadata.
 * @param address Where the listener is.
 * @param options Which part of them.
 */
export async function sendMetadata(agent: Agent, address: ListenerAddress, options?: MetadataOptions): Promise<void> {
  requireAgent(agent);
  const blob = agent.localMetadata(options);
  await ask(agent, address, (channel) => channel.ask({ verb: 'load', blob }));
}

/**
 * Loads the listener's metadata; returns its name.
 * @param agent Which learns them.
 * @param address Where the listener is.
 */
export async function fetchMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return ask(agent, address, (channel) => fetchFrom(agent, channel));
}

/**
 * Both at once: afterwards the two agents know each other. Returns the other's name.
 * @param agent This side.
 * @param address Where the listener is.
 */
export async function exchangeMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return ask(agent, address, async (channel) => {
    await channel.ask({ verb: 'load', blob: agent.localMetadata() });
    return fetchFrom(agent, channel);
  });
}

/**
 * Tells the listener's agent to forget this one.
 * @param agent Which is to be forgotten.
 * @param address Where the listener is.
 */
export async function sendInvalidation(agent: Agent, address: ListenerAddress): Promise<void> {
  await ask(agent, address, (channel) => channel.ask({ verb: 'invalidate', name: agent.name }));
}

async function fetchFrom(agent: Agent, channel: MetadataChannel): Promise<string> {
  const { blob } = await channel.ask({ verb: 'fetch' });
  if (blob === undefined) throw new WeftlineError('WL_PROTOCOL', 'A listener answered without metadata');
  return agent.loadRemoteMetadata(blob, { heard: true });
}

async function ask<T>(
  agent: Agent,
  address: ListenerAddress,
  talk: (channel: MetadataChannel) => Promise<T>,
): Promise<T> {
  requireAgent(agent);
  checkOptions(address, addressNames, 'address of the listener');
  const hello = metadataHello(credentialsOfAgent(agent));
  const { host, port, signal } = address;
  // The channel keeps it for what is said after the hello.
  const deadline = deadlineOf(address, agent.settings.timeoutMs);
  const { channel } = await call({ host, port }, { deadline, signal, hello, body: {}, who: 'agent', retry: false });
  channel.peer = `The listener at ${host} port ${port}`;
  const abort = (): void => channel.hangUp();
  signal?.addEventListener('abort', abort);
  try {
    const exchange = new MetadataChannel(channel);
    const result = await talk(exchange);
    exchange.end();
    return result;
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener('abort', abort);
    channel.hangUp();
  }
}
