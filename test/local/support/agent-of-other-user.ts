// An agent of another user: tells its metadata as they are, and as they would be if it ran as root.
import { Agent } from 'weftline/agent';
import { localConnectionInfo } from '#lib/agent/backends/local/local-region.js';
import { Block } from '#lib/abi/layout.js';
import { decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';

const agent = await Agent.create('B', { backends: ['local'] });
await agent.allocate(4096);
const asItIs = agent.localMetadata();
const metadata = decodeMetadata(asItIs);
for (const info of metadata.connections.values()) Block.over(localConnectionInfo, info).set('uid', 0);
process.send?.([asItIs, encodeMetadata(metadata)]);
process.on('disconnect', () => process.exit(0));
