// What node:net leaves out of TCP: an end of connections to machines that have vanished.
import type { Socket } from 'node:net';
import { WeftlineError } from '../core/errors.ts';
import { readTcpInfo, setSocketOption } from './udp.ts';

/** A vanished machine is noticed after so long at the latest. */
const MAX_SILENCE_MS = 25_000;
/** A system that is short of memory may let a second pass before it answers what is sent again. */
const MIN_SILENCE_MS = 3000;
/** The first sign of life is asked for after this share of the time; then there is one a second. */
const PROBES_FROM = 1 / 3;
const PROBE_INTERVAL_MS = 1000;
/** How often it is looked whether what was sent is answered, as a share of the time; an end comes up to two looks late. */
const LOOK_SHARE = 1 / 8;

/**
 * Of a socket that is connected: ends a connection whose other end has answered nothing for so long, 3 to 25 s:
 * neither to what was sent nor, where nothing was, to probes. The peer's system answers, however busy its process is, also
 * when it has no more room for what that does not read. By itself TCP gives up what was sent after a quarter of an hour; its
 * option TCP_USER_TIMEOUT would end connections to processes that are busy for so long, too.
 */
export function endWhenSilent(socket: Socket, milliseconds: number): void {
  const most = Math.max(MIN_SILENCE_MS, Math.min(MAX_SILENCE_MS, milliseconds));
  const idle = Math.max(PROBE_INTERVAL_MS, most * PROBES_FROM);
  socket.setKeepAlive(true, idle);
  if (process.platform !== 'linux' || descriptorOf(socket) < 0) return;
  setSocketOption(descriptorOf(socket), 'tcpKeepAliveCount', Math.max(1, Math.ceil((most - idle) / PROBE_INTERVAL_MS)));
  const watch = new SilenceWatch(socket, most);
  const timer = setInterval(() => watch.look(), most * LOOK_SHARE);
  timer.unref();
  socket.once('close', () => clearInterval(timer));
}

/** Whether what is on its way is answered. */
class SilenceWatch {
  readonly #socket: Socket;
  readonly #most: number;
  #lookedAt = performance.now();
  /** The first look since the last answer that found something on its way. */
  #silentSince: number | undefined;

  constructor(socket: Socket, most: number) {
    this.#socket = socket;
    this.#most = most;
  }

  look(): void {
    const info = readTcpInfo(descriptorOf(this.#socket));
    if (info === undefined) return;
    const now = performance.now();
    const wasAnswered = info.sinceAnswerMs <= now - this.#lookedAt;
    this.#lookedAt = now;
    if (info.unanswered === 0) this.#silentSince = undefined;
    else if (this.#silentSince === undefined || wasAnswered) this.#silentSince = now;
    else if (now - this.#silentSince >= this.#most * (1 - 2 * LOOK_SHARE)) this.#socket.destroy(silent(this.#most));
  }
}

function silent(milliseconds: number): WeftlineError {
  return new WeftlineError('WL_PEER_LOST', `The other end's system answered nothing for ${milliseconds} ms`);
}

/** -1 if there is none. */
function descriptorOf(socket: Socket): number {
  const handle = Reflect.get(socket, '_handle') as { readonly fd?: number } | null | undefined;
  return handle?.fd ?? -1;
}
