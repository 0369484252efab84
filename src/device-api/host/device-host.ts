// The host of kernels that communicate: registers their memory, exchanges it with peers, gives them handles to requests.
import { MAX_REQUEST_REMOTES } from '../../abi/device-api.ts';
import { addressNames } from '../../agent/exchange/metadata-exchange.ts';
import { type BackendName, loadPublished, type MetadataStore } from '../../agent/index.ts';
import { checkAgentName } from '../../agent/metadata.ts';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { Tensor } from '../../device/tensor.ts';
import { addressOf, viewAt } from '../../native/library.ts';
import { isOwnMemory } from '../../native/process-memory.ts';
import { readSettings, readToken, type Settings } from '../../settings/settings.ts';
import { hostIdentity } from '../../world/host-identity.ts';
import { checkQueueLayout, queueBytes, queuesIn, type RequestShape } from '../service/command-queue.ts';
import type { Allocation, MetadataExchangeOptions } from '../service/proxy-worker.ts';
import { ProxyService } from '../service/proxy-service.ts';
import { CpuKernelApi } from './cpu-kernel-api.ts';
import { CudaSide } from './cuda-side.ts';
import {
  decodeDescs,
  encodeDescs,
  type DescRange,
  type DeviceSide,
  type DeviceSideOptions,
  type MappedRanges,
  type TransferDescs,
} from './device-side.ts';
import {
  addressIn,
  checkBytes,
  type RegisteredVram,
  type VramRange,
  VramRegions,
  type WriteRequest,
  WriteRequests,
} from './kernel-memory.ts';
import type { ListenerAddress } from '../../agent/exchange/metadata-exchange.ts';

/** What a DeviceHost is made with. */
export interface DeviceHostOptions {
  /** What peers call it. */
  readonly name: string;
  /** The device whose kernels communicate. */
  readonly device?: CpuDevice | CudaDevice;
  /** Several GPUs in its place, each once. What is registered names one of them by its ordinal. */
  readonly devices?: readonly CudaDevice[];
  /** Peers must have the same; see Agent. */
  readonly token?: string;
  /** The agent's backends that may carry what kernels cannot write directly; all by default. */
  readonly backends?: readonly BackendName[];
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string;
  /** Listens there for peers that exchange metadata, at `host`; 0 takes any free port. Without it, no peer can connect. */
  readonly port?: number;
  /** False: also what kernels could write directly goes through the queues. */
  readonly direct?: boolean;
  /** Command queues of each device; channel c uses queue c % queues. 4 by default. */
  readonly queues?: number;
  /** Commands of each queue, a power of two; 1024 by default. */
  readonly queueCapacity?: number;
  /** Deadline of kernels' waits, and of connecting to a peer; the setting `timeoutMs` by default. */
  readonly timeoutMs?: number;
  /** @internal For tests: host memory is staged as memory of GPUs is. */
  readonly stagesHostMemory?: boolean;
}

const deviceHostOptionNames: OptionNames<DeviceHostOptions> = {
  name: true,
  device: true,
  devices: true,
  token: true,
  backends: true,
  host: true,
  port: true,
  direct: true,
  queues: true,
  queueCapacity: true,
  timeoutMs: true,
  stagesHostMemory: true,
};

/**
 * Fails with WL_INVALID_ARGUMENT for what no thread can be sent. The agent, which is made in a thread, looks at which
 * backends and addresses there are.
 */
function checkDeviceHostOptions(options: DeviceHostOptions): void {
  checkOptions(options, deviceHostOptionNames, 'options of DeviceHost.create');
  const { name, host, backends } = options;
  checkAgentName(name, (why) => invalidArgument('name', name, why));
  if (host !== undefined && typeof host !== 'string') throw invalidArgument('host', host, 'a numeric address');
  if (backends === undefined) return;
  const isList = Array.isArray(backends) && backends.every((backend) => typeof backend === 'string');
  if (!isList) throw invalidArgument('backends', backends, 'a list of names');
}

