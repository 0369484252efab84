// What node:net leaves out of TCP: an end of connections to machines that have vanished.
import type { Socket } from 'node:net';
import { setSocketOption } from './udp.ts';

/** A vanished machine is noticed after so long at the latest. */
const MOST_SILENCE_MS = 25_000;
const LEAST_SILENCE_MS = 1000;
/** The first sign of life is asked for after this share of the time; then there is one a second. */
const PROBES_FROM = 1 / 3;

/**
 * Of a socket that is connected: ends a connection whose other end has answered nothing for so long, at most 25 s:
 * neither to what was sent nor, where nothing was, to probes. The peer's system answers, however busy its process is. By
 * itself TCP gives up what was sent after a quarter of an hour.
 */
export function endWhenSilent(socket: Socket, milliseconds: number): void {
  const most = Math.max(LEAST_SILENCE_MS, Math.min(MOST_SILENCE_MS, milliseconds));
  socket.setKeepAlive(true, Math.max(LEAST_SILENCE_MS, most * PROBES_FROM));
  const fd = descriptorOf(socket);
  if (process.platform === 'linux' && fd >= 0) setSocketOption(fd, 'tcpUserTimeout', most);
}

/** -1 if there is none. */
function descriptorOf(socket: Socket): number {
  const handle = Reflect.get(socket, '_handle') as { readonly fd?: number } | null | undefined;
  return handle?.fd ?? -1;
}
