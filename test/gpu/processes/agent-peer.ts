// An agent with GPU memory and host memory: says its metadata, then the sum of its memory for each notification.
import { CudaDevice } from 'weftline';
import { Agent, type BackendName } from 'weftline/agent';

const bytes = Number(process.argv[2]);
const backend = (process.argv[3] ?? 'local') as BackendName;
const device = await CudaDevice.create();
const agent = await Agent.create('there', { backends: [backend], token: 'secret' });
const tensor = device.empty('u8', [bytes]);
await tensor.fromHost(new Uint8Array(bytes).fill(1));
await agent.register(tensor, { name: 'gpu' });
const host = await agent.allocate(bytes, { name: 'host' });
process.send?.({ metadata: Buffer.from(agent.localMetadata()).toString('base64') });

const sum = (values: Uint8Array): number => values.reduce((total, value) => total + value, 0);
for (;;) {
  const { message } = await agent.nextNotification({ timeoutMs: 60_000 });
  if (Buffer.from(message).toString() === 'end') break;
  process.send?.({ gpu: sum(await tensor.toHost()), host: sum(host.bytes) });
}
await agent.close();
tensor[Symbol.dispose]();
await device[Symbol.asyncDispose]();
process.disconnect();
