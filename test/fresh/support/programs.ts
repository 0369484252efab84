// Programs of users, as text: what they use of the package must work wherever they run.

/** Ranks, experts, an agent's and a transport's threads, native calls: prints "all works". */
export const wholeProgram = `
import { CpuDevice, toBf16 } from 'weftline';
import { Agent, DescriptorList } from 'weftline/agent';
import { DeviceHost } from 'weftline/device-api';
import { EpBuffer } from 'weftline/ep';
import { Transport } from 'weftline/transport';
import { join } from 'weftline/world';

const world = await join();
const device = await CpuDevice.create();
const buffer = await EpBuffer.create(world, device, { maxTokensPerRank: 8, hidden: 64, numExperts: 2, maxTopk: 1 });
const x = await device.tensor('bf16', [4, 64], new Uint16Array(256).fill(toBf16(3)));
const topkIdx = await device.tensor('i32', [4, 1], Int32Array.of(0, 1, 1, 0));
const { handle } = await buffer.dispatch({ x, topkIdx });
if (handle.numRecvTokens !== 4) throw new Error('dispatch');
await buffer.close();

const agents = [];
for (const name of ['reader', 'owner']) agents.push(await Agent.create(name, { backends: ['local', 'multipath'] }));
const [reader, owner] = agents;
const source = await owner.allocate(4096);
source.bytes.fill(7);
const peer = await reader.loadRemoteMetadata(owner.localMetadata());
await owner.loadRemoteMetadata(reader.localMetadata());
for (const backend of ['local', 'multipath']) {
  const target = await reader.allocate(4096);
  const transfer = await reader.prepare({
    operation: 'read',
    peer,
    backend,
    local: DescriptorList.of(target),
    remote: DescriptorList.of(reader.remoteMemory(peer)[0]),
  });
  transfer.post();
  await transfer.wait();
  if (target.bytes[4095] !== 7) throw new Error('read by ' + backend);
  await transfer.close();
}
for (const agent of agents) await agent.close();

const host = await DeviceHost.create({ name: 'host', device });
await host.close();
const transport = await Transport.create();
await transport.close();
await device.close();
await world.close();
console.log('all works');
`;

/** Opens what needs files of the package, and prints how each attempt fails. */
export const openingProgram = `
import { CpuDevice } from 'weftline';
import { Agent } from 'weftline/agent';
import { Transport } from 'weftline/transport';

const attempts = [() => CpuDevice.create(), () => Agent.create('a'), () => Transport.create()];
for (const attempt of attempts) {
  attempt().then(
    () => console.log('opened'),
    (error) => console.log(error.code + ': ' + error.message),
  );
}
`;

/** Typed use of every entry, as a project with strict settings has it. */
export const typedProgram = `
import { CpuDevice, type Device, toBf16, WeftlineError } from 'weftline';
import { Agent, DescriptorList, type Registration, type TransferState } from 'weftline/agent';
import { Communicator } from 'weftline/collectives';
import { DeviceHost, type WriteRequest } from 'weftline/device-api';
import { EpBuffer, EPAll2AllLayer, type DispatchResult } from 'weftline/ep';
import { rebalanceExperts } from 'weftline/ep/placement';
import { KvStore, type KvTicket } from 'weftline/kv';
import { collectMetrics } from 'weftline/metrics';
import { type RequestHandle, Transport } from 'weftline/transport';
import { UnpackLauncher } from 'weftline/unpack';
import { join, type World } from 'weftline/world';

const world: World = await join();
const device: Device = await CpuDevice.create();
const rows: number = toBf16(1);
await world.barrier('here', { timeoutMs: 30_000 });
const agent: Agent = await Agent.create('a');
const region: Registration = await agent.allocate(64);
const bytes: Uint8Array = region.bytes;
const list: DescriptorList = DescriptorList.of(region);
const transport: Transport = await Transport.create();
export async function ended(request: RequestHandle): Promise<TransferState> {
  try {
    await transport.wait(request);
    return 'done';
  } catch (error) {
    return error instanceof WeftlineError && error.code === 'WL_CLOSED' ? 'idle' : 'failed';
  }
}
export async function dispatch(cpu: CpuDevice): Promise<DispatchResult> {
  const buffer = await EpBuffer.create(world, cpu, { maxTokensPerRank: 8, hidden: 64, numExperts: 2, maxTopk: 1 });
  return buffer.dispatch({ x: cpu.empty('bf16', [4, 64]), topkIdx: cpu.empty('i32', [4, 1]) });
}
// @ts-expect-error: the library alone makes transfers of its connections.
export const internal = agent.linkTo;
// @ts-expect-error: create() makes it.
export const launcher = () => new UnpackLauncher();
export { bytes, collectMetrics, Communicator, device, DeviceHost, EPAll2AllLayer };
export { KvStore, type KvTicket, list, rebalanceExperts, rows, type WriteRequest };
`;
