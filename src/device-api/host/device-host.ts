// The host of kernels that communicate: registers their memory, exchanges it with peers, gives them handles to requests.
import { type ListenerAddress, loadPublished, type MetadataStore } from '../../agent/index.ts';
import { addressNames } from '../../agent/exchange/metadata-caller.ts';
import { MAX_REQUEST_REMOTES } from '../../abi/command-queue.ts';
import { checkOptions } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { log } from '../../core/log.ts';
import { invalidArgument, type WeftlineError } from '../../core/errors.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { readToken } from '../../settings/token.ts';
import { hostIdentity } from '../../world/host-identity.ts';
import { ProxyService } from '../service/proxy-service.ts';
import { checkQueueLayout } from '../service/queue-layout.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';
import type { DeviceHalf, MappedRanges } from './device-half.ts';
import {
  checkDeviceHostOptions,
  type DeviceHostOptions,
  type WriteRequestOptions,
  writeRequestOptionNames,
} from './device-host-options.ts';
import { checkDevices, openHalves } from './open-halves.ts';
import { decodeDescs, type DescRange, encodeDescs, type TransferDescs } from './transfer-descs.ts';
import { checkBytes, type RegisteredVram, type VramRange, VramRegions } from './vram-regions.ts';
import { type WriteRequest, WriteRequests } from './write-requests.ts';

interface Parts {
  readonly settings: Settings;
  readonly halves: ReadonlyMap<number, DeviceHalf>;
  readonly service: ProxyService;
  readonly requests: WriteRequests;
  readonly port: number | undefined;
}

/**
 * The host's side of kernels that communicate: an agent, the memory that kernels reach, requests, and the thread that serves
 * their command queues. Everything is made before the kernels run, and closed after they ended.
 */
export class DeviceHost implements AsyncDisposable {
  readonly name: string;
  /** Where it listens; undefined unless the option `port` was given. */
  readonly port: number | undefined;
  readonly #parts: Parts;
  readonly #direct: boolean;
  readonly #regions = new VramRegions();
  /** Take back what this host has published. */
  readonly #withdrawals = new Set<() => Promise<void>>();
  #closing: Promise<void> | undefined;

