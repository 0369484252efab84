// The network side of a collective object on a GPU: where the window lies that rows cross through, the requests that kernels push to,
// and what kernels know of the other hosts.
import { EP_MAX_GROUP_RANKS, EP_MAX_WAYS } from '../../abi/ep.ts';
import {
  epNetwork,
  MAX_NETWORK_CHANNELS,
  NETWORK_LINE_BYTES,
  networkCellOffset,
  networkCells,
} from '../../abi/network.ts';
import { trapReasons } from '../../abi/trap-record.ts';
import { Block, type Layout } from '../../abi/layout.ts';
import type { GpuReach } from '../../agent/rdma/gpu-reach.ts';
import type { CudaCalls } from '../../group/cuda-calls.ts';
import type { HostRoutes } from '../../group/network/host-routes.ts';
import { outOfReach } from '../../group/network/peer-meeting.ts';
import { PeerWords } from '../../group/network/peer-words.ts';
import { ProxyNetwork } from '../../group/network/proxy-network.ts';
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { ExpiredWait } from '../../device/cuda/trap-box.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import { CudaRequests } from '../../device-api/service/cuda-requests.ts';
import { Tensor } from '../../device/tensor.ts';
import type { Settings } from '../../settings/settings.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { PINNED_CHUNK_BYTES, type PinnedNetworkSize } from './network-size.ts';

/** Commands of a queue: a chunk takes two, and a channel has so many operations under way at most. */
const QUEUE_CAPACITY = 1024;
/** A queue per channel, so that one that is slow holds up no other. */
const QUEUES = MAX_NETWORK_CHANNELS;

type Names<L> = L extends Layout<infer Name> ? Name : never;

interface CudaNetworkOptions extends CallWait {
  /** The ranks, which are on several hosts. */
  readonly group: RankGroup;
  readonly device: CudaDevice;
  /** The object's name, for names and errors. */
  readonly name: string;
  readonly size: PinnedNetworkSize;
  /** Most tokens of any rank. */
  readonly maxTokensPerRank: number;
  /** Sums cross the network as f32, unlike the rows. */
  readonly isWide: boolean;
  /** They do as fp8, which low-latency calls alone know. */
  readonly isFp8?: boolean;
  /** Hear when a peer is out of reach. */
  readonly calls: CudaCalls;
  /** Memory of the caller in place of the window, which is checked. */
  readonly rdmaBuffer?: Tensor<'u8'> | undefined;
}

interface Memory {
  /** The window where it lies in memory of the GPU. */
  readonly gpuWindow: Tensor<'u8'> | undefined;
  /** Where hosts say why they give up, at offsets of the window; the window itself where that lies in memory of the host. */
  readonly host: HostMemory;
  /** What peers say there. */
  readonly words: PeerWords;
  readonly requests: CudaRequests;
  /** EpNetwork. */
  readonly block: Tensor<'u8'>;
  readonly seen: Tensor<'u8'>;
  readonly chunkRows: Tensor<'u8'>;
}

export class CudaHostNetwork {
  readonly #options: CudaNetworkOptions;
  readonly #memory: Memory;
  readonly #proxy: ProxyNetwork;

  /** @internal How RDMA reaches memory of this rank's GPU. Tests put another answer in its place. */
  static findReach: (device: CudaDevice, settings: Settings) => Promise<GpuReach> = async (device, settings) => {
    // Loaded here, so that what drives RDMA devices is loaded only by GPUs of several hosts.
    const { gpuReach } = await import('../../agent/rdma/gpu-reach.ts');
    return gpuReach(device, settings);
  };

  /** Collective; fails alike on all ranks. */
  static async create(options: CudaNetworkOptions): Promise<CudaHostNetwork> {
    const { group, name } = options;
    const made: { memory?: Memory; proxy?: ProxyNetwork; network?: CudaHostNetwork } = {};
    const reach = await agreeOnReach(options);
    const allocate = async (): Promise<void> => void (made.memory = await makeMemory(options, reach));
    try {
      const memoryStep = { name: `network/${name}/memory`, facts: 0, work: allocate };
      const { failure } = await shareOutcome(group, memoryStep, options);
      if (failure !== undefined) throw failure;
      const memory = made.memory as Memory;
      const { rings } = memory.requests;
      const proxy = await ProxyNetwork.create({
        ...options,
        ...registered(options, memory, reach),
        words: memory.words,
        queues: { memory: rings, queues: QUEUES, capacity: QUEUE_CAPACITY },
        onEnd: (error, peer) => {
          const reason = endPeer(options, memory.host, { error, peer });
          if (reason !== undefined) made.proxy?.giveUp(reason);
        },
      });
      made.proxy = proxy;
      const network = new CudaHostNetwork(options, memory, proxy);
      made.network = network;
      const work = (): Promise<void> => network.#describe();
      const described = await shareOutcome(group, { name: `network/${name}/kernels`, facts: 0, work }, options);
      if (described.failure !== undefined) throw described.failure;
      return network;
    } catch (error) {
      made.proxy?.giveUp(error);
      await (made.network ?? made.proxy)?.close();
      if (made.memory && made.network === undefined) release(options, made.memory);
      throw error;
    }
  }

