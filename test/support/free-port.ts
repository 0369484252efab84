// A TCP port that nobody uses, for programs that must be told one before they listen.
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';

/**
 * Below the ports that Linux gives to those who name none (32768 and above): between this call and the program's listen(),
 * none of the tests beside can be given the port for a listener or a connection of theirs.
 */
const [FIRST_PORT, END_PORT] = [12_000, 32_768];
const MAX_ATTEMPTS = 100;

export async function freePort(host = '127.0.0.1'): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    const port = randomInt(FIRST_PORT, END_PORT);
    const server = createServer().listen({ host, port });
    try {
      await once(server, 'listening');
    } catch (error) {
      if (attempt < MAX_ATTEMPTS) continue;
      throw new Error(`No port of ${host} is free`, { cause: error });
    }
    server.close();
    await once(server, 'close');
    return port;
  }
}
