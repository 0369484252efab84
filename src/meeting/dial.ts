// Connects to a listener, trying again until it listens, and says hello.
import { connect as connectTcp, type Socket } from 'node:net';
import type { CallWait, Deadline } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { type WaitFacts, whileWaiting } from '../core/waits.ts';
import { quote } from '../core/quote.ts';
import { checkHost, checkPort, isLoopback, requireAddress, requireToken } from './route.ts';
import { ControlChannel } from './control-channel.ts';
import { type Greeted, type HelloBody, type HelloOptions, sayHello } from './hello.ts';

/** Place at which somebody listens: a host name or numeric address, and a TCP port. */
export interface Address {
  readonly host: string;
  readonly port: number;
}

export interface DialWait extends CallWait {
  /** False: a port where nobody listens fails at once with WL_PEER_LOST. True by default. */
  readonly retry?: boolean;
}

interface DialOptions extends DialWait {
  readonly deadline: Deadline;
  readonly hello: HelloOptions;
  readonly body: HelloBody;
  /** True: a name that no host has yet may get one. False by default: it fails at once. */
  readonly awaitsName?: boolean;
  /** What is expected there, for errors: "transport". */
  readonly who: string;
  /** Time without an answer of its system after which the peer counts as gone. */
  readonly silenceMs?: number;
}

interface Called extends Greeted {
  readonly channel: ControlChannel;
}

const FIRST_RETRY_MS = 10;
const LAST_RETRY_MS = 200;

/**
 * Connects and says hello, again and again, with growing pauses, until the deadline: nobody may listen yet, and a
 * listener that is flooded by strangers drops callers before it knows them. What is final fails at once: WL_UNAUTHORIZED,
 * WL_PROTOCOL and other refusals, WL_CONFIG (the address needs a token), WL_INVALID_ARGUMENT (no such host, or no address).
 */
export async function call(address: Address, options: DialOptions): Promise<Called> {
  const { host, port } = requireAddress(address);
  const { hello, deadline, who } = options;
  checkHost(host);
  checkPort(port, 1);
  requireToken(host, hello.credentials.kind, `connecting to ${host} port ${port}`);
  const describe = (): WaitFacts => ({ operation: `connecting to the ${who}`, peers: [`${host} port ${port}`] });
  return whileWaiting(callAgain(address, options), describe, deadline.endsAt);
}

async function callAgain(address: Address, options: DialOptions): Promise<Called> {
  const { deadline, signal } = options;
  const { endsAt: end } = deadline;
  let pause = FIRST_RETRY_MS;
  for (;;) {
    signal?.throwIfAborted();
    try {
      return await callOnce(address, end, options);
    } catch (cause) {
      signal?.throwIfAborted();
      const final = whyFinal(cause, address, options);
      if (final !== undefined) throw final;
      if (performance.now() + pause >= end) throw nobodyAnswered(cause, address, options);
      await sleep(pause, signal);
      pause = Math.min(LAST_RETRY_MS, pause * 1.5);
    }
  }
}

/** The error to end with if trying again is no use. */
function whyFinal(cause: unknown, address: Address, options: DialOptions): WeftlineError | undefined {
  const { host, port } = address;
  const { who, deadline, retry = true, awaitsName = false } = options;
  const { timeoutMs } = deadline;
  const details = { host, port };
  if (cause instanceof WeftlineError) {
    const { code, message } = cause;
    if (code === 'WL_PEER_LOST') return undefined;
    if (code === 'WL_TIMEOUT') {
      const mute = `${host} port ${port} took the connection but did not complete the hello within ${timeoutMs} ms: it is no ${who}, or its process is stopped or overloaded`;
      return new WeftlineError(code, mute, { details: { ...details, timeoutMs }, cause });
    }
    if (code !== 'WL_PROTOCOL') return cause;
    const strange = `Cannot meet the ${who} at ${host} port ${port}: ${message}`;
    return new WeftlineError(code, strange, { details: { ...cause.details, ...details }, cause });
  }
  const { code } = cause as NodeJS.ErrnoException;
  if (code === 'ENOTFOUND' && !awaitsName) {
    return new WeftlineError('WL_INVALID_ARGUMENT', `No host has the name ${quote(host)}`, { details, cause });
  }
  if (retry || code !== 'ECONNREFUSED') return undefined;
  return new WeftlineError('WL_PEER_LOST', nobodyListens(address, who), { details, cause });
}

function nobodyAnswered(cause: unknown, { host, port }: Address, { who, deadline }: DialOptions): WeftlineError {
  const { timeoutMs } = deadline;
  const { message } = cause as Error;
  return new WeftlineError(
    'WL_TIMEOUT',
    `No ${who} answered at ${host} port ${port} within ${timeoutMs} ms (${message}): it is missing, or the address or a firewall is wrong`,
    { details: { host, port, timeoutMs }, cause },
  );
}

function nobodyListens({ host, port }: Address, who: string): string {
  const gone = `Nobody listens at ${host} port ${port}: the process ended, closed its ${who}, or has not opened it yet`;
  // Peers on another host that name their loopback address have sent callers to the callers' own host.
  return isLoopback(host)
    ? `${gone}; or it runs on another host, and needs the option host: the address at which others reach it`
    : gone;
}

async function callOnce(address: Address, end: number, options: DialOptions): Promise<Called> {
  const { hello, body, signal, silenceMs } = options;
  const socket = await dial(address, end - performance.now(), signal);
  const channel = new ControlChannel(socket, end, silenceMs);
  const abort = (): void => channel.hangUp();
  signal?.addEventListener('abort', abort);
  try {
    // The peer has broken the connection already: the system no longer tells its address.
    if (channel.remoteAddress === '') {
      throw new WeftlineError(
        'WL_PEER_LOST',
        `The ${options.who} at ${address.host} port ${address.port} broke the connection`,
        { details: { host: address.host, port: address.port } },
      );
    }
    // A name may mean another host than it says.
    if (hello.credentials.kind === 'user' && !isLoopback(channel.remoteAddress)) {
      requireToken(channel.remoteAddress, 'user', `connecting to ${address.host} (${channel.remoteAddress})`);
    }
    return { channel, ...(await sayHello(channel, hello, body)) };
  } catch (error) {
    channel.hangUp();
    throw error;
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

function dial({ host, port }: Address, milliseconds: number, signal?: AbortSignal): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connectTcp({ host, port });
    const timer = setTimeout(() => socket.destroy(new Error('no answer')), Math.max(1, milliseconds));
    const abort = (): void => void socket.destroy(new Error('aborted'));
    signal?.addEventListener('abort', abort);
    const settle = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    const fail = (error: Error): void => {
      settle();
      reject(error);
    };
    socket.once('error', fail);
    socket.once('connect', () => {
      settle();
      socket.removeListener('error', fail);
      resolve(socket);
    });
  });
}

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const wake = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', wake);
      resolve();
    };
    const timer = setTimeout(wake, milliseconds);
    signal?.addEventListener('abort', wake);
  });
}
