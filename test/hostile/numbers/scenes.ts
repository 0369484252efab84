// Public calls, and the arguments of each that are numbers. A scene runs in a process of its own, as a fault may end it.
import {
  DeepEpConfig,
  bufferSize,
  EPAll2AllLayer,
  EpBuffer,
  EPConfig,
  EpLowLatency,
  lowLatencySize,
  outputSize,
  quantizeRows,
} from 'weftline/ep';
import { CpuDevice, fromBf16, fromF16, readSettings, toBf16, toF16 } from 'weftline';
import { Agent, DescriptorList } from 'weftline/agent';
import { Communicator } from 'weftline/collectives';
import { DeviceHost } from 'weftline/device-api';
import { expertPlan, ExpertLoads, Placement, rebalanceExperts } from 'weftline/ep/placement';
import { KvReader, KvStore, vllmParts } from 'weftline/kv';
import { DescriptorBlock, UnpackLauncher } from 'weftline/unpack';
import { join } from 'weftline/world';
import type { Draw } from './draw.ts';
import { decodeError, encodeError } from '#lib/core/errors.js';

/** Calls by name. What they return is awaited. */
export type Calls = Readonly<Record<string, (draw: Draw) => unknown>>;
export type Scene = () => Promise<Calls>;

const as = (value: unknown): never => value as never;
const config = { maxTokensPerRank: 8, hidden: 8, numExperts: 2, maxTopk: 2 };

/** The fields of `of`, some of them drawn. */
function mixed(draw: Draw, of: object): never {
  return as(Object.fromEntries(Object.entries(of).map(([name, value]) => [name, draw.or<unknown>(value)])));
}

/** A time to wait for what does not come: none that is long. */
function soon(draw: Draw): never {
  const drawn: unknown = draw.number();
  return as(typeof drawn === 'number' && drawn > 50 && drawn < 2 ** 31 ? 50 : drawn);
}

function route(draw: Draw): never {
  return as(draw.chance(0.5) ? draw.or({}) : { remote: draw.or(0), channel: draw.or(0) });
}

function wait(draw: Draw): { readonly timeoutMs: number } {
  return { timeoutMs: draw.chance(0.3) ? draw.number() : 60_000 };
}

const values: Scene = async () => {
  const world = await join({ environment: {} });
  const epConfig = {
    maxTokensPerRank: 8,
    hidden: 8,
    maxTopk: 2,
    numExperts: 4,
    rank: 0,
    worldSize: 1,
    localWorldSize: 1,
  };
  const plain = new EPConfig(epConfig);
  return {
    toBf16: (draw) => toBf16(draw.number()),
    fromBf16: (draw) => fromBf16(draw.number()),
    toF16: (draw) => toF16(draw.number()),
    fromF16: (draw) => fromF16(draw.number()),
    encodeError: (draw) => decodeError(encodeError(draw.number(), draw.number())),
    decodeError: (draw) => decodeError(draw.chance(0.5) ? draw.number() : mixed(draw, encodeError(new Error('x'), 1))),
    EPConfig: (draw) => new EPConfig(mixed(draw, epConfig)),
    outputSize: (draw) => outputSize(draw.or(plain), draw.number(), draw.chance(0.5) ? undefined : as([draw.number()])),
    'outputSize of hosts': (draw) => outputSize(plain, 8, draw.number()),
    bufferSize: (draw) => bufferSize(mixed(draw, config), draw.or(1)),
    'bufferSize of hosts': (draw) =>
      bufferSize(config, 2, draw.chance(0.5) ? draw.number() : as([draw.or(1), draw.or(1)])),
    lowLatencySize: (draw) => lowLatencySize(mixed(draw, config), draw.or(1)),
    'DeepEpConfig.forRanks': (draw) => DeepEpConfig.forRanks(draw.or<'dispatch'>('dispatch'), draw.number()),
    readSettings: (draw) => readSettings(as({ timeoutMs: draw.number(), spinUs: draw.number() })),
    'topology.hostOf': (draw) => world.topology.hostOf(draw.number()),
    'topology.scaleUpIndexOf': (draw) => world.topology.scaleUpIndexOf(draw.number()),
    'topology.forwarderOf': (draw) => world.topology.forwarderOf(draw.number()),
    'expertPlan without copies': (draw) =>
      expertPlan(as({ layers: draw.or(1), experts: draw.or(4), ranks: draw.or(2) })),
    rebalanceExperts: (draw) =>
      rebalanceExperts(as([[draw.or(1), draw.or(2)]]), as({ ranks: draw.or(2), replicas: draw.or(2) })),
    ExpertLoads: (draw) => new ExpertLoads(as({ layers: draw.size(), experts: draw.size(), window: draw.size() })),
  };
};

