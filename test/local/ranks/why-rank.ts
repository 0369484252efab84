// A rank of a job that does not go on: argv = what it waits in, and the rank that does not come. It prints its process id,
// and "there" when it is about to wait.
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice } from 'weftline';
import { Agent, DescriptorList, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';

const [scenario = '', missing = '1'] = process.argv.slice(2);
const world = await join();
const isMissing = world.rank === Number(missing);
console.log(JSON.stringify({ rank: world.rank, pid: process.pid }));

/** The event loop runs, and nothing more happens. */
const elsewhere = (): Promise<void> => sleep(2 ** 30);

function stop(): void {
  console.log('there');
  process.kill(process.pid, 'SIGSTOP');
}

async function dispatches(leave: () => unknown): Promise<void> {
  const device = await CpuDevice.create();
  const [tokens, hidden] = [4, 64];
  const buffer = await EpBuffer.create(world, device, {
    maxTokensPerRank: 16,
    hidden,
    numExperts: 2 * world.size,
    maxTopk: 2,
  });
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden));
  const topkIdx = await device.tensor(
    'i32',
    [tokens, 2],
    Int32Array.from({ length: 2 * tokens }, (_, at) => at % 4),
  );
  for (let call = 0; call < 2; call += 1) await buffer.dispatch({ x, topkIdx });
  if (isMissing) await leave();
  console.log('there');
  await buffer.dispatch({ x, topkIdx });
}

async function agentTransfer(): Promise<void> {
  const agent = await Agent.create(`why-${world.rank}`, { backends: ['multipath'] });
  const memory = await agent.allocate(4096);
  const store = worldMetadataStore(world.store);
  if (isMissing) {
    await publishMetadata(agent, store);
    await world.store.setJson('pid', process.pid);
    await world.barrier('prepared');
    stop();
    return elsewhere();
  }
  const peer = await loadPublished(agent, store, `why-${missing}`);
  const [remote] = agent.remoteMemory(peer);
  const transfer = await agent.prepare({
    operation: 'write',
    peer,
    local: DescriptorList.blocks(memory, { blockBytes: 64, count: 1 }),
    remote: DescriptorList.blocks(remote!, { blockBytes: 64, count: 1 }),
  });
  const pid = await world.store.getJson<number>('pid');
  await world.barrier('prepared');
  while (!/\) T /.test(readFileSync(`/proc/${pid}/stat`, 'latin1'))) await sleep(5);
  console.log('there');
  transfer.post();
  await transfer.wait();
}

switch (scenario) {
  case 'stopped':
    await dispatches(stop);
    break;
  case 'elsewhere':
    await dispatches(elsewhere);
    break;
  case 'computes':
    await dispatches(() => {
      console.log('there');
      for (;;);
    });
    break;
  case 'barrier':
    if (isMissing) await elsewhere();
    console.log('there');
    await world.barrier('step');
    break;
  case 'crossed':
    console.log('there');
    await world.barrier(isMissing ? 'left' : 'right');
    break;
  case 'agent':
    await agentTransfer();
    break;
  default:
    throw new Error(`Unknown scenario ${scenario}`);
}
await elsewhere();
