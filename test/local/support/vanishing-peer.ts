// Two processes on a network of their own, which then carries nothing any more: what each of them hears of the other.
// Started by `unshare -n`, as root; prints what happened as one line of JSON.
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Agent, DescriptorList, fetchMetadata, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';
import { join, type World } from 'weftline/world';
import { encodeError } from '#lib/core/errors.js';

/** Rank 0 reaches its own store by another one, which goes on. */
const host = '10.9.9.9';
/** Settings of everything that is awaited here. */
const settings = { timeoutMs: 8000, transportGiveUpMs: 6000 };
const common = { token: 'secret', settings };
const agentOptions = { ...common, host, backends: ['multipath'] as const };
/** Memory is staged as that of GPUs is. */
const stagedOptions = { ...agentOptions, stagesHostMemory: true };
const STAGED_BYTES = 16 << 20;

export interface Outcome {
  readonly code: string;
  readonly message: string;
  readonly ms: number;
}

type Outcomes = Record<string, Outcome>;

interface Meeting {
  readonly transport: number;
  readonly store: number;
  readonly agent: Uint8Array;
  readonly listener: number;
}

/** How a call fails, and after how long. */
async function failureOf(call: Promise<unknown>): Promise<Outcome> {
  const start = performance.now();
  try {
    await call;
    return { code: 'none', message: '', ms: performance.now() - start };
  } catch (error) {
    const { code, message } = encodeError(error);
    return { code, message, ms: performance.now() - start };
  }
}

/** Becomes a failure when the other side is lost. */
async function untilLost(errorOf: () => unknown): Promise<void> {
  while (errorOf() === undefined) await new Promise((resolve) => setTimeout(resolve, 10));
  throw errorOf();
}

function joinAs(rank: number, port: number): Promise<World> {
  const environment = {
    RANK: `${rank}`,
    WORLD_SIZE: '2',
    MASTER_ADDR: host,
    MASTER_PORT: `${port}`,
    WEFTLINE_TOKEN: 'secret',
  };
  return join({ environment, settings, timeoutMs: 120_000 });
}

function lossOf(world: World): () => unknown {
  return () => (world.peerLost.aborted ? world.peerLost.reason : undefined);
}

/** The process whose machine vanishes. */
async function stay(): Promise<void> {
  const [meeting] = (await once(process, 'message')) as [Meeting];
  const transport = await Transport.create(common);
  const connections = [
    await transport.connect({ host, port: meeting.transport }),
    await transport.connect({ host, port: meeting.transport }),
  ];
  const world = await joinAs(1, meeting.store);
  const agent = await Agent.create('there', agentOptions);
  const listener = await MetadataListener.open(agent, { host });
  await agent.allocate(4096);
  const staged = await Agent.create('staged there', stagedOptions);
  await staged.allocate(STAGED_BYTES);
  process.send?.({
    metadata: agent.localMetadata(),
    stagedMetadata: staged.localMetadata(),
    listener: listener.port,
  });
  const outcomes: Outcomes = {
    'rank 0, seen by rank 1': await failureOf(untilLost(lossOf(world))),
    'a connection, at the other end': await failureOf(untilLost(() => connections[0]?.error)),
  };
  process.send?.({ outcomes });
}

async function watch(): Promise<Outcomes> {
  execFileSync('ip', ['link', 'set', 'lo', 'up']);
  execFileSync('ip', ['address', 'add', `${host}/32`, 'dev', 'lo']);
  nft('add table ip weftline');
  nft('add chain ip weftline in { type filter hook input priority 0; }');
  const child = fork(fileURLToPath(import.meta.url), ['stay'], { serialization: 'advanced', execArgv: [] });
  const transport = await Transport.create(common);
  const listener = await transport.listen({ host, port: 0 });
  const ready = once(child, 'message');
  const joining = joinAs(0, 29_500);
  child.send({ transport: listener.port, store: 29_500 });
  const idle = await listener.accept({ timeoutMs: 120_000 });
  const busy = await listener.accept({ timeoutMs: 120_000 });
  const world = await joining;
  const agent = await Agent.create('here', agentOptions);
  const staged = await Agent.create('staged here', stagedOptions);
  const [{ metadata, stagedMetadata, listener: port }] = (await ready) as [
    { readonly metadata: Uint8Array; readonly stagedMetadata: Uint8Array; readonly listener: number },
  ];
  const { transfer } = await write(agent, metadata, 4096);
  const stagedWrite = await write(staged, stagedMetadata, STAGED_BYTES);
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(4096)));
  const far = once(child, 'message') as Promise<[{ readonly outcomes: Outcomes }]>;

  for (const end of ['saddr', 'daddr']) nft(`add rule ip weftline in ip ${end} ${host} drop`);
  transfer.post();
  stagedWrite.transfer.post();
  const stagedEnd = stagedWrite.transfer.wait({ timeoutMs: 60_000 });
  const calls: Record<string, Promise<unknown>> = {
    'an idle connection': untilLost(() => idle.error),
    'a receive': transport.wait(busy.receive({ region }), { timeoutMs: 60_000 }),
    'a transfer': transfer.wait({ timeoutMs: 60_000 }),
    'a staged transfer': stagedEnd,
    'the end of the memory of a staged transfer': stagedEnd.catch(() => stagedWrite.memory.close()),
    "a listener's metadata": fetchMetadata(agent, { host, port, timeoutMs: 1000 }),
    'a key': world.store.get('never', { from: [1], timeoutMs: 1000 }),
    'rank 1, seen by rank 0': untilLost(lossOf(world)),
  };
  const entries = Object.entries(calls).map(async ([name, call]) => [name, await failureOf(call)] as const);
  const near = Object.fromEntries(await Promise.all(entries));
  const [{ outcomes }] = await far;
  child.kill('SIGKILL');
  return { ...near, ...outcomes };
}

/** Writes all of the peer's memory once. */
async function write(agent: Agent, metadata: Uint8Array, bytes: number) {
  const peer = await agent.loadRemoteMetadata(metadata);
  const memory = await agent.allocate(bytes);
  const [remote] = agent.remoteMemory(peer);
  if (remote === undefined) throw new Error('no memory of the peer');
  const lists = { local: DescriptorList.of(memory), remote: DescriptorList.of(remote) };
  const transfer = await agent.prepare({ operation: 'write', peer, ...lists });
  transfer.post();
  await transfer.wait();
  return { memory, transfer };
}

function nft(command: string): void {
  execFileSync('nft', [command]);
}

if (process.argv[2] === 'stay') await stay();
else {
  console.log(JSON.stringify(await watch()));
  process.exit(0);
}
