// A process that uses memory of another one for a moment, as often as it is told to, and says what it holds meanwhile.
import { Agent, type AgentOptions, DescriptorList } from 'weftline/agent';
import { processUse } from './process-use.ts';

export interface Cycle {
  readonly blob: Uint8Array;
  readonly names: readonly string[];
}

const [options = '{}'] = process.argv.slice(2);
const agent = await Agent.create('user', { ...(JSON.parse(options) as AgentOptions), token: 'secret' });
const mine = await agent.allocate(1 << 20);

async function use({ blob, names }: Cycle): Promise<void> {
  const peer = await agent.loadRemoteMetadata(blob);
  for (const memory of agent.remoteMemory(peer)) {
    if (!names.includes(memory.name)) continue;
    const lists = { local: DescriptorList.of(mine, 0, memory.length), remote: DescriptorList.of(memory) };
    for (const operation of ['write', 'read'] as const) {
      await using transfer = await agent.prepare({ operation, peer, ...lists });
      transfer.post();
      await transfer.wait();
    }
  }
}

process.on('message', (cycle: Cycle) => {
  use(cycle).then(
    () => process.send?.({ ...processUse(), regions: agent.remoteMemory('owner').length }),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.(processUse());
