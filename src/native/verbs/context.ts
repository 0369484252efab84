// An open RDMA device: what it offers, and everything that is made from it, which ends with it.
import { Block } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { localFiles } from '../file-probe.ts';
import { functionAt, NativeBlock, nativeError, type NativeFunction, viewAt } from '../library.ts';
import { doNotBlock } from '../readiness.ts';
import {
  asyncEvents,
  ibvAsyncEvent,
  ibvContext,
  ibvDevice,
  ibvDeviceAttributes,
  ibvGidEntry,
  ibvPortAttributes,
  ibvQp,
  verbsContext,
} from './c-structs.ts';
import {
  type DeviceAttributes,
  deviceAttributesOf,
  type GidEntry,
  gidOf,
  type PortAttributes,
  portAttributesOf,
  refusalOf,
} from './facts.ts';
import { openVerbs, type VerbsCalls } from './library.ts';

// Asynchronous events of a device: ports that come and go, queues that fail, the device itself.

export interface VerbsEvent {
  /** IBV_EVENT_PORT_ERR and so on. */
  readonly name: string;
  /** What it means, with the port or queue pair that it is about. */
  readonly meaning: string;
  /** The port, of events about a port. */
  readonly port?: number;
  /** The number of the queue pair, of events about one. */
  readonly queuePair?: number;
}

export class AsyncEvents {
  /** Readable when there is an event. */
  readonly descriptor: number;
  readonly #context: VerbsContext;
  readonly #memory = new NativeBlock(ibvAsyncEvent.size);
  readonly #block = Block.over(ibvAsyncEvent, this.#memory.bytes);

  /** One per context: an event is told once. */
  constructor(context: VerbsContext) {
    context.requireOpen();
    this.#context = context;
    this.descriptor = context.asyncDescriptor;
    doNotBlock(this.descriptor);
  }

