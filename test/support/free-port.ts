// A TCP port that nobody uses, for programs that must be told one before they listen.
import { once } from 'node:events';
import { createServer } from 'node:net';

export async function freePort(host = '127.0.0.1'): Promise<number> {
  const server = createServer().listen({ host, port: 0 });
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (typeof address !== 'object' || address === null) throw new Error(`no port at ${host}`);
  return address.port;
}
