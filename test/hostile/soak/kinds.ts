// What is soaked: each kind makes a pair of processes and does, cycle by cycle, all that a user does with it.
import assert from 'node:assert/strict';
import { Agent, DescriptorList, Endpoint, type Registration } from 'weftline/agent';
import { CpuDevice } from 'weftline';
import { ExpertMover, expertPlan } from 'weftline/ep/placement';
import { type Connection, Transport } from 'weftline/transport';
import { join, type World } from 'weftline/world';
import { fillPattern, wrongAt } from '../chaos/pattern.ts';
import { Random } from '../fuzz/random.ts';
import type { PeerProcess } from './peer-link.ts';

export type SoakKind = 'local' | 'multipath' | 'endpoint' | 'transport' | 'objects' | 'ep';
export const soakKinds: readonly SoakKind[] = ['local', 'multipath', 'endpoint', 'transport', 'objects', 'ep'];

/** One side's part. `cycle` is called over and over. */
export interface SoakedSide {
  readonly cycle: (number: number) => Promise<void>;
  readonly close: () => Promise<void>;
}

type Calls = Readonly<Record<string, (argument: never) => unknown>>;

const settings = { timeoutMs: 20_000 } as const;
const common = { token: 'soak', settings } as const;
const LARGEST = 512 * 1024;
/** Cycles with the same agents, transports or endpoints; then they are closed and made anew. */
const LIFE_CYCLES = 25;

function check(bytes: Uint8Array, number: number): void {
  assert.equal(wrongAt(bytes, number), -1, `cycle ${number}: wrong bytes`);
}

