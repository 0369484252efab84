// TCP ports that nobody uses, for programs that must be told one before they listen.
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';

/**
 * Below the ports that Linux gives to those who name none (32768 and above): between this call and the program's listen(),
 * none of the tests beside can be given the port for a listener or a connection of theirs.
 */
const [FIRST_PORT, END_PORT] = [12_000, 32_768];
const MAX_ATTEMPTS = 100;

export function freePort(host = '127.0.0.1'): Promise<number> {
  return freePorts(1, host);
}

/** The first of so many ports in a row. */
export async function freePorts(count: number, host = '127.0.0.1'): Promise<number> {
  let cause: unknown;
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
    const first = randomInt(FIRST_PORT, END_PORT - count + 1);
    try {
      for (let port = first; port < first + count; port++) await tryPort(host, port);
      return first;
    } catch (error) {
      cause = error;
    }
  }
  throw new Error(`No port of ${host} is free`, { cause });
}

/** Fails if somebody has it. */
async function tryPort(host: string, port: number): Promise<void> {
  const server = createServer().listen({ host, port });
  await once(server, 'listening');
  server.close();
  await once(server, 'close');
}