  private constructor(options: CudaNetworkOptions, memory: Memory, proxy: ProxyNetwork) {
    this.#options = options;
    this.#memory = memory;
    this.#proxy = proxy;
    options.device.context.threads.add(this.#abandon);
  }

  get routes(): HostRoutes {
    return this.#proxy.routes;
  }

  /** The way to other hosts itself, for benchmarks. */
  get proxy(): ProxyNetwork {
    return this.#proxy;
  }

  /** Offset of a slot in the window of any rank, for benchmarks. */
  slotOffset(region: 'out' | 'in', slot: number): number {
    const { regions, slotBytes } = this.#options.size;
    return regions[region].offset + slot * slotBytes;
  }

  /** What stands in this rank's window, for benchmarks. */
  async readWindow(offset: number, bytes: number): Promise<Uint8Array> {
    const { gpuWindow, host } = this.#memory;
    if (gpuWindow === undefined) return host.view('u8', offset, bytes);
    return new Tensor(
      gpuWindow.storage,
      'u8',
      [bytes],
      gpuWindow.address - gpuWindow.storage.address + offset,
    ).toHost();
  }

  /** Fills a part of this rank's window with zeros, for benchmarks. */
  async wipeWindow(offset: number, bytes: number): Promise<void> {
    const { device } = this.#options;
    const { gpuWindow, host } = this.#memory;
    if (gpuWindow === undefined) return void host.view('u8', offset, bytes).fill(0);
    device.setBytes({ address: gpuWindow.address + offset, bytes }, 0);
    await device.stream.idle();
  }

  /** Address of EpNetwork, for kernels. */
  get address(): number {
    return this.#memory.block.address;
  }

  /** Hot path. A kernel is about to be launched. */
  wake(): void {
    this.#proxy.wake();
  }

  /** See ProxyNetwork. */
  expectKernels(): () => void {
    return this.#proxy.expectKernels();
  }

  /** See ProxyNetwork. */
  giveUp(error: unknown): void {
    this.#proxy.giveUp(error);
  }

  /** What a peer said for which kernels left, if one of them left for that. */
  explain({ reason }: ExpiredWait): WeftlineError | undefined {
    if (reason !== trapReasons.peerGaveUp || this.#memory.host.disposed) return undefined;
    for (const peer of this.routes.peers) {
      const told = this.#memory.words.told(peer);
      if (told !== undefined) return told;
    }
    return undefined;
  }

  /** When no kernel uses it any more. Returns when what this rank has sent is delivered. */
  async close(): Promise<void> {
    await this.#proxy.close();
    this.#options.device.context.threads.delete(this.#abandon);
    release(this.#options, this.#memory);
  }

  /** The device goes although the object was not closed. */
  readonly #abandon = (): Promise<void> => {
    this.#proxy.giveUp(new WeftlineError('WL_CLOSED', 'The device of this object was closed'));
    return this.#proxy.close();
  };

  /** Tells the kernels who sends to whom. */
  async #describe(): Promise<void> {
    const { group, size, device, maxTokensPerRank, isWide, isFp8 = false } = this.#options;
    const { host: words, seen, chunkRows, block: target } = this.#memory;
    const { topology } = group;
    const { routes, channels } = this.#proxy;
    const bytes = new Uint8Array(epNetwork.size);
    const block = new Block(epNetwork, bytes.buffer, 0);
    const numbers: Partial<Record<Names<typeof epNetwork>, number>> = {
      window: windowAddress(this.#memory),
      words: words.deviceAddress,
      seen: seen.address,
      chunkRows: chunkRows.address,
      cellsOffset: size.regions.cells.offset,
      recordOutOffset: size.regions.recordOut.offset,
      recordInOffset: size.regions.recordIn.offset,
      outOffset: size.regions.out.offset,
      inOffset: size.regions.in.offset,
      slotBytes: size.slotBytes,
      sumsOffset: size.regions.sums.offset,
      returnedOffset: size.regions.returned.offset,
      sumsBytes: size.sumsBytes,
      recordBytes: size.recordBytes,
      maxServed: size.maxServed,
      maxTokens: maxTokensPerRank,
      maxChunks: size.maxChunks,
      chunkBytes: PINNED_CHUNK_BYTES.most,
      leastChunkBytes: PINNED_CHUNK_BYTES.least,
      ranks: group.size,
      rank: group.rank,
      hosts: routes.hosts.length,
      host: routes.host,
      ways: routes.ways.length,
      served: routes.served.length,
      channels,
      isWide: isWide ? 1 : 0,
      isFp8: isFp8 ? 1 : 0,
    };
    for (const [name, value] of Object.entries(numbers)) block.set(name as Names<typeof epNetwork>, value);
    for (const [index, rank] of topology.scaleUpRanks.entries()) block.set('localRanks', rank, index);
    for (let rank = 0; rank < group.size; rank++) {
      block.set('hostOf', topology.hostOf(rank), rank);
      block.set('localIndexOf', topology.scaleUpIndexOf(rank), rank);
    }
    const handles = await this.#openRequests();
    for (const [way, { host, forwarder, slot, ranks }] of routes.ways.entries()) {
      block.set('wayHost', host, way);
      block.set('wayRanks', ranks.length, way);
      block.set('wayForwarder', forwarder, way);
      block.set('waySlot', slot, way);
      setAll(block, 'wayRequests', way, handles.get(forwarder)!);
    }
    for (const [slot, { rank, way }] of routes.served.entries()) {
      block.set('servedRank', rank, slot);
      block.set('servedWay', way, slot);
      setAll(block, 'servedRequests', slot, handles.get(rank)!);
    }
    await target.fromHost(bytes);
    // This waits for what fills the tables that kernels add to, too.
    await device.stream.idle();
  }

  /** Handles of the requests to each peer, by channel. */
  async #openRequests(): Promise<ReadonlyMap<number, readonly number[]>> {
    const { requests } = this.#memory;
    const { bytes } = this.#options.size;
    const { routes, channels } = this.#proxy;
    const handles = new Map<number, readonly number[]>();
    for (const peer of routes.peers) {
      const ofPeer: number[] = [];
      for (let channel = 0; channel < channels; channel++) {
        const number = this.#proxy.requestTo(peer, channel);
        const local = { address: windowAddress(this.#memory), bytes };
        const remotes = [{ direct: 0, bytes }];
        ofPeer.push(await requests.add({ number, peer, inlines: false, local, remotes }));
      }
      handles.set(peer, ofPeer);
    }
    return handles;
  }
}

/** Fails with WL_UNSUPPORTED for a group whose tokens have more destinations than a warp has lanes. */
export function requireNetworkLimits(what: string, { hosts }: { readonly hosts: HostRoutes['hosts'] }): void {
  const ranks = hosts.flat().length;
  const ways = hosts.length - 1;
  if (ranks + ways <= EP_MAX_GROUP_RANKS && ways <= EP_MAX_WAYS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `An ${what} on GPUs across hosts has at most ${EP_MAX_WAYS + 1} hosts, and at most ${EP_MAX_GROUP_RANKS} ranks and other hosts together; ${ranks} ranks on ${hosts.length} hosts make ${ranks + ways}: make groups of fewer ranks`,
    { details: { ranks, hosts: hosts.length, most: EP_MAX_GROUP_RANKS } },
  );
}

function setAll(
  block: Block<Names<typeof epNetwork>>,
  field: 'wayRequests' | 'servedRequests',
  at: number,
  handles: readonly number[],
): void {
  for (const [channel, handle] of handles.entries()) block.set(field, handle, at * MAX_NETWORK_CHANNELS + channel);
}

/**
 * Collective. How this rank's RDMA device reaches memory of its GPU, if RDMA carries between all ranks: else nobody's window
 * lies there, because what carries in its place would have to stage it.
 */
async function agreeOnReach({ group, device, name, ...wait }: CudaNetworkOptions): Promise<GpuReach> {
  const work = (): Promise<GpuReach> => CudaHostNetwork.findReach(device, group.settings);
  const { values, failure } = await shareOutcome(group, { name: `network/${name}/reach`, facts: 0, work }, wait);
  if (failure !== undefined) throw failure;
  const own = values[group.rank]!;
  const { linkLayer } = own;
  const odd = values.findIndex((other) => other!.linkLayer !== linkLayer);
  if (own.memory.way === 'pinned' || odd < 0) return own;
  const { memory, linkLayer: there } = values[odd]!;
  const why = there === undefined ? memory.reason : `its RDMA port is of ${there}, this rank's of ${linkLayer}`;
  return {
    ...own,
    memory: { way: 'pinned', reason: `RDMA does not lead to rank ${group.ranks[odd]}: ${why}`, flush: 'none' },
  };
}

/** Fails with WL_UNSUPPORTED for memory of the caller that no RDMA device reaches. */
async function makeMemory(options: CudaNetworkOptions, { memory: { way, reason } }: GpuReach): Promise<Memory> {
  const { device, group, name, size, calls, rdmaBuffer } = options;
  const isPinned = way === 'pinned';
  if (isPinned && rdmaBuffer !== undefined) {
    const gpu = device.context.ordinal;
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `rdmaBuffer is memory of GPU ${gpu}, which no RDMA device reaches here: ${reason}. Leave it out: pinned memory of the host then takes its place`,
      { details: { gpu, reason } },
    );
  }
  log(
    'device-api',
    'info',
    `${name}: the network side lies in ${isPinned ? 'pinned' : 'GPU'} memory (${way}): ${reason}`,
  );
  const slots = group.topology.hosts.length - 1 + size.maxServed;
  const made: Disposable[] = [];
  const keep = <T extends Disposable>(part: T): T => (made.push(part), part);
  try {
    const { cells, aborts } = size.regions;
    const host = keep(device.allocateHost(isPinned ? size.bytes : aborts.offset + aborts.bytes));
    const places = { start: 0, cells: cells.offset, aborts: aborts.offset };
    const words = new PeerWords(group.ranks, { buffer: host.buffer, ...places });
    const gpuWindow = isPinned ? undefined : (rdmaBuffer ?? keep(device.empty('u8', [size.bytes])));
    const trap = calls.traps.address;
    const { timeoutMs } = group.settings;
    const requests = keep(
      await CudaRequests.create({ device, trap, timeoutMs, queues: QUEUES, capacity: QUEUE_CAPACITY }),
    );
    const tables = {
      block: keep(device.empty('u8', [epNetwork.size])),
      seen: keep(device.empty('u8', [EP_MAX_GROUP_RANKS * (NETWORK_LINE_BYTES / 8) * 4])),
      chunkRows: keep(device.empty('u8', [slots * size.maxChunks * 4])),
    };
    for (const tensor of [tables.seen, tables.chunkRows]) device.setBytes(tensor, 0);
    if (gpuWindow !== undefined) {
      device.setBytes({ address: gpuWindow.address, bytes: size.bytes }, 0);
      // ORDER: peers add to its cells as soon as they know of it.
      await device.stream.idle();
    }
    return { gpuWindow, host, words, requests, ...tables };
  } catch (error) {
    for (const part of made) part[Symbol.dispose]();
    throw error;
  }
}

function release(
  { rdmaBuffer }: CudaNetworkOptions,
  { gpuWindow, host, requests, block, seen, chunkRows }: Memory,
): void {
  for (const part of [requests, block, seen, chunkRows, host]) part[Symbol.dispose]();
  if (rdmaBuffer === undefined) gpuWindow?.close();
}

/** As kernels reach it. */
function windowAddress({ gpuWindow, host }: Memory): number {
  return gpuWindow?.address ?? host.deviceAddress;
}

/** What the thread registers, and with which backends. */
function registered(
  { device, size: { bytes } }: CudaNetworkOptions,
  { gpuWindow, host }: Memory,
  { backends, rdmaDevices }: GpuReach,
): Pick<Parameters<typeof ProxyNetwork.create>[0], 'memory' | 'wordMemory' | 'backends' | 'rdmaDevices'> {
  const wordMemory = { address: host.hostAddress, bytes: host.bytes };
  if (gpuWindow === undefined) return { memory: wordMemory };
  return {
    memory: { address: gpuWindow.address, bytes, ordinal: device.context.ordinal },
    wordMemory,
    backends,
    rdmaDevices,
  };
}

/** Why kernels leave when a peer is out of reach; undefined if it closed its side, of which what it sent before counts. */
function endPeer(
  { group, name, size, calls }: CudaNetworkOptions,
  words: HostMemory,
  { error, peer }: { readonly error: WeftlineError; readonly peer: number | undefined },
): WeftlineError | undefined {
  if (peer === undefined) {
    calls.traps.abort(error);
    return error;
  }
  if (error.code === 'WL_CLOSED') {
    const cell = size.regions.cells.offset + networkCellOffset(peer, networkCells.abort);
    // The high word; the peer itself adds to the low one.
    if (!words.disposed) Atomics.store(words.view('i32'), cell / 4 + 1, 1);
    return undefined;
  }
  log('device-api', 'warn', `${name}: waits of kernels end: ${error.code}: ${error.message}`);
  const reason = outOfReach(group.ranks[peer]!, error);
  calls.traps.abort(reason);
  return reason;
}
