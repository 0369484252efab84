// The host of kernels that communicate: registers their memory, exchanges it with peers, gives them handles to requests.
import type { BackendName } from '../../agent/index.ts';
import { MAX_COMMAND_OFFSET, MAX_DEVICE_REQUESTS, MAX_REQUEST_REMOTES } from '../../abi/command-queue.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { readSettings } from '../../settings/settings.ts';
import { readToken } from '../../settings/token.ts';
import { hostIdentity } from '../../world/host-identity.ts';
import { CpuHalf } from './cpu-half.ts';
import { CudaHalf } from './cuda-half.ts';
import type { DeviceHalf } from './device-half.ts';
import type { CpuKernelApi } from './cpu-kernel-api.ts';
import { ProxyLink } from '../service/proxy-link.ts';
import { checkQueueLayout } from '../service/queue-layout.ts';
import type { RequestShape } from './request-shape.ts';
import { decodeDescs, type DescRange, encodeDescs, type TransferDescs } from './transfer-descs.ts';

export interface DeviceHostOptions {
  /** What peers call it. */
  readonly name: string;
  readonly device: CpuDevice | CudaDevice;
  /** Peers must have the same; see Agent. */
  readonly token?: string;
  /** Which of the agent's backends may carry what kernels cannot write directly; all by default. */
  readonly backends?: readonly BackendName[];
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string;
  /** False: also what kernels could write directly goes through the queues. */
  readonly direct?: boolean;
  /** Command queues of the device; channel c uses queue c % queues. 4 by default. */
  readonly queues?: number;
  /** Commands of each queue, a power of two; 1024 by default. */
  readonly queueCapacity?: number;
  /** Deadline of kernels' waits, and of connecting to a peer; the setting `timeoutMs` by default. */
  readonly timeoutMs?: number;
}

/** Memory that requests may read from and peers may write to. */
export interface RegisteredVram {
  /** Number of the region at this host. */
  readonly id: number;
  /** On the device. */
  readonly address: number;
  readonly bytes: number;
}

/** A range of a registered region. */
export interface VramRange {
  readonly memory: RegisteredVram;
  readonly offset?: number;
  readonly bytes?: number;
}

export interface WriteRequest extends RequestShape {
  readonly peerName: string;
  /** "direct: …", "queue: …": how its writes travel, and why. */
  readonly path: string;
}

export interface WriteRequestOptions {
  /**
   * Only this request adds to counters of the peer's ranges, which are 0 now; for puts of 8 bytes, too. What goes through
   * a queue into memory of a GPU is then written by a stream, in half the time of a kernel that copies and adds.
   */
  readonly soleWriter?: boolean;
}

interface Peer {
  readonly name: string;
  readonly number: number;
}

export class DeviceHost implements AsyncDisposable {
  readonly name: string;
  readonly #half: DeviceHalf;
  readonly #link: ProxyLink;
  readonly #direct: boolean;
  readonly #peers: Peer[] = [];
  readonly #requests: (WriteRequest | undefined)[];
  readonly #regions = new Map<number, RegisteredVram>();