const tensors: Scene = async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const tensor = await device.tensor('u8', [64], new Uint8Array(64));
  const words = device.empty('i32', [4, 4]);
  const view = await device.tensor('u8', [8], new Uint8Array(8));
  return {
    empty: (draw) => device.empty('u8', as([draw.size(), draw.or(1)])).close(),
    'empty of a shape': (draw) => device.empty(draw.or('u8'), draw.size()),
    tensor: (draw) => device.tensor('u8', as([draw.size()]), draw.or(new Uint8Array(8))),
    hostView: (draw) => device.hostView(draw.or('i32'), draw.number(), draw.or(4)),
    'hostView of many': (draw) => device.hostView('i64', draw.or(65_536), draw.number()),
    upload: (draw) => device.upload(draw.or(view), draw.or(new Uint8Array(8))),
    download: (draw) => device.download(draw.or(tensor)),
    slice: (draw) => words.slice(draw.number(), draw.or(4)),
    reshape: (draw) => words.reshape(as([draw.number(), draw.or(4)])),
    fromHost: (draw) => tensor.fromHost(draw.number()),
    'CpuDevice.create': (draw) => CpuDevice.create(as({ addressSpaceMiB: draw.chance(0.9) ? 'x' : draw.number() })),
    DescriptorBlock: (draw) => new DescriptorBlock(draw.size()),
  };
};

const deviceHost: Scene = async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const host = await DeviceHost.create({ name: 'a', device, timeoutMs: 50 });
  const peer = await DeviceHost.create({ name: 'b', device, timeoutMs: 50 });
  const tensor = await device.tensor('u8', [64], new Uint8Array(64));
  const own = await host.allocate(4096);
  const far = await peer.allocate(4096);
  const descs = peer.serializeXferDescs({ memory: far });
  const name = await host.addRemoteAgent(await peer.getMetadata());
  const request = await host.createWriteReq({ memory: own }, descs, name);
  const gpu = await host.createGpuReq(request);
  const api = host.kernelApi;
  const cell = new BigUint64Array(host.view(own).buffer, 0, 8);
  return {
    registerVram: async (draw) => {
      const memory = await host.registerVram(
        draw.or(draw.chance(0.5) ? tensor : tensor.address),
        draw.or(64),
        draw.or(0),
      );
      await host.deregisterVram(memory);
    },
    'registerVram of an address': async (draw) =>
      host.deregisterVram(await host.registerVram(draw.number(), draw.or(8))),
    allocate: async (draw) => host.deregisterVram(await host.allocate(draw.size(), draw.or(0))),
    allocateHost: async (draw) => host.deregisterVram(await host.allocateHost(draw.size(), draw.or(0))),
    waitsOf: (draw) => host.waitsOf(draw.number()),
    view: (draw) =>
      host.view(draw.chance(0.5) ? draw.number() : as({ id: draw.number(), address: draw.number(), bytes: 8 })),
    read: (draw) => host.read(draw.or(own), draw.number()),
    write: (draw) => host.write(draw.or(own), draw.or(new Uint8Array(8))),
    serializeXferDescs: (draw) =>
      host.serializeXferDescs(as({ memory: draw.or(own), offset: draw.number(), bytes: draw.or(8) })),
    createWriteReq: async (draw) => {
      const local = as({ memory: draw.or(own), offset: draw.or(0), bytes: draw.or(8) });
      await host.releaseWriteReq(await host.createWriteReq(local, draw.or(descs), draw.or(name)));
    },
    createGpuReq: (draw) => host.createGpuReq(draw.number()),
    put: (draw) =>
      api.put(draw.or(gpu), as({ target: draw.or(0), source: draw.or(0), bytes: draw.or(8) }), route(draw)),
    'put of nothing': (draw) => api.put(gpu, draw.number(), draw.number()),
    signal: (draw) => api.signal(draw.or(gpu), as({ target: draw.or(0), add: draw.or(1) }), route(draw)),
    putWord: (draw) =>
      api.putWord(draw.or(gpu), as({ target: draw.or(16), value: draw.or(1n), epoch: draw.or(1) }), route(draw)),
    putWithSignal: (draw) =>
      api.putWithSignal(draw.number(), as({ request: draw.or(gpu), target: 0, add: draw.number() })),
    flush: (draw) => api.flush(draw.or(gpu), route(draw)),
    readSignal: (draw) => api.readSignal(draw.or(cell)),
    writeSignal: (draw) => api.writeSignal(draw.or(cell), draw.number()),
    wait: (draw) => api.wait(draw.or(cell), draw.number()),
    waitWord: (draw) => api.waitWord(draw.or(cell), draw.number()),
  };
};