/** Objects that have threads, made and closed without a peer: thousands of them in a night. */
export class SoakedObjects implements SoakedSide {
  readonly #makers: readonly (() => Promise<AsyncDisposable>)[] = [
    () => Agent.create('soaked', common),
    () => Endpoint.create(common),
    () => Transport.create({ ...common, name: 'soaked' }),
    async () => {
      const [world, device] = await Promise.all([(this.#world ??= join({ environment: {} })), this.#device]);
      const plan = expertPlan({ layers: 1, ranks: 1, experts: 1, physicalToLogical: [0] });
      return ExpertMover.create(world, device, { plan, expertBytes: 64, load: () => undefined });
    },
  ];
  readonly #device = CpuDevice.create();
  #world: Promise<World> | undefined;

  async cycle(number: number): Promise<void> {
    const object = await this.#makers[number % this.#makers.length]!();
    await object[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    await (await this.#world)?.close();
  }
}

export class SoakedAgent implements SoakedSide {
  readonly #kind: 'local' | 'multipath';
  readonly #peer: PeerProcess;
  readonly #random = new Random(1);
  #agent: Agent | undefined;

  constructor(kind: 'local' | 'multipath', peer: PeerProcess) {
    this.#kind = kind;
    this.#peer = peer;
  }

  async cycle(number: number): Promise<void> {
    if (number % LIFE_CYCLES === 0) {
      await this.close();
      this.#agent = await Agent.create('soaked', { ...common, backends: [this.#kind] });
      await this.#peer.call('open', this.#kind);
    }
    const agent = this.#agent as Agent;
    const bytes = 64 + this.#random.below(LARGEST);
    const peer = await agent.loadRemoteMetadata(await this.#peer.call<Uint8Array>('allocate', bytes));
    const remote = agent.remoteMemory(peer).find(({ length }) => length === bytes);
    assert.ok(remote !== undefined);
    const local = await agent.allocate(bytes);
    fillPattern(local.bytes, number);
    for (const operation of ['write', 'read'] as const) {
      const lists = { local: DescriptorList.of(local), remote: DescriptorList.of(remote) };
      await using transfer = await agent.prepare({ operation, peer, ...lists });
      transfer.post(operation === 'write' ? Buffer.from(`cycle ${number}`) : undefined);
      await transfer.wait();
      if (operation === 'write') local.bytes.fill(0);
    }
    check(local.bytes, number);
    await agent.notify(peer, Buffer.from('and so on'));
    await this.#peer.call('check', number);
    await local.close();
    await agent.loadRemoteMetadata(await this.#peer.call<Uint8Array>('deregister'));
  }

  async close(): Promise<void> {
    if (this.#agent === undefined) return;
    await this.#agent.close();
    await this.#peer.call('close');
    this.#agent = undefined;
  }
}

let life = 0;
let theirs: Agent;
let region: Registration;

export const agentCalls: Calls = {
  open: async (kind: 'local' | 'multipath') => {
    theirs = await Agent.create(`peer ${++life}`, { ...common, backends: [kind] });
  },
  allocate: async (bytes: number) => {
    region = await theirs.allocate(bytes, { name: 'region' });
    return theirs.localMetadata();
  },
  check: async (number: number) => {
    const { message } = await theirs.nextNotification();
    assert.equal(Buffer.from(message).toString(), `cycle ${number}`);
    check(region.bytes, number);
    await theirs.nextNotification();
  },
  deregister: async () => {
    await region.close();
    return theirs.localMetadata();
  },
  close: () => theirs.close(),
};

export class SoakedEndpoint implements SoakedSide {
  readonly #peer: PeerProcess;
  readonly #random = new Random(2);
  #endpoint: Endpoint | undefined;
  #port = 0;

  constructor(peer: PeerProcess) {
    this.#peer = peer;
  }

  async cycle(number: number): Promise<void> {
    if (number % LIFE_CYCLES === 0) {
      await this.close();
      this.#endpoint = await Endpoint.create(common);
      this.#port = await this.#peer.call<number>('open');
    }
    const endpoint = this.#endpoint as Endpoint;
    const bytes = 64 + this.#random.below(LARGEST);
    const name = `region ${number}`;
    const accepted = this.#peer.call('accept', { bytes, name });
    const connection = await endpoint.connect('127.0.0.1', this.#port);
    await accepted;
    const local = await endpoint.allocate(bytes);
    fillPattern(local.bytes, number);
    await connection.send({ region: local }).wait();
    const memory = DescriptorList.of(await connection.memory(name));
    local.bytes.fill(0);
    await connection.read({ region: local }, memory).wait();
    check(local.bytes, number);
    await this.#peer.call('check', number);
    await connection.close();
    await local.close();
  }

  async close(): Promise<void> {
    if (this.#endpoint === undefined) return;
    await this.#endpoint.close();
    await this.#peer.call('close');
    this.#endpoint = undefined;
  }
}

let endpoint: Endpoint;
let received: { readonly wait: () => Promise<number> };

export const endpointCalls: Calls = {
  open: async () => {
    endpoint = await Endpoint.create(common);
    return endpoint.port;
  },
  accept: async ({ bytes, name }: { readonly bytes: number; readonly name: string }) => {
    region = await endpoint.allocate(bytes, name);
    received = (await endpoint.accept()).recv({ region });
  },
  check: async (number: number) => {
    assert.equal(await received.wait(), region.length);
    check(region.bytes, number);
    await region.close();
  },
  close: () => endpoint.close(),
};

export class SoakedTransport implements SoakedSide {
  readonly #peer: PeerProcess;
  readonly #random = new Random(3);
  #transport: Transport | undefined;
  #connection: Connection | undefined;

  constructor(peer: PeerProcess) {
    this.#peer = peer;
  }

  async cycle(number: number): Promise<void> {
    if (number % LIFE_CYCLES === 0) {
      await this.close();
      this.#transport = await Transport.create({ ...common, name: 'soaked' });
      const port = await this.#peer.call<number>('open');
      const accepted = this.#peer.call('accept');
      this.#connection = await this.#transport.connect({ host: '127.0.0.1', port });
      await accepted;
    }
    const [transport, connection] = [this.#transport as Transport, this.#connection as Connection];
    const bytes = 64 + this.#random.below(LARGEST);
    const local = await transport.register(new Uint8Array(new SharedArrayBuffer(bytes)));
    const remote = await this.#peer.call<{ remoteRegion: number; remoteKey: number }>('receive', bytes);
    fillPattern(local.bytes, number);
    await transport.wait(connection.send({ region: local }));
    local.bytes.fill(0);
    await transport.wait(connection.read({ region: local, bytes, ...remote }));
    check(local.bytes, number);
    await this.#peer.call('check', number);
    await local.close();
  }

  async close(): Promise<void> {
    if (this.#transport === undefined) return;
    await this.#transport.close();
    await this.#peer.call('close');
    this.#transport = undefined;
  }
}

let transport: Transport;
let listener: Awaited<ReturnType<Transport['listen']>>;
let connection: Connection;
let arriving: { readonly bytes: Uint8Array; readonly check: (number: number) => Promise<void> };

export const transportCalls: Calls = {
  open: async () => {
    transport = await Transport.create({ ...common, name: 'peer' });
    listener = await transport.listen({ host: '127.0.0.1', port: 0 });
    return listener.port;
  },
  accept: async () => {
    connection = await listener.accept({ timeoutMs: settings.timeoutMs });
  },
  receive: async (bytes: number) => {
    const memory = await transport.register(new Uint8Array(new SharedArrayBuffer(bytes)), { read: true });
    const request = connection.receive({ region: memory });
    arriving = {
      bytes: memory.bytes,
      check: async (number) => {
        assert.equal(await transport.wait(request), bytes);
        check(memory.bytes, number);
        await memory.close();
      },
    };
    return memory.remote;
  },
  check: (number: number) => arriving.check(number),
  close: () => transport.close(),
};