  /** Starts the thread that serves the queues. Fails with WL_INVALID_ARGUMENT, WL_CUDA, WL_UNSUPPORTED, WL_TIMEOUT. */
  static async create(options: DeviceHostOptions): Promise<DeviceHost> {
    const settings = readSettings(options.timeoutMs === undefined ? {} : { timeoutMs: options.timeoutMs });
    const { name, device, queues = 4, queueCapacity: capacity = 1024 } = options;
    checkQueueLayout({ queues, capacity });
    const requests: (WriteRequest | undefined)[] = [];
    const peers: Peer[] = [];
    const shared = {
      agent: name,
      requests,
      peerName: (number: number): string => peers[number]?.name ?? `peer ${number}`,
      timeoutMs: settings.timeoutMs,
      queues,
      capacity,
    };
    const ordinal = device.kind === 'cuda' ? device.context.ordinal : undefined;
    const { backends, host } = options;
    const token = readToken(options.token);
    let half: DeviceHalf | undefined;
    const link = new ProxyLink(
      { agent: name, settings, token, backends, ordinal, host },
      (error) => half?.abort(error),
      // Kernels may be given less than it takes to start a thread.
      { timeoutMs: Math.max(settings.timeoutMs, readSettings().timeoutMs) },
    );
    try {
      half =
        device.kind === 'cpu'
          ? new CpuHalf({ ...shared, wake: () => link.wake.ring(), link })
          : await CudaHalf.create({ ...shared, device });
      await link.call('serve', { memory: half.queueMemory, queues, capacity });
      return new DeviceHost(options, { half, link, requests, peers });
    } catch (error) {
      await link[Symbol.asyncDispose]();
      half?.[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(
    options: DeviceHostOptions,
    parts: { half: DeviceHalf; link: ProxyLink; requests: (WriteRequest | undefined)[]; peers: Peer[] },
  ) {
    this.name = options.name;
    this.#direct = options.direct ?? true;
    this.#half = parts.half;
    this.#link = parts.link;
    this.#requests = parts.requests;
    this.#peers = parts.peers;
  }

  /** The device API in TypeScript; WL_UNSUPPORTED on GPUs, whose kernels include weftline/weftline.cuh. */
  get kernelApi(): CpuKernelApi {
    return this.#half.kernelApi;
  }

  /** What kernels pass to wait(): the address of the state that ends it. */
  get waits(): number {
    return this.#half.waits;
  }

  /** Memory of the device that peers can map, zeroed, and registered. Freed with the host. */
  async allocate(bytes: number): Promise<RegisteredVram> {
    const { address, id } = await this.#half.allocate(bytes);
    return id === undefined ? this.registerVram(address, bytes) : this.#keep({ id, address, bytes });
  }

  /**
   * Memory of the host that kernels and the agent reach, zeroed, registered. For counters and small data of peers that
   * this device cannot write to by itself: its host then moves them without a GPU's help. Freed with the host.
   */
  async allocateHost(bytes: number): Promise<RegisteredVram> {
    const { id, address } = await this.#link.call('allocate', bytes);
    return this.#keep({ id, address: this.#half.pin(address, bytes), bytes });
  }

  /** On the CPU the address is native, as allocate() gives it. The memory stays until the host is closed. */
  async registerVram(address: number, bytes: number): Promise<RegisteredVram> {
    if (!Number.isInteger(bytes) || bytes < 1 || bytes > MAX_COMMAND_OFFSET) {
      throw invalidArgument('bytes', bytes, `1 to ${MAX_COMMAND_OFFSET}`);
    }
    const id = await this.#link.call('register', { address, bytes });
    return this.#keep({ id, address, bytes });
  }

  /** The bytes in place; WL_UNSUPPORTED for memory of GPUs. */
  view(memory: RegisteredVram): Uint8Array {
    return this.#half.view(this.#known(memory));
  }

  /** A copy of registered memory, or of its first bytes. */
  async read(memory: RegisteredVram, bytes: number = memory.bytes): Promise<Uint8Array> {
    this.#range({ memory, bytes });
    return this.#half.read({ address: memory.address, bytes });
  }

  /** Overwrites the beginning of registered memory. */
  async write(memory: RegisteredVram, values: Uint8Array): Promise<void> {
    this.#range({ memory, bytes: values.length });
    await this.#half.write(memory.address, values);
  }

  /** What a peer's addRemoteAgent() takes. Of what is registered now. */
  async getMetadata(): Promise<Uint8Array> {
    return this.#link.call('metadata');
  }

  /** The peer's name. Again with newer metadata of the same peer. Fails with WL_PROTOCOL, and as connecting does. */
  async addRemoteAgent(metadata: Uint8Array): Promise<string> {
    const name = await this.#link.call('addRemote', metadata);
    if (!this.#peers.some((peer) => peer.name === name)) this.#peers.push({ name, number: this.#peers.length });
    return name;
  }

  /** Ranges of registered memory for a peer's createWriteReq(). */
  serializeXferDescs(ranges: VramRange | readonly VramRange[]): Uint8Array {
    const list = 'memory' in ranges ? [ranges] : ranges;
    return encodeDescs({
      agent: this.name,
      host: hostIdentity(),
      process: process.pid,
      ranges: list.map((range) => this.#describe(range)),
    });
  }

  /** Writes from a local range to the ranges that the peer serialised. Fails with WL_INVALID_ARGUMENT, WL_PROTOCOL. */
  async createWriteReq(
    local: VramRange,
    remoteDescs: Uint8Array,
    peerName: string,
    { soleWriter = false }: WriteRequestOptions = {},
  ): Promise<WriteRequest> {
    const { memory, offset, bytes } = this.#range(local);
    const descs = decodeDescs(remoteDescs);
    const peer = this.#peers.find(({ name }) => name === peerName);
    if (peer === undefined) throw invalidArgument('peerName', peerName, 'what addRemoteAgent() returned');
    if (descs.agent !== peerName) throw invalidArgument('remoteDescs', descs.agent, `descriptors of ${peerName}`);
    if (descs.ranges.length > MAX_REQUEST_REMOTES) {
      throw invalidArgument('remoteDescs', descs.ranges.length, `at most ${MAX_REQUEST_REMOTES} ranges`);
    }
    const number = this.#requests.length;
    if (number >= MAX_DEVICE_REQUESTS) {
      throw new WeftlineError('WL_CAPACITY', `${this.name} has ${number} requests, which is the most`);
    }
    const mapped = this.#map(descs);
    // The number is taken before the wait, so that two calls at once get two.
    this.#requests.push(undefined);
    const path = Array.isArray(mapped)
      ? 'direct: its memory is mapped here'
      : await this.#openQueued(mapped, { number, memory, offset, bytes, descs, peerName, soleWriter });
    const request = {
      number,
      peer: peer.number,
      peerName,
      path,
      inlines: soleWriter && this.#half.isFar(memory.address) && descs.ranges.every(takesWords),
      local: { address: memory.address + offset, bytes },
      remotes: descs.ranges.map((range, index) => ({
        direct: Array.isArray(mapped) ? mapped[index]! : 0,
        bytes: range.bytes,
      })),
    };
    this.#requests[number] = request;
    return request;
  }

  /** What kernels use: an address on GPUs, the request's number for `kernelApi`. */
  createGpuReq(request: WriteRequest): Promise<number> {
    return this.#half.addRequest(request);
  }

  /** Kernels that wait leave within milliseconds; whoever waits for them gets the error, once. */
  abort(reason: WeftlineError): void {
    this.#half.abort(reason);
  }

  /** After kernels have ended: fails with why one of them left early, if one did. Waiting for a stream does this too. */
  throwIfFailed(): void {
    this.#half.throwIfFailed();
  }

  /** Closes the agent and frees what was allocated; no kernel that uses it may be running. Idempotent. */
  async close(): Promise<void> {
    this.#half.letGo();
    await this.#link[Symbol.asyncDispose]();
    this.#half[Symbol.dispose]();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #keep(memory: RegisteredVram): RegisteredVram {
    this.#regions.set(memory.id, memory);
    return memory;
  }

  /** Addresses of all ranges in this process, or why there are none. */
  #map(descs: TransferDescs): number[] | string {
    if (!this.#direct) return 'asked for';
    if (descs.host !== hostIdentity()) return 'it is on another host';
    return this.#half.map(descs);
  }

  async #openQueued(
    reason: string,
    parts: {
      number: number;
      memory: RegisteredVram;
      offset: number;
      bytes: number;
      descs: TransferDescs;
      peerName: string;
      soleWriter: boolean;
    },
  ): Promise<string> {
    const { number, memory, offset, bytes, descs, peerName, soleWriter } = parts;
    const remotes = descs.ranges.map((range) => ({ region: range.region, offset: range.offset, bytes: range.bytes }));
    const options = {
      number,
      region: memory.id,
      offset,
      bytes,
      peer: peerName,
      remotes,
      isSoleWriter: soleWriter,
    };
    const backend = await this.#link.call('request', options);
    return `queue, then ${backend}: ${reason}`;
  }

  #describe(range: VramRange): DescRange {
    const { memory, offset, bytes } = this.#range(range);
    const ipc = this.#half.exportMemory(memory.address + offset, bytes);
    return { region: memory.id, offset, bytes, ...(ipc === undefined ? {} : { ipc }) };
  }

  #range({ memory, offset = 0, bytes }: VramRange): { memory: RegisteredVram; offset: number; bytes: number } {
    const known = this.#known(memory);
    const size = bytes ?? known.bytes - offset;
    const isInside = Number.isInteger(offset) && Number.isInteger(size) && offset >= 0 && size > 0;
    if (isInside && offset + size <= known.bytes) return { memory: known, offset, bytes: size };
    throw invalidArgument('range', [offset, offset + size], `inside the ${known.bytes} bytes of its memory`);
  }

  #known(memory: RegisteredVram): RegisteredVram {
    const known = this.#regions.get(memory.id);
    if (known === undefined) throw invalidArgument('memory', memory.id, 'what registerVram() of this host returned');
    return known;
  }
}

/** Whether a stream can write 8 bytes wherever a kernel finds a multiple of 8. */
function takesWords({ ipc }: DescRange): boolean {
  return ipc !== undefined && ipc.offset % 8 === 0;
}
