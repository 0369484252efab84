// A process with a local backend and a region, until it is killed.
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';
import { hostMemory, openBackend, sharedMemory } from './backend-context.ts';

const bytes = 64 << 20;
const { backend, peer } = await openBackend(createBackend, 'the peer');
const memory = SharedMemory.create('test', bytes, false);
const { info } = await backend.register(sharedMemory(memory));
// That of the process itself, which others reach while it lives.
const own = await backend.register(hostMemory(new Uint8Array(4096)));
const text = (part: Uint8Array): string => Buffer.from(part).toString('base64');
console.log(
  JSON.stringify({ peer, connectionInfo: text(peer.connectionInfo), info: text(info), ownInfo: text(own.info), bytes }),
);
setInterval(() => backend.poll(), 5);