/** How the writes of a request go. */
interface WriteRequestOptions {
  /**
   * Only this request adds to counters of the peer's ranges, which are 0 now; for puts of 8 bytes, too. What goes through
   * a queue into memory of a GPU is then written by a stream, in about 60 % of the time of a kernel that copies and adds.
   */
  readonly soleWriter?: boolean;
}

const writeRequestOptionNames: OptionNames<WriteRequestOptions> = { soleWriter: true };

// A DeviceHost's side of the CPU: queues in shared memory, kernels are functions of TypeScript.

interface CpuSideOptions extends DeviceSideOptions {
  readonly service: ProxyService;
}

class CpuSide implements DeviceSide {
  readonly ordinal = undefined;
  readonly kernelApi: CpuKernelApi;
  readonly waits = 0;
  readonly queueMemory: SharedArrayBuffer;
  readonly #service: ProxyService;
  #failure: WeftlineError | undefined;

  constructor(options: CpuSideOptions) {
    const { queues, capacity } = options;
    this.queueMemory = new SharedArrayBuffer(queues * queueBytes(capacity));
    this.#service = options.service;
    this.kernelApi = new CpuKernelApi({
      agent: options.agent,
      queues: queuesIn(this.queueMemory, queues, capacity),
      timeoutMs: options.timeoutMs,
      requests: options.requests,
      peerName: options.peerName,
      failure: () => this.#failure,
      wake: () => options.service.wake(),
    });
  }

  async allocate(bytes: number): Promise<Allocation> {
    return this.#service.call('allocate', bytes);
  }

  /** A tensor's own address is an offset in the memory of its device. */
  addressOf(tensor: Tensor): number {
    if (tensor.device.kind === 'cpu') return Number(addressOf(tensor.view()));
    throw invalidArgument('memory', `a tensor of a ${tensor.device.kind} device`, 'one of a CpuDevice');
  }

  owns(address: number, bytes: number): boolean {
    return isOwnMemory(address, bytes);
  }

  pin(address: number): number {
    return address;
  }

  unpin(): void {
    this.kernelApi.close();
  }

  isFar(): boolean {
    return false;
  }

  view({ address, bytes }: { readonly address: number; readonly bytes: number }): Uint8Array {
    return new Uint8Array(viewAt(address, bytes));
  }

  read(memory: { readonly address: number; readonly bytes: number }): Promise<Uint8Array> {
    return Promise.resolve(this.view(memory).slice());
  }

  write(address: number, values: Uint8Array): Promise<void> {
    this.view({ address, bytes: values.length }).set(values);
    return Promise.resolve();
  }

  exportMemory(): undefined {
    return undefined;
  }

  map(): string {
    return 'the CPU writes through its queue';
  }

  addRequest(request: RequestShape): Promise<number> {
    return Promise.resolve(request.number);
  }

  removeRequest(): void {}

  release(): void {}

  abort(error: WeftlineError): void {
    this.#failure ??= error;
  }

  throwIfFailed(): void {
    const failure = this.#failure;
    if (failure === undefined) return;
    this.#failure = undefined;
    this.kernelApi.forgetFailures();
    throw failure;
  }

  [Symbol.dispose](): void {}
}

// One DeviceSide per device of a DeviceHost.

const kindsOfDevice: ReadonlySet<unknown> = new Set(['cpu', 'cuda']);

/** Fails with WL_INVALID_ARGUMENT unless there is one device, or several GPUs. */
function checkDevices({ device, devices }: DeviceHostOptions): readonly (CpuDevice | CudaDevice)[] {
  if ((device === undefined) === (devices === undefined)) {
    throw invalidArgument('device', device, 'one device, or several by the option devices');
  }
  if (device !== undefined) {
    // Callers in plain JavaScript may pass anything.
    if (!kindsOfDevice.has(device?.kind)) throw invalidArgument('device', device, 'a CpuDevice or a CudaDevice');
    return [device];
  }
  const list = devices ?? [];
  if (!Array.isArray(list) || list.length === 0) throw invalidArgument('devices', list, 'at least one GPU');
  const kinds = list.map((one: Partial<CudaDevice> | null): unknown => one?.kind);
  if (kinds.some((kind) => kind !== 'cuda')) throw invalidArgument('devices', kinds, 'GPUs only');
  const ordinals = list.map(({ context }) => context.ordinal);
  if (new Set(ordinals).size < list.length) throw invalidArgument('devices', ordinals, 'each GPU once');
  return list;
}