  /** The next event, or undefined if there is none now. Does not wait. */
  take(): VerbsEvent | undefined {
    const { calls, address, device } = this.#context;
    this.#context.requireOpen();
    if (calls.ibv_get_async_event(address, this.#memory.address) !== 0) return undefined;
    try {
      return eventOf(device, this.#block.get('type'), this.#block.get('element'));
    } finally {
      // Queues cannot be closed before their events were acknowledged.
      calls.ibv_ack_async_event(this.#memory.address);
    }
  }
}

/** `element`: a port, or the address of an object that exists until the event is acknowledged. */
function eventOf(device: string, type: number, element: number): VerbsEvent {
  const [name, words, about] = asyncEvents[type] ?? [
    `ibv_event_type ${type}`,
    'an event that weftline does not know',
    '',
  ];
  if (about === 'port') {
    // The cell is as wide as an address, of which the port fills the low half.
    const port = element % 2 ** 32;
    return { name, meaning: `${device} port ${port}: ${words}`, port };
  }
  if (about !== 'qp') return { name, meaning: `${device}: ${words}` };
  const queuePair = new Block(ibvQp, viewAt(element, ibvQp.size), 0).get('number');
  return { name, meaning: `${device} queue pair ${queuePair}: ${words}`, queuePair };
}

// Protection domains: queue pairs reach only memory regions of their own domain.

export class ProtectionDomain implements Disposable {
  readonly context: VerbsContext;
  readonly address: number;
  #isClosed = false;

  constructor(context: VerbsContext) {
    context.requireOpen();
    this.context = context;
    const { attributes, counts, device } = context;
    this.address = context.calls.ibv_alloc_pd(context.address);
    if (this.address < 0) {
      const request = { device, attributes, limit: 'maxPd', held: counts.domains, bytes: 0 } as const;
      throw refusalOf(
        { call: 'ibv_alloc_pd', what: 'making a protection domain', ...request },
        this.address,
        localFiles(),
      );
    }
    counts.domains += 1;
    context.adopt(this);
  }

  /** Must be closed after what was made in it; otherwise it fails and the domain stays. */
  close(): void {
    if (this.#isClosed) return;
    const status = this.context.calls.ibv_dealloc_pd(this.address);
    if (status !== 0) throw nativeError('ibv_dealloc_pd', 'closing a protection domain', -status);
    this.#isClosed = true;
    this.context.counts.domains -= 1;
    this.context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

// The RDMA devices that libibverbs finds on this machine.

const ENOSYS = 38;
const ENOENT = 2;
const MAX_DEVICES = 1024;

/**
 * Names of the devices in the library's order. None is an empty list, as on a machine without the kernel's part.
 * Fails with WL_UNSUPPORTED without libibverbs.
 */
export function verbsDeviceNames(): readonly string[] {
  return withDevices((devices) => devices.map(({ name }) => name));
}

/** The context (ibv_context) of a device. Fails with WL_UNSUPPORTED if there is no such device. */
function openVerbsDevice(name: string): number {
  return withDevices((devices) => {
    const device = devices.find((each) => each.name === name);
    if (device === undefined) {
      const there = devices.map((each) => each.name).join(', ') || 'none, or none that this process may use';
      throw new WeftlineError('WL_UNSUPPORTED', `There is no RDMA device ${name} on this machine: it has ${there}`, {
        details: { device: name },
      });
    }
    const context = openVerbs().calls.ibv_open_device(device.address);
    if (context < 0) {
      throw nativeError(
        'ibv_open_device',
        `opening the RDMA device ${name}; may this user open /dev/infiniband?`,
        context,
      );
    }
    return context;
  });
}

interface Device {
  readonly name: string;
  readonly address: number;
}

/** Addresses of devices hold while the list does; contexts outlive it. */
function withDevices<T>(use: (devices: readonly Device[]) => T): T {
  const { calls } = openVerbs();
  const count = new NativeBlock(4);
  const list = calls.ibv_get_device_list(count.address);
  // There is no list, or the errno says that there is no such thing, if the kernel's part is missing.
  if (list === -ENOSYS || list === -ENOENT) return use([]);
  if (list < 0) throw nativeError('ibv_get_device_list', 'listing the RDMA devices', list);
  try {
    const devices = Math.min(count.words[0]!, MAX_DEVICES);
    if (devices === 0) return use([]);
    const addresses = new BigUint64Array(viewAt(list, devices * 8));
    return use(Array.from(addresses, (address) => ({ name: nameOf(Number(address)), address: Number(address) })));
  } finally {
    calls.ibv_free_device_list(list);
  }
}

function nameOf(device: number): string {
  const bytes = new Uint8Array(viewAt(device + ibvDevice.offset.name, 64));
  return Buffer.from(bytes.subarray(0, bytes.indexOf(0))).toString('latin1');
}

/** Calls of the hot paths, which are function pointers of the context. Each returns 0 or an errno, polling a count. */
export interface VerbsOperations {
  /** (queue, most, ibv_wc array): how many were taken, or a negative number. */
  readonly pollCompletions: (queue: number, most: number, into: number) => number;
  /** (queue, only those of solicited requests): rings the channel at the next completion. */
  readonly requestNotification: (queue: number, solicitedOnly: number) => number;
  /** (queue pair, first request, where to write the address of the first that was refused) */
  readonly postSend: (queuePair: number, first: number, refused: number) => number;
  readonly postReceive: (queuePair: number, first: number, refused: number) => number;
  readonly postSharedReceive: (queue: number, first: number, refused: number) => number;
}

/** What is made from a context and is closed with it at the latest. */
interface VerbsResource {
  close(): void;
}

/** How many objects of a kind this process has of the device. */
type ResourceCounts = Record<'queuePairs' | 'completionQueues' | 'regions' | 'domains' | 'sharedQueues', number>;

export class VerbsContext implements Disposable {
  readonly device: string;
  readonly address: number;
  readonly calls: VerbsCalls;
  readonly operations: VerbsOperations;
  readonly attributes: DeviceAttributes;
  readonly counts: ResourceCounts = { queuePairs: 0, completionQueues: 0, regions: 0, domains: 0, sharedQueues: 0 };
  /** Readable when there is an asynchronous event. */
  readonly asyncDescriptor: number;
  readonly #fields: Block<keyof typeof ibvContext.offset>;
  readonly #extension: Block<keyof typeof verbsContext.offset> | undefined;
  readonly #resources: VerbsResource[] = [];
  #isClosed = false;

  private constructor(device: string, address: number) {
    this.device = device;
    this.address = address;
    this.calls = openVerbs().calls;
    this.#fields = new Block(ibvContext, viewAt(address, ibvContext.size), 0);
    this.asyncDescriptor = this.#fields.get('asyncDescriptor');
    this.#extension = extensionOf(address, this.#fields);
    this.operations = operationsOf(this.#fields);
    this.attributes = this.#readAttributes();
  }

  /**
   * Opens a device by its name, such as mlx5_0. Fails with WL_UNSUPPORTED without libibverbs or without such a device, and
   * with WL_NATIVE if it cannot be opened.
   */
  static open(device: string): VerbsContext {
    const address = openVerbsDevice(device);
    try {
      return new VerbsContext(device, address);
    } catch (error) {
      openVerbs().calls.ibv_close_device(address);
      throw error;
    }
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Port numbers begin at 1. */
  queryPort(port: number): PortAttributes {
    this.requireOpen();
    const block = new NativeBlock(ibvPortAttributes.size);
    const what = `reading port ${port} of ${this.device}`;
    // The exported function fills the fields of old versions only; libibverbs' header calls this one where it exists.
    const full = this.#extension?.get('queryPort') ?? 0;
    const status: number =
      full === 0
        ? this.calls.ibv_query_port(this.address, port, block.address)
        : (functionAt(full, 'int ibv_query_port_full(intptr_t, uint8_t, intptr_t, size_t)')(
            this.address,
            port,
            block.address,
            ibvPortAttributes.size,
          ) as number);
    if (status !== 0) throw nativeError('ibv_query_port', what, -Math.abs(status));
    return portAttributesOf(Block.over(ibvPortAttributes, block.bytes));
  }

  /** The addresses of all ports. */
  queryGids(): readonly GidEntry[] {
    this.requireOpen();
    let room = 0;
    for (let port = 1; port <= this.attributes.physPortCnt; port += 1) room += this.queryPort(port).gidTblLen;
    if (room === 0) return [];
    const block = new NativeBlock(room * ibvGidEntry.size);
    const count = this.calls.ibv_query_gid_table(this.address, block.address, room, 0, ibvGidEntry.size);
    if (count < 0) throw nativeError('ibv_query_gid_table', `reading the GIDs of ${this.device}`, count);
    return Array.from({ length: count }, (_, index) =>
      gidOf(Block.over(ibvGidEntry, block.bytes.subarray(index * ibvGidEntry.size))),
    );
  }

  /** Takes in what is made from this context. */
  adopt(resource: VerbsResource): void {
    this.#resources.push(resource);
  }

  release(resource: VerbsResource): void {
    const at = this.#resources.lastIndexOf(resource);
    if (at !== -1) this.#resources.splice(at, 1);
  }

  /** Fails with WL_CLOSED after close(). */
  requireOpen(): void {
    if (this.#isClosed)
      throw new WeftlineError('WL_CLOSED', `The RDMA device ${this.device} was closed by this process`);
  }

  /** Closes all that was made from it, the newest first, then the device. */
  close(): void {
    if (this.#isClosed) return;
    for (const resource of this.#resources.toReversed()) resource.close();
    this.#isClosed = true;
    const status = this.calls.ibv_close_device(this.address);
    if (status < 0) throw nativeError('ibv_close_device', `closing ${this.device}`, status);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #readAttributes(): DeviceAttributes {
    const block = new NativeBlock(ibvDeviceAttributes.size);
    const status = this.calls.ibv_query_device(this.address, block.address);
    if (status !== 0) throw nativeError('ibv_query_device', `reading what ${this.device} offers`, -Math.abs(status));
    return deviceAttributesOf(Block.over(ibvDeviceAttributes, block.bytes));
  }
}

/**
 * What lies in front of the context since rdma-core 14. Fails with WL_UNSUPPORTED for older ones, whose structures differ.
 * Of newer ones only those members are read that their size includes.
 */
function extensionOf(
  address: number,
  fields: Block<keyof typeof ibvContext.offset>,
): Block<keyof typeof verbsContext.offset> | undefined {
  const isExtended = [0, 1].every((word) => fields.get('abiCompatibility', word) === 0xffff_ffff);
  if (!isExtended) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `${openVerbs().path} has the interface of rdma-core before version 14, whose structures weftline does not know`,
    );
  }
  const extension = new Block(verbsContext, viewAt(address - verbsContext.size, verbsContext.size), 0);
  // It begins where its own size says that it does; otherwise something else lies there.
  return extension.get('bytes') >= verbsContext.size + ibvContext.size ? extension : undefined;
}

function operationsOf(fields: Block<keyof typeof ibvContext.offset>): VerbsOperations {
  const bind = (field: keyof typeof ibvContext.offset, text: string): NativeFunction =>
    functionAt(fields.get(field), text);
  const post = 'int f(intptr_t, intptr_t, intptr_t)';
  return {
    pollCompletions: bind('pollCq', 'int ibv_poll_cq(intptr_t, int, intptr_t)'),
    requestNotification: bind('requestNotifyCq', 'int ibv_req_notify_cq(intptr_t, int)'),
    postSend: bind('postSend', post.replace('f', 'ibv_post_send')),
    postReceive: bind('postReceive', post.replace('f', 'ibv_post_recv')),
    postSharedReceive: bind('postSrqReceive', post.replace('f', 'ibv_post_srq_recv')),
  };
}