  /**
   * Starts the thread that serves the queues. Fails with WL_INVALID_ARGUMENT, WL_CONFIG, WL_CUDA, WL_UNSUPPORTED,
   * WL_TIMEOUT.
   * @param options Name, devices, token, queues.
   */
  static async create(options: DeviceHostOptions): Promise<DeviceHost> {
    checkDeviceHostOptions(options);
    const settings = readSettings(options.timeoutMs === undefined ? {} : { timeoutMs: options.timeoutMs });
    const { name, backends, host, port, queues = 4, queueCapacity: capacity = 1024 } = options;
    checkQueueLayout({ queues, capacity });
    const devices = checkDevices(options);
    const requests = new WriteRequests();
    let halves: ReadonlyMap<number, DeviceHalf> = new Map();
    const service = new ProxyService({
      name,
      settings,
      token: readToken(options.token),
      backends,
      host,
      ordinals: devices.flatMap((device) => (device.kind === 'cuda' ? [device.context.ordinal] : [])),
      onFailure: (error) => {
        log('device-api', 'warn', `${name}: waits of kernels end: ${error.code}: ${error.message}`);
        for (const half of halves.values()) half.abort(error);
      },
    });
    try {
      halves = await openHalves(devices, {
        agent: name,
        requests: requests.shapes,
        peerName: (number) => requests.peerName(number) ?? `peer ${number}`,
        timeoutMs: settings.timeoutMs,
        queues,
        capacity,
        service,
      });
      for (const { queueMemory } of halves.values()) await service.serve({ memory: queueMemory, queues, capacity });
      const at = host === undefined ? {} : { host };
      const listening = port === undefined ? undefined : await service.listen({ ...at, port });
      return new DeviceHost(options, { settings, halves, service, requests, port: listening });
    } catch (error) {
      await service.close();
      for (const half of halves.values()) half[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(options: DeviceHostOptions, parts: Parts) {
    this.name = options.name;
    this.port = parts.port;
    this.#direct = options.direct ?? true;
    this.#parts = parts;
  }

  /** The device API in TypeScript; WL_UNSUPPORTED on GPUs, whose kernels include weftline/weftline.cuh. */
  get kernelApi(): CpuKernelApi {
    return this.#half().kernelApi;
  }

  /** What kernels of the (first) device pass to wait(): the address of the state that ends it. */
  get waits(): number {
    return this.#half().waits;
  }

  /** The same for kernels of one of several devices. */
  waitsOf(deviceId: number): number {
    return this.#half(deviceId).waits;
  }

  /**
   * Memory of the device that peers can map, zeroed, and registered. Freed when it is deregistered, or with the host. With
   * several devices, `deviceId` names one by its ordinal; the first by default.
   */
  async allocate(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const half = this.#half(deviceId);
    const { address, id } = await half.allocate(bytes);
    if (id !== undefined) return this.#regions.add({ id, address, bytes, deviceId: half.deviceId });
    try {
      return await this.registerVram(address, bytes, deviceId);
    } catch (error) {
      half.release(address);
      throw error;
    }
  }

  /**
   * Memory of the host that kernels and the agent reach, zeroed, registered. For counters and small data of peers that
   * this device cannot write to by itself: its host then moves them without a GPU's help. Freed as allocate() says.
   */
  async allocateHost(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const half = this.#half(deviceId);
    const { id, address } = await this.#parts.service.allocate(bytes);
    return this.#regions.add({ id, address: half.pin(address, bytes), bytes, deviceId: half.deviceId });
  }

  /** On the CPU the address is native, as allocate() gives it. The memory stays until it is deregistered. */
  async registerVram(address: number, bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    // No thread survives a native call with what is no address.
    if (!Number.isSafeInteger(address) || address <= 0)
      throw invalidArgument('address', address, 'an address of memory');
    const half = this.#half(deviceId);
    const id = await this.#parts.service.register({ address, bytes, ordinal: half.ordinal });
    return this.#regions.add({ id, address, bytes, deviceId: half.deviceId });
  }

  /**
   * Peers can no longer write to it, and what this host allocated is freed. No kernel may use it; fails with
   * WL_INVALID_ARGUMENT while a request reads from it.
   */
  async deregisterVram(memory: RegisteredVram): Promise<void> {
    const known = this.#regions.known(memory);
    const { requests, service } = this.#parts;
    requests.checkUnused('memory', (open) => open.memory === known);
    const half = this.#half(known.deviceId);
    // What is pinned belongs to the agent, which frees it next; memory of a GPU is freed when peers are out of it.
    if (!half.isFar(known.address)) half.release(known.address);
    await service.deregister(known.id);
    this.#regions.remove(known);
    half.release(known.address);
  }

  /** The bytes in place; WL_UNSUPPORTED for memory of GPUs. */
  view(memory: RegisteredVram): Uint8Array {
    const known = this.#regions.known(memory);
    return this.#half(known.deviceId).view(known);
  }

  /** A copy of registered memory, or of its first bytes. */
  async read(memory: RegisteredVram, bytes?: number): Promise<Uint8Array> {
    const range = this.#regions.range(bytes === undefined ? { memory } : { memory, bytes });
    return this.#half(range.memory.deviceId).read({ address: range.memory.address, bytes: range.bytes });
  }

  /** Overwrites the beginning of registered memory. */
  async write(memory: RegisteredVram, values: Uint8Array): Promise<void> {
    if (!(values instanceof Uint8Array)) throw invalidArgument('values', values, 'a Uint8Array');
    const { memory: known } = this.#regions.range({ memory, bytes: values.length });
    await this.#half(known.deviceId).write(known.address, values);
  }

  /** What a peer's addRemoteAgent() takes. Of what is registered now. */
  getMetadata(): Promise<Uint8Array> {
    return this.#parts.service.metadata();
  }

  /** The peer's name. Again with newer metadata of the same peer. Fails with WL_PROTOCOL, and as connecting does. */
  async addRemoteAgent(metadata: Uint8Array): Promise<string> {
    const name = await this.#parts.service.addRemote(metadata);
    this.#parts.requests.addPeer(name);
    return name;
  }

  /** Forgets a peer; false if it is not known. Fails with WL_INVALID_ARGUMENT while a request goes to it. */
  async removeRemoteAgent(peer: string): Promise<boolean> {
    const { requests, service } = this.#parts;
    requests.checkUnused('peer', ({ request }) => request.peerName === peer);
    requests.removePeer(peer);
    return service.removeRemote(peer);
  }

  /**
   * Gives this host's metadata to the one that listens there, and takes its: afterwards each can create requests to the
   * other. Returns its name. Fails with WL_TIMEOUT, WL_PEER_LOST (nobody listens), WL_UNAUTHORIZED (another token).
   */
  async exchangeMetadata(address: ListenerAddress): Promise<string> {
    const name = await this.#exchange('exchange', address);
    this.#parts.requests.addPeer(name!);
    return name!;
  }

  /** Only takes the listener's metadata; returns its name. Fails as exchangeMetadata(). */
  async fetchMetadata(address: ListenerAddress): Promise<string> {
    const name = await this.#exchange('fetch', address);
    this.#parts.requests.addPeer(name!);
    return name!;
  }

  /** Only gives the listener this host's metadata. Fails as exchangeMetadata(). */
  async sendMetadata(address: ListenerAddress): Promise<void> {
    await this.#exchange('send', address);
  }

  /** Tells the listener to forget this host. Fails as exchangeMetadata(). */
  async sendInvalidation(address: ListenerAddress): Promise<void> {
    await this.#exchange('invalidate', address);
  }

  /** Puts this host's metadata into a store, such as etcdMetadataStore(), which they leave with close(). */
  async publishMetadata(store: MetadataStore): Promise<void> {
    const withdraw = await store.put(this.name, await this.getMetadata());
    if (withdraw === undefined) return;
    if (this.#closing === undefined) this.#withdrawals.add(withdraw);
    else await withdraw();
  }

  /** Takes metadata that a peer has published, as soon as it has; returns its name. Fails with WL_TIMEOUT. */
  loadPublished(store: MetadataStore, peer: string, options?: WaitOptions): Promise<string> {
    const loadRemoteMetadata = (blob: Uint8Array): Promise<string> => this.addRemoteAgent(blob);
    return loadPublished({ settings: this.#parts.settings, loadRemoteMetadata }, store, peer, options);
  }

  /** Ranges of registered memory for a peer's createWriteReq(). */
  serializeXferDescs(ranges: VramRange | readonly VramRange[]): Uint8Array {
    const list = [ranges].flat();
    return encodeDescs({
      agent: this.name,
      host: hostIdentity(),
      process: process.pid,
      ranges: list.map((range) => this.#describe(range)),
    });
  }

  /**
   * Writes from a local range to the ranges that the peer serialised. Fails with WL_INVALID_ARGUMENT, WL_PROTOCOL,
   * WL_CAPACITY, and as connecting does.
   */
  async createWriteReq(
    local: VramRange,
    remoteDescs: Uint8Array,
    peerName: string,
    options: WriteRequestOptions = {},
  ): Promise<WriteRequest> {
    checkOptions(options, writeRequestOptionNames, 'options of createWriteReq');
    const { soleWriter = false } = options;
    const { memory, offset, bytes } = this.#regions.range(local);
    const descs = decodeDescs(remoteDescs);
    const { requests, service } = this.#parts;
    // Peers that came by the listener are known to the service alone until they are used.
    if (!requests.knowsPeer(peerName)) await service.checkRemote(peerName);
    if (descs.agent !== peerName) throw invalidArgument('remoteDescs', descs.agent, `descriptors of ${peerName}`);
    if (descs.ranges.length > MAX_REQUEST_REMOTES) {
      throw invalidArgument('remoteDescs', descs.ranges.length, `at most ${MAX_REQUEST_REMOTES} ranges`);
    }
    const half = this.#half(memory.deviceId);
    const number = service.takeNumber();
    let mapping: MappedRanges | undefined;
    try {
      const mapped = this.#map(half, descs);
      mapping = typeof mapped === 'string' ? undefined : mapped;
      const remotes = descs.ranges.map((range) => ({ region: range.region, offset: range.offset, bytes: range.bytes }));
      const queued = { number, region: memory.id, offset, bytes, peer: peerName, remotes, isSoleWriter: soleWriter };
      const path =
        typeof mapped === 'string'
          ? `queue, then ${await service.openRequest(queued)}: ${mapped}`
          : 'direct: its memory is mapped here';
      const request = {
        number,
        peer: requests.addPeer(peerName),
        peerName,
        path,
        inlines: soleWriter && half.isFar(memory.address) && descs.ranges.every(takesWords),
        local: { address: memory.address + offset, bytes },
        remotes: remotes.map((range, index) => ({ direct: mapping?.addresses[index] ?? 0, bytes: range.bytes })),
      };
      log('device-api', 'info', `${this.name}: request ${number} to ${peerName}: ${path}`);
      requests.add({ request, memory, half, mapping, handles: [] });
      return request;
    } catch (error) {
      mapping?.[Symbol.dispose]();
      await service.releaseRequest(number).catch(() => {});
      throw error;
    }
  }

  /** What kernels use: an address on GPUs, the request's number for `kernelApi`. */
  async createGpuReq(request: WriteRequest): Promise<number> {
    const { half, handles } = this.#parts.requests.known(request);
    const handle = await half.addRequest(request);
    handles.push(handle);
    return handle;
  }

  /**
   * Takes a request and its handles back. To be called when the kernels that use them have ended and what they put has been
   * flushed: commands that are still in a queue fail. Fails with WL_INVALID_ARGUMENT if it was released before.
   */
  async releaseWriteReq(request: WriteRequest): Promise<void> {
    const { requests, service } = this.#parts;
    requests.remove(requests.known(request));
    await service.releaseRequest(request.number);
  }

  /** Kernels that wait leave within milliseconds; the next wait for them throws the error, once. */
  abort(reason: WeftlineError): void {
    for (const half of this.#parts.halves.values()) half.abort(reason);
  }

  /** After kernels have ended: fails with why one of them left early, if one did. Waiting for a stream does this too. */
  throwIfFailed(): void {
    for (const half of this.#parts.halves.values()) half.throwIfFailed();
  }

  /**
   * Withdraws what was published, releases all requests, registrations and peers, closes the agent and frees what was
   * allocated; no kernel that uses it may be running. Idempotent.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    const { halves, requests, service } = this.#parts;
    for (const half of halves.values()) half.unpin();
    try {
      await Promise.allSettled([...this.#withdrawals].map((withdraw) => withdraw()));
      for (const open of requests.all) requests.remove(open);
      // With it go the requests, registrations and peers of the agent.
      await service.close();
    } finally {
      for (const half of halves.values()) half[Symbol.dispose]();
    }
  }

  #exchange(how: 'exchange' | 'fetch' | 'send' | 'invalidate', address: ListenerAddress): Promise<string | undefined> {
    checkOptions(address, addressNames, 'address of the listener');
    return this.#parts.service.exchange(how, address);
  }

  #half(deviceId?: number): DeviceHalf {
    const { halves } = this.#parts;
    const [first] = halves.keys();
    const half = halves.get(deviceId ?? first!);
    if (half === undefined) throw invalidArgument('deviceId', deviceId, `one of ${[...halves.keys()].join(', ')}`);
    return half;
  }

  /** All ranges in this process, or why they are not mapped. */
  #map(half: DeviceHalf, descs: TransferDescs): MappedRanges | string {
    if (!this.#direct) return 'asked for';
    if (descs.host !== hostIdentity()) return 'it is on another host';
    return half.map(descs);
  }

  #describe(range: VramRange): DescRange {
    const { memory, offset, bytes } = this.#regions.range(range);
    const ipc = this.#half(memory.deviceId).exportMemory(memory.address + offset, bytes);
    return { region: memory.id, offset, bytes, ...(ipc === undefined ? {} : { ipc }) };
  }
}

/** Whether a stream can write 8 bytes wherever a kernel finds a multiple of 8. */
function takesWords({ ipc }: DescRange): boolean {
  return ipc !== undefined && ipc.offset % 8 === 0;
}
