// A process with every listener that weftline has, which is to be stopped. Prints where they listen, and an agent's metadata.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Agent } from 'weftline/agent';
import { openListeners } from './listeners.ts';

const [token = ''] = process.argv.slice(2);
const listeners = await openListeners(token);
const agent = await Agent.create('stopped', { token, backends: ['multipath'] });
const memory = await agent.allocate(64);
const etcd = createServer();
etcd.listen(0, '127.0.0.1', () => {
  const targets = listeners.map(({ name, port, facts }) => ({ name, port, facts }));
  const metadata = Buffer.from(agent.localMetadata()).toString('base64');
  console.log(
    JSON.stringify({
      targets,
      metadata,
      address: memory.address,
      region: memory.number,
      etcd: (etcd.address() as AddressInfo).port,
    }),
  );
});
