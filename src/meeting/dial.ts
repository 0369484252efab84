// A TCP connection to whoever listens at an address, or will soon.
import { connect as connectTcp, type Socket } from 'node:net';
import { WeftlineError } from '../core/errors.ts';

export interface Address {
  readonly host: string;
  readonly port: number;
}

export interface ConnectOptions {
  /** How long to wait, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number;
  /** Ends the wait early; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
  /** False: a port where nobody listens fails at once with WL_PEER_LOST. True by default. */
  readonly retry?: boolean;
}

const FIRST_RETRY_MS = 10;
const LAST_RETRY_MS = 200;

/** A TCP connection, tried again with growing pauses until the deadline. */
export async function dial(
  { host, port }: Address,
  end: number,
  { timeoutMs, signal, retry = true }: ConnectOptions & { readonly timeoutMs: number },
): Promise<Socket> {
  let pause = FIRST_RETRY_MS;
  for (;;) {
    signal?.throwIfAborted();
    try {
      return await dialOnce(host, port, end - performance.now(), signal);
    } catch (cause) {
      signal?.throwIfAborted();
      if ((cause as NodeJS.ErrnoException).code === 'ENOTFOUND') {
        throw new WeftlineError('WL_INVALID_ARGUMENT', `No host has the name ${JSON.stringify(host)}`, {
          details: { host },
          cause,
        });
      }
      if (!retry && (cause as NodeJS.ErrnoException).code === 'ECONNREFUSED') {
        const message = `Nobody listens at ${host} port ${port} any more: the process ended or closed its transport`;
        throw new WeftlineError('WL_PEER_LOST', message, { details: { host, port }, cause });
      }
      if (performance.now() + pause < end) {
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(LAST_RETRY_MS, pause * 1.5);
        continue;
      }
      throw new WeftlineError(
        'WL_TIMEOUT',
        `No transport answered at ${host} port ${port} within ${timeoutMs} ms (${(cause as Error).message}): it is missing, or the address or a firewall is wrong`,
        { details: { host, port, timeoutMs }, cause },
      );
    }
  }
}

function dialOnce(host: string, port: number, milliseconds: number, signal?: AbortSignal): Promise<Socket> {
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