const ep: Scene = async () => {
  const world = await join({ environment: {} });
  const device = await CpuDevice.create({ addressSpaceMiB: 256 });
  const buffer = await EpBuffer.create(world, device, config);
  const lowLatency = await EpLowLatency.create(world, device, config);
  const layerOptions = { maxTokensPerRank: 8, hidden: 8, maxTopk: 2, numExperts: 2 };
  const layer = await EPAll2AllLayer.create(world, device, layerOptions);
  const x = await device.tensor('bf16', [4, 8], new Uint16Array(32));
  const ids = await device.tensor('i32', [4, 2], Int32Array.of(0, 1, 0, 1, 0, 1, 0, 1));
  const weights = await device.tensor('f32', [4, 2], new Float32Array(8).fill(0.5));
  const communicator = await Communicator.create(world, device);
  return {
    'EpBuffer.dispatch': async (draw) => {
      const more = { numWorstTokens: draw.or(0), expertAlignment: draw.or(1), ...wait(draw) };
      const args = { x: draw.or(x), topkIdx: draw.or(ids), topkWeights: draw.or(weights), ...more };
      const { handle, recvX } = await buffer.dispatch(as(args));
      await buffer.combine({ x: draw.or(recvX) as never, handle: draw.or(handle), ...wait(draw) });
    },
    'EpBuffer.barrier': (draw) => buffer.barrier(as(wait(draw))),
    'EPAll2AllLayer.dispatch': async (draw) => {
      const args = {
        x: draw.or(x),
        topkIdx: draw.or(ids),
        topkWeights: draw.or(weights),
        numWorstTokens: draw.or(0),
      };
      const { recvX: output, handle } = await layer.dispatch(as({ ...args, ...wait(draw) }));
      await layer.combine(as({ x: draw.or(output), handle: draw.or(handle), ...wait(draw) }));
    },
    'EpLowLatency.dispatch': async (draw) => {
      const sent = { x: draw.or(x), topkIdx: draw.or(ids), dtype: 'bf16' as const, ...wait(draw) };
      const got = await lowLatency.dispatch(sent);
      const args = { x: draw.or(got.recvX), handle: draw.or(got.handle), topkWeights: draw.or(weights) };
      await lowLatency.combine(as({ ...args, ...wait(draw) }));
    },
    'EpLowLatency.combineInput': (draw) => lowLatency.combineInput(draw.number(), as(wait(draw))),
    allReduce: (draw) =>
      communicator.allReduce(as({ input: draw.or(weights), output: draw.or(weights), ...wait(draw) })),
    broadcast: (draw) => communicator.broadcast(as({ input: draw.or(weights), root: draw.number(), ...wait(draw) })),
    'Communicator.send': (draw) => communicator.send(as({ input: draw.number(), peer: draw.number() })),
  };
};

const agents: Scene = async () => {
  const settings = { timeoutMs: 2000 };
  const agent = await Agent.create('a', { settings, backends: ['local'] });
  const peer = await Agent.create('b', { settings, backends: ['local'] });
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const tensor = device.empty('u8', [64]);
  const own = await agent.allocate(4096);
  await peer.allocate(4096, { name: 'there' });
  const name = await agent.loadRemoteMetadata(peer.localMetadata());
  const far = agent.remoteMemory(name)[0]!;
  return {
    allocate: async (draw) => (await agent.allocate(draw.size())).close(),
    register: async (draw) => {
      const memory = as({ device: draw.or(device), address: draw.number(), bytes: draw.or(8) });
      await (await agent.register(draw.chance(0.3) ? draw.or(tensor) : memory)).close();
    },
    localMetadata: (draw) => agent.localMetadata(as({ regions: draw.chance(0.5) ? [draw.number()] : draw.number() })),
    loadRemoteMetadata: (draw) => agent.loadRemoteMetadata(draw.number()),
    notify: (draw) => agent.notify(draw.or(name), draw.or('text')),
    'DescriptorList.of': (draw) => DescriptorList.of(draw.or(own), draw.number(), draw.or(8)),
    'DescriptorList.blocks': (draw) =>
      DescriptorList.blocks(draw.or(own), as({ blockBytes: draw.or(64), stride: draw.or(64), count: draw.size() })),
    'DescriptorList.select': (draw) => DescriptorList.of(own, 0, 8).select(as([draw.or(0), draw.number()])),
    prepare: async (draw) => {
      const [here, there] = [DescriptorList.of(own, 0, 64), DescriptorList.of(far, 0, 64)];
      const more = { operation: draw.or('write'), peer: draw.or(name), timeoutMs: draw.or(2000) };
      const transfer = await agent.prepare(as({ local: draw.or(here), remote: draw.or(there), ...more }));
      transfer.post(draw.or('sent'));
      await transfer.wait(as({ timeoutMs: draw.chance(0.9) ? 2000 : soon(draw) }));
      await transfer.close();
    },
    nextNotification: (draw) => agent.nextNotification(as({ timeoutMs: draw.chance(0.5) ? 1 : soon(draw) })),
    DescriptorList: (draw) =>
      new DescriptorList('host', as(Float64Array.of(draw.below(2), 8)), draw.or(Float64Array.of(1, 2))),
    'DescriptorList of a number': (draw) => new DescriptorList(draw.number(), draw.number(), draw.number()),
  };
};