/**
 * Whoever closes a GPU has `end` called and waited for first: a thread that serves queues would else read memory that is gone.
 * Returns what is called once that has ended by itself.
 */
export function endBeforeDevices(devices: readonly (CpuDevice | CudaDevice)[], end: () => Promise<void>): () => void {
  const gpus = devices.filter((device) => device.kind === 'cuda');
  for (const { context } of gpus) context.threads.add(end);
  return () => {
    for (const { context } of gpus) context.threads.delete(end);
  };
}

/** Opens a side of each device, by the GPU's ordinal; 0 on the CPU. */
async function openHalves(
  devices: readonly (CpuDevice | CudaDevice)[],
  options: CpuSideOptions,
): Promise<ReadonlyMap<number, DeviceSide>> {
  const sides = new Map<number, DeviceSide>();
  try {
    for (const device of devices) {
      const side = device.kind === 'cpu' ? new CpuSide(options) : await CudaSide.create({ ...options, device });
      sides.set(side.ordinal ?? 0, side);
    }
    return sides;
  } catch (error) {
    for (const side of sides.values()) side[Symbol.dispose]();
    throw error;
  }
}

interface Parts {
  readonly settings: Settings;
  readonly devices: readonly (CpuDevice | CudaDevice)[];
  readonly sides: ReadonlyMap<number, DeviceSide>;
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
  /** The port that it listens at; undefined unless the option `port` was given. */
  readonly port: number | undefined;
  readonly #parts: Parts;
  readonly #direct: boolean;
  readonly #forgetDevices: () => void;
  readonly #regions = new VramRegions();
  /** Registered tensors by number of the region. */
  readonly #tensors = new Map<number, Tensor>();
  /** Calls that take back what this host has published. */
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
    checkQueueLayout(queues, capacity);
    const devices = checkDevices(options);
    const requests = new WriteRequests();
    let sides: ReadonlyMap<number, DeviceSide> = new Map();
    const service = new ProxyService({
      name,
      settings,
      token: readToken(options.token),
      backends,
      host,
      stagesHostMemory: options.stagesHostMemory,
      ordinals: devices.flatMap((device) => (device.kind === 'cuda' ? [device.context.ordinal] : [])),
      onFailure: (error) => {
        log('device-api', 'warn', `${name}: waits of kernels end: ${error.code}: ${error.message}`);
        for (const side of sides.values()) side.abort(error);
      },
    });
    try {
      sides = await openHalves(devices, {
        agent: name,
        requests: requests.shapes,
        peerName: (number) => requests.peerName(number) ?? `peer ${number}`,
        timeoutMs: settings.timeoutMs,
        queues,
        capacity,
        service,
      });
      for (const { queueMemory } of sides.values())
        await service.call('serve', { memory: queueMemory, queues, capacity });
      const at = host === undefined ? {} : { host };
      const listening = port === undefined ? undefined : await service.call('listen', { ...at, port });
      return new DeviceHost(options, { settings, devices, sides, service, requests, port: listening });
    } catch (error) {
      await service.close();
      for (const side of sides.values()) side[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(options: DeviceHostOptions, parts: Parts) {
    this.name = options.name;
    this.port = parts.port;
    this.#direct = options.direct ?? true;
    this.#parts = parts;
    this.#forgetDevices = endBeforeDevices(parts.devices, () => this.close());
  }

  /** The device API in TypeScript; WL_UNSUPPORTED on GPUs, whose kernels include weftline/weftline.cuh. */
  get kernelApi(): CpuKernelApi {
    return this.#side().kernelApi;
  }

  /** What kernels of the (first) device pass to wait(): the address of the state that ends it. */
  get waits(): number {
    return this.#side().waits;
  }

  /** The same for kernels of one of several devices. */
  waitsOf(deviceId: number): number {
    return this.#side(deviceId).waits;
  }

  /**
   * Memory of the device that peers can map, zeroed, and registered. Freed when it is deregistered, or with the host. With
   * several devices, `deviceId` names one by its ordinal; the first by default.
   */
  async allocate(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const side = this.#side(deviceId);
    const { address, id } = await side.allocate(bytes);
    if (id !== undefined) return this.#regions.add(side, { id, address, bytes });
    try {
      return await this.registerVram(address, bytes, deviceId);
    } catch (error) {
      side.release(address);
      throw error;
    }
  }

  /**
   * Memory of the host that kernels and the agent reach, zeroed, registered. For counters and small data of peers that
   * this device cannot write to by itself: its host then moves them without a GPU's help. Freed as allocate() says.
   */
  async allocateHost(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const side = this.#side(deviceId);
    const { id, address } = await this.#parts.service.call('allocate', bytes);
    return this.#regions.add(side, { id, address: side.pin(address, bytes), bytes });
  }

  /**
   * A tensor of the device, or memory by its address, which on the CPU is a native one, as allocate() gives it. The memory must
   * stay until it is deregistered; a tensor is held so long. `close()` of a registered tensor frees its memory all the same:
   * deregister it first, or peers write into whatever is allocated there next. Fails with WL_INVALID_ARGUMENT for an address that is not memory of
   * this process, or of the GPU.
   * @param memory Which. A tensor's `address` will do on GPUs alone.
   * @param bytes How many from there on; all of a tensor by default.
   */
  async registerVram(memory: Tensor | number, bytes?: number, deviceId?: number): Promise<RegisteredVram> {
    const side = this.#side(deviceId);
    const size = (bytes ?? (memory instanceof Tensor ? memory.bytes : bytes)) as number;
    checkBytes(size);
    const address = addressIn(side, memory, size);
    const id = await this.#parts.service.call('register', { address, bytes: size, ordinal: side.ordinal });
    const region = this.#regions.add(side, { id, address, bytes: size });
    // The tensor is held, so that its memory is not given to others until it is deregistered.
    if (memory instanceof Tensor) this.#tensors.set(id, memory);
    return region;
  }

  /**
   * Peers can no longer write to it, and what this host allocated is freed. No kernel may use it; fails with
   * WL_INVALID_ARGUMENT while a request reads from it.
   */
  async deregisterVram(memory: RegisteredVram): Promise<void> {
    const known = this.#regions.known(memory);
    const { requests, service } = this.#parts;
    requests.checkUnused('memory', (open) => open.memory === known);
    const side = this.#side(known.deviceId);
    // What is pinned belongs to the agent, which frees it next; memory of a GPU is freed when peers are out of it.
    if (!side.isFar(known.address)) side.release(known.address);
    await service.call('deregister', known.id);
    this.#regions.remove(known);
    this.#tensors.delete(known.id);
    side.release(known.address);
  }

  /**
   * The bytes in place; WL_UNSUPPORTED for memory of GPUs. Valid until the memory is deregistered or the host closed: memory that
   * the host allocated is unmapped then, and a view of it, or an array over its buffer, must not be touched any more.
   */
  view(memory: RegisteredVram): Uint8Array {
    const known = this.#regions.known(memory);
    return this.#side(known.deviceId).view(known);
  }

  /** A copy of registered memory, or of its first bytes. */
  async read(memory: RegisteredVram, bytes?: number): Promise<Uint8Array> {
    const range = this.#regions.range(bytes === undefined ? { memory } : { memory, bytes });
    return this.#side(range.memory.deviceId).read({ address: range.memory.address, bytes: range.bytes });
  }

  /** Overwrites the beginning of registered memory. */
  async write(memory: RegisteredVram, values: Uint8Array): Promise<void> {
    if (!(values instanceof Uint8Array)) throw invalidArgument('values', values, 'a Uint8Array');
    const { memory: known } = this.#regions.range({ memory, bytes: values.length });
    await this.#side(known.deviceId).write(known.address, values);
  }

  /** What a peer's addRemoteAgent() takes. Of what is registered now. */
  getMetadata(): Promise<Uint8Array> {
    return this.#parts.service.call('metadata');
  }

  /** The peer's name. Again with newer metadata of the same peer. Fails with WL_PROTOCOL, and as connecting does. */
  addRemoteAgent(metadata: Uint8Array): Promise<string> {
    return this.#learn(metadata, {});
  }

  /** Forgets a peer; false if it is not known. Fails with WL_INVALID_ARGUMENT while a request goes to it. */
  async removeRemoteAgent(peer: string): Promise<boolean> {
    const { requests, service } = this.#parts;
    requests.checkUnused('peer', ({ request }) => request.peerName === peer);
    requests.removePeer(peer);
    return service.call('removeRemote', peer);
  }

  /**
   * Gives this host's metadata to the one that listens there, and takes its: afterwards each can create requests to the
   * other. Returns its name. Fails with WL_TIMEOUT, WL_PEER_LOST (nobody listens), WL_UNAUTHORIZED (another token).
   */
  exchangeMetadata(address: ListenerAddress): Promise<string> {
    return this.#meet('exchange', address);
  }

  /** Takes the listener's metadata alone; returns its name. Fails as exchangeMetadata(). */
  fetchMetadata(address: ListenerAddress): Promise<string> {
    return this.#meet('fetch', address);
  }

  /** Gives the listener this host's metadata alone. Fails as exchangeMetadata(). */
  async sendMetadata(address: ListenerAddress): Promise<void> {
    await this.#ask('send', address);
  }

  /** Tells the listener to forget this host. Fails as exchangeMetadata(). */
  async sendInvalidation(address: ListenerAddress): Promise<void> {
    await this.#ask('invalidate', address);
  }

  /** Puts this host's metadata into a store, such as etcdMetadataStore(), which they leave with close(). */
  async publishMetadata(store: MetadataStore): Promise<void> {
    const withdraw = await store.put(this.name, await this.getMetadata());
    if (withdraw === undefined) return;
    if (this.#closing !== undefined) await withdraw();
    else this.#withdrawals.add(withdraw);
  }

  /** Takes metadata that a peer has published, as soon as it has; returns its name. Fails with WL_TIMEOUT. */
  loadPublished(store: MetadataStore, peer: string, options?: WaitOptions): Promise<string> {
    const { settings } = this.#parts;
    const loadRemoteMetadata = (blob: Uint8Array, wait: WaitOptions = {}): Promise<string> => this.#learn(blob, wait);
    return loadPublished({ settings, loadRemoteMetadata }, store, peer, options);
  }

  /** Ranges of registered memory for a peer's createWriteReq(). */
  serializeXferDescs(ranges: VramRange | readonly VramRange[]): Uint8Array {
    const described = [ranges].flat().map((range) => {
      const { memory, offset, bytes } = this.#regions.range(range);
      const ipc = this.#side(memory.deviceId).exportMemory(memory.address + offset, bytes);
      return { region: memory.id, offset, bytes, ...(ipc === undefined ? {} : { ipc }) };
    });
    return encodeDescs({ agent: this.name, host: hostIdentity(), process: process.pid, ranges: described });
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
    const { requests, service } = this.#parts;
    const { memory, offset, bytes } = this.#regions.range(local);
    const descs = decodeDescs(remoteDescs);
    // Peers that came by the listener are known to the service alone until they are used.
    if (!requests.knowsPeer(peerName)) await service.call('checkRemote', peerName);
    if (descs.agent !== peerName) throw invalidArgument('remoteDescs', descs.agent, `descriptors of ${peerName}`);
    if (descs.ranges.length > MAX_REQUEST_REMOTES) {
      throw invalidArgument('remoteDescs', descs.ranges.length, `at most ${MAX_REQUEST_REMOTES} ranges`);
    }
    const side = this.#side(memory.deviceId);
    const number = service.takeNumber();
    let mapping: MappedRanges | undefined;
    try {
      const mapped = this.#map(side, descs);
      mapping = typeof mapped === 'string' ? undefined : mapped;
      const remotes = descs.ranges.map((range) => ({ region: range.region, offset: range.offset, bytes: range.bytes }));
      const queued = { number, region: memory.id, offset, bytes, peer: peerName, remotes, isSoleWriter: soleWriter };
      const path =
        typeof mapped === 'string'
          ? `queue, then ${await service.call('request', queued)}: ${mapped}`
          : 'direct: its memory is mapped here';
      const request = {
        number,
        peer: requests.addPeer(peerName),
        peerName,
        path,
        inlines: soleWriter && side.isFar(memory.address) && descs.ranges.every(takesWords),
        local: { address: memory.address + offset, bytes },
        remotes: remotes.map((range, index) => ({ direct: mapping?.addresses[index] ?? 0, bytes: range.bytes })),
      };
      log('device-api', 'info', `${this.name}: request ${number} to ${peerName}: ${path}`);
      requests.add({ request, memory, side, mapping, handles: [] });
      return request;
    } catch (error) {
      mapping?.[Symbol.dispose]();
      await service.releaseRequest(number).catch(() => {});
      throw error;
    }
  }

  /** What kernels use: an address on GPUs, the request's number for `kernelApi`. */
  async createGpuReq(request: WriteRequest): Promise<number> {
    const { side, handles } = this.#parts.requests.known(request);
    const handle = await side.addRequest(request);
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
    if (!(reason instanceof WeftlineError)) throw invalidArgument('reason', reason, 'a WeftlineError');
    for (const side of this.#parts.sides.values()) side.abort(reason);
  }

  /** Fails with why a kernel left early, if one did; to be called after kernels have ended. Waiting for a stream does this too. */
  throwIfFailed(): void {
    for (const side of this.#parts.sides.values()) side.throwIfFailed();
  }

  /**
   * Withdraws what was published, releases all requests, registrations and peers, closes the agent and frees what was
   * allocated; no kernel that uses it may be running. Idempotent. Closing one of its GPUs does this first.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    const { sides, requests, service } = this.#parts;
    for (const side of sides.values()) side.unpin();
    try {
      // Stores that fail are not waited for again.
      await Promise.allSettled([...this.#withdrawals].map((withdraw) => withdraw()));
      for (const open of requests.all) requests.remove(open);
      // The requests, registrations and peers of the agent go with it.
      await service.close();
    } finally {
      for (const side of sides.values()) side[Symbol.dispose]();
      this.#forgetDevices();
    }
  }

  /** The side of a device, the first by default. Fails with WL_INVALID_ARGUMENT. */
  #side(deviceId?: number): DeviceSide {
    const { sides } = this.#parts;
    const [first] = sides.keys();
    const side = sides.get(deviceId ?? first!);
    if (side === undefined) throw invalidArgument('deviceId', deviceId, `one of ${[...sides.keys()].join(', ')}`);
    return side;
  }

  async #learn(metadata: Uint8Array, { timeoutMs }: WaitOptions): Promise<string> {
    const { service, requests } = this.#parts;
    const wait = timeoutMs === undefined ? {} : { timeoutMs };
    const name = await service.call('addRemote', { metadata, ...wait });
    requests.addPeer(name);
    return name;
  }

  /** Asks a listener for its metadata. Returns its name. */
  async #meet(how: 'exchange' | 'fetch', address: ListenerAddress): Promise<string> {
    const name = await this.#ask(how, address);
    if (name === undefined) throw new WeftlineError('WL_INTERNAL', `Metadata came without a name (${how})`);
    this.#parts.requests.addPeer(name);
    return name;
  }

  async #ask(how: MetadataExchangeOptions['how'], address: ListenerAddress): Promise<string | undefined> {
    checkOptions(address, addressNames, 'address of the listener');
    return this.#parts.service.exchange(how, address);
  }

  /** All ranges in this process, or why they are not mapped. */
  #map(side: DeviceSide, descs: TransferDescs): MappedRanges | string {
    if (!this.#direct) return 'asked for';
    if (descs.host !== hostIdentity()) return 'it is on another host';
    return side.map(descs);
  }
}

/** Whether a stream can write 8 bytes wherever a kernel finds a multiple of 8. */
function takesWords({ ipc }: DescRange): boolean {
  return ipc !== undefined && ipc.offset % 8 === 0;
}
