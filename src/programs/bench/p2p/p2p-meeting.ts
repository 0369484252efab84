// How the two sides of a P2P bench meet: over a channel of their own, so that either knows an address at which the other
// reaches it before it makes its endpoint, and can say why it ends.
import { WeftlineError } from '../../../core/errors.ts';
import { Deadline } from '../../../core/deadline.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { credentialsOf } from '../../../meeting/credentials.ts';
import { call } from '../../../meeting/dial.ts';
import { type HelloBody, type HelloOptions, receiveHello } from '../../../meeting/hello.ts';
import { MeetingListener } from '../../../meeting/listener.ts';
import { readSettings, readToken } from '../../../settings/settings.ts';
import { failureWord, decodePeerFailure } from '../peer-failure.ts';

const SERVER = 'the bench server';
const CLIENT = 'the bench client';
/** How long a client that gives up waits for the server that it tells. */
const GIVE_UP_MS = 3000;

export interface MeetingServerOptions {
  /** A numeric address of this host, or 0.0.0.0 for all. */
  readonly host: string;
  readonly port: number;
  readonly onListening: (port: number) => void;
  /** Makes this side's endpoint, which the client reaches at `host`, the address that it has called. Returns its port. */
  readonly open: (host: string) => Promise<number>;
}

/**
 * The channel to one client; further ones are refused. Fails with WL_TIMEOUT if none comes within the setting `timeoutMs`,
 * with what `open` throws, and with the client's own error if that gave up.
 */
export async function meetClient({ host, port, onListening, open }: MeetingServerOptions): Promise<ControlChannel> {
  const settings = readSettings();
  const hello = helloOptions();
  let lastRefusal = '';
  let isTaken = false;
  let settle: { resolve: (channel: ControlChannel) => void; reject: (error: unknown) => void } | undefined;
  const met = new Promise<ControlChannel>((resolve, reject) => (settle = { resolve, reject }));
  const greet = async (channel: ControlChannel): Promise<HelloBody> => {
    if (isTaken) throw new WeftlineError('WL_BUSY', 'The bench server serves one client, and has one already');
    isTaken = true;
    channel.deadline = performance.now() + settings.timeoutMs;
    return { port: await open(channel.localAddress) };
  };
  const serve = async (channel: ControlChannel): Promise<void> => {
    let isOwn = false;
    try {
      await receiveHello(channel, hello, (body) => {
        const failure = decodePeerFailure(body, CLIENT);
        isOwn = !isTaken;
        if (failure !== undefined) throw failure;
        return greet(channel);
      });
      channel.peer = `${CLIENT} at ${channel.remoteAddress}`;
      settle?.resolve(channel);
    } catch (error) {
      lastRefusal = error instanceof Error ? error.message : String(error);
      // Strangers do not end the server, its own client does.
      if (isOwn) settle?.reject(error);
      throw error;
    }
  };
  const target = { host, port };
  const listener = await MeetingListener.open({ target, credentials: hello.credentials, settings, serve });
  const timer = setTimeout(() => {
    const why = lastRefusal === '' ? '' : `; the last caller was refused: ${lastRefusal}`;
    const message = `Nobody connected to port ${listener.port} within ${settings.timeoutMs} ms${why}`;
    settle?.reject(new WeftlineError('WL_TIMEOUT', message));
  }, settings.timeoutMs);
  try {
    onListening(listener.port);
    return await met;
  } finally {
    clearTimeout(timer);
    listener.close();
  }
}

/** The channel to the server, and the port of its endpoint. Fails as every meeting does. */
export async function meetServer(address: {
  readonly host: string;
  readonly port: number;
}): Promise<{ readonly channel: ControlChannel; readonly port: number }> {
  const deadline = new Deadline(readSettings().timeoutMs);
  const { channel, body } = await call(address, { deadline, hello: helloOptions(), body: {}, who: SERVER });
  channel.peer = `${SERVER} at ${channel.remoteAddress}`;
  const { port } = body;
  if (typeof port === 'number') return { channel, port };
  throw new WeftlineError('WL_PROTOCOL', `${channel.peer} did not tell the port of its endpoint`);
}

/** Tells a server that its client gives up before anything is measured, and why. Never throws: it may not be there. */
export async function giveUpP2pBench(
  address: { readonly host: string; readonly port: number },
  why: unknown,
): Promise<void> {
  const deadline = new Deadline(GIVE_UP_MS);
  try {
    const body = { ...failureWord(why) };
    const { channel } = await call(address, { deadline, hello: helloOptions(), body, who: SERVER });
    channel.close();
  } catch {
    // The server refuses a client that gives up, or nobody listens.
  }
}

function helloOptions(): HelloOptions {
  return { protocol: 'weftline-bench-p2p', version: 1, credentials: credentialsOf(readToken(undefined)) };
}