const kv: Scene = async () => {
  const settings = { timeoutMs: 2000 };
  const [agent, peer] = [
    await Agent.create('a', { settings, backends: ['local'] }),
    await Agent.create('b', { settings }),
  ];
  const [own, far] = [await agent.allocate(4096), await peer.allocate(4096)];
  const shape = { blocks: 8, parts: [{ memory: far, bytes: 64 }] };
  const store = await KvStore.create(peer, { name: 'store', ...shape });
  const reader = await KvReader.create(agent, { blocks: 8, parts: [{ memory: own, bytes: 64 }] });
  await agent.loadRemoteMetadata(peer.localMetadata());
  store.reserve(['a', 'b']);
  await store.seal(['a', 'b']);
  const ticket = store.ticket(['a', 'b'], { leaseMs: 1_000_000 });
  return {
    'KvStore.create': async (draw) => {
      const part = mixed(draw, { memory: far, bytes: 64, stride: 64, offset: 0 });
      const options = { name: 'another', blocks: draw.or(8), parts: draw.or([part]), leases: draw.or(8) };
      await (await KvStore.create(peer, as(options))).close();
    },
    vllmParts: (draw) =>
      vllmParts(draw.or(own), mixed(draw, { layer: 1, order: 'mla', blocks: 8, blockTokens: 2, tokenBytes: 32 })),
    reserve: (draw) => {
      store.reserve(as(draw.or([draw.or('c')])), as(draw.chance(0.5) ? undefined : [draw.or(5)]));
      store.evict(['c']);
    },
    seal: (draw) => store.seal(as(draw.or([draw.number()]))),
    ticket: (draw) => store.release(store.ticket(as(draw.or(['a'])), as({ leaseMs: draw.or(1) }))),
    evict: (draw) => store.evict(as([draw.number()])),
    read: (draw) => {
      const drawn = { ...ticket, blocks: draw.or(ticket.blocks), generations: [draw.or(1), draw.number()] };
      return reader.open(as(draw.chance(0.5) ? ticket : drawn)).read(as([draw.or(0), draw.number()]), as(wait(draw)));
    },
    renew: (draw) => reader.open(as(mixed(draw, ticket))).renew(as(wait(draw))),
  };
};

const unpack: Scene = async () => {
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const launcher = await UnpackLauncher.create(device);
  const [bounce, target] = [await device.tensor('u8', [4096], new Uint8Array(4096)), device.empty('u8', [4096])];
  const span = (draw: Draw, right: unknown): never =>
    as(draw.chance(0.5) ? right : { address: draw.or(bounce.address), bytes: draw.or(64) });
  const plan = expertPlan(as({ layers: 1, experts: 4, ranks: 2 }));
  return {
    launch: (draw) => {
      const ready = draw.chance(0.8) ? undefined : as({ address: draw.or(bounce.address), threshold: draw.or(0) });
      const block = new DescriptorBlock(4).begin(span(draw, bounce), span(draw, target), ready);
      return launcher.launch(block.add(draw.or(0), draw.or(8), draw.or(0)), as({ timeoutMs: 50 }));
    },
    'launch of a number': (draw) => launcher.launch(draw.number()),
    'UnpackLauncher.create': (draw) =>
      UnpackLauncher.create(device, as({ timeoutMs: draw.number(), numSms: draw.number() })),
    quantizeRows: (draw) => quantizeRows(draw.or(device), draw.or(bounce) as never, draw.or({})),
    Placement: (draw) => new Placement(draw.or(plan), as({ rank: draw.or(0), hosts: draw.or([[0, 1]]) })),
    route: (draw) =>
      new Placement(plan, { rank: 0, hosts: [[0, 1]] }).route(draw.or(Int32Array.of(0, 1)) as never, draw.number()),
  };
};

export const scenes: Readonly<Record<string, Scene>> = { values, tensors, deviceHost, ep, agents, kv, unpack };
