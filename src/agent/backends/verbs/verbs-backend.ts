// The agent's backend over RDMA queue pairs (RC), driven by libibverbs.
import { randomInt } from 'node:crypto';
import { closeSync } from 'node:fs';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { completionOpcode, completionStatus } from '../../../native/verbs/c-structs.ts';
import { CompletionChannel, CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import { AsyncEvents, ProtectionDomain, VerbsContext } from '../../../native/verbs/context.ts';
import { requireWithin } from '../../../native/verbs/facts.ts';
import type { GpuMemoryChoice } from '../../../native/verbs/gpu-memory.ts';
import { MemoryRegion, type RegionAccess } from '../../../native/verbs/memory-region.ts';
import { QueuePair, type VerbsPath } from '../../../native/verbs/queue-pair.ts';
import type { SendRing } from '../../../native/verbs/request-ring.ts';
import type { RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { AgentMemory, Backend, BackendContext } from '../../backend.ts';
import { gpuMemoryBy } from '../../rdma/gpu-reach.ts';
import { openRdmaBackend } from '../../rdma/rdma-backend.ts';
import {
  choosePort,
  type Completions,
  type EndFailure,
  type EndOptions,
  type EndUser,
  type OwnMemory,
  type RdmaDevice,
  type RdmaEnd,
  type RdmaMemory,
  type RemoteKeys,
  whyNotPort,
} from '../../rdma/rdma-device.ts';

const MAX_PORT_NAME_LENGTH = 100;
const SEQUENCES = 2 ** 24;
/** 268 ms: seven tries in vain, two seconds on most devices, tell that a peer is gone. Its process is known to be sooner. */
const TIMEOUT = 16;
/** Looks that take in all completions which a queue can hold. */
const MAX_LOOKS = 256;

const wholeBelow = (end: number): z.ZodNumber => z.number().int().nonnegative().lt(end);
/** What a peer must know of a queue pair to connect its own to it. `firstSequence`: of the packets that it sends. */
const addressSchema = z.object({
  gid: z.string().regex(/^[0-9a-f]{32}$/),
  lid: wholeBelow(2 ** 16),
  linkLayer: z.string().max(MAX_PORT_NAME_LENGTH),
  mtuBytes: z.union([z.literal(256), z.literal(512), z.literal(1024), z.literal(2048), z.literal(4096)]),
  name: z.string().max(MAX_PORT_NAME_LENGTH),
  queuePair: wholeBelow(SEQUENCES),
  firstSequence: wholeBelow(SEQUENCES),
});

type EndAddress = z.infer<typeof addressSchema>;

/** How a port is named to peers; the name is for errors: "rxe0 port 1". */
type PortAddress = Omit<EndAddress, 'queuePair' | 'firstSequence'>;

/** One end of a connection: a queue pair of the backend's port, and its place for completions. */
class QueuePairEnd implements RdmaEnd {
  readonly address: EndAddress;
  /** It gets through once it is connected. */
  readonly isReady = true;
  route = '';
  readonly #queuePair: QueuePair;
  readonly #device: VerbsDevice;
  readonly #peer: string;
  readonly #shared: SharedQueue;
  readonly #entries: number;
  #user: EndUser | undefined;
  #hasFailed = false;
  #isClosed = false;

  /** Fails with WL_CAPACITY where a limit of the device is reached. */
  constructor(device: VerbsDevice, { peer, role, maxSends, maxReceives }: EndOptions) {
    this.#device = device;
    this.#peer = peer;
    this.#entries = maxSends + maxReceives;
    this.#shared = device.completions.reserve(this.#entries);
    const { queue } = this.#shared;
    try {
      this.#queuePair = new QueuePair(device.domain, {
        service: 'rc',
        sendCompletions: queue,
        receiveCompletions: queue,
        maxSends,
        maxReceives,
      });
    } catch (error) {
      this.#shared.used -= this.#entries;
      throw error;
    }
    try {
      const isCalled = role === 'called';
      const remoteAtomic = isCalled && device.hasAtomics;
      this.#queuePair.initialize(device.rail.port, { remoteWrite: true, remoteRead: isCalled, remoteAtomic });
      if (isCalled) this.replenish();
    } catch (error) {
      this.close();
      throw error;
    }
    const firstSequence = randomInt(SEQUENCES);
    this.address = { ...device.port, queuePair: this.#queuePair.number, firstSequence };
  }

  get sends(): SendRing {
    return this.#queuePair.sends;
  }

  use(user: EndUser): void {
    this.#user = user;
    this.#device.completions.enter(this.#queuePair.number, this);
  }

  connect(said: unknown): void {
    const { data: remote } = addressSchema.safeParse(said);
    if (remote === undefined) throw protocolError('an address of a queue pair that is none');
    const { address } = this;
    const why = whyNotPort(address, remote);
    if (why !== undefined) {
      const message = `Cannot connect to ${this.#peer} by RDMA: ${why}`;
      throw new WeftlineError('WL_UNSUPPORTED', message, { details: { peer: this.#peer } });
    }
    this.route = `${describePort(address)} to ${describePort(remote)}`;
    const path = this.#device.pathTo(remote);
    const { queuePair: number, firstSequence } = remote;
    this.#queuePair.connect(
      { number, firstSequence, path },
      { firstSequence: address.firstSequence, mtu: Math.min(address.mtuBytes, remote.mtuBytes), timeout: TIMEOUT },
    );
  }

  /** Hot path. `index`: of the queue's last poll. */
  complete(queue: CompletionQueue, index: number): void {
    const user = this.#user;
    if (this.#hasFailed || user === undefined) return;
    if (!queue.isSuccess(index)) {
      this.#hasFailed = true;
      user.failed(this.#failureAt(queue, index));
    } else if (queue.opcodeAt(index) === completionOpcode.receiveWriteWithImmediate) {
      this.#queuePair.receives.done();
      user.received(queue.immediateAt(index));
    } else user.done(queue.sequenceAt(index));
  }

  replenish(): void {
    const { receives } = this.#queuePair;
    while (receives.start(0));
    if (receives.unposted > 0) receives.post();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const { completions } = this.#device;
    try {
      // What came before counts, however much it is.
      this.#drain();
      // What is under way then completes as flushed and is taken in, before another queue pair may get this number.
      this.#queuePair.fail();
      this.#drain();
    } catch {
      // A device that is gone; closing tells.
    }
    completions.leave(this.#queuePair.number);
    this.#shared.used -= this.#entries;
    this.#queuePair.close();
  }

  #failureAt(queue: CompletionQueue, index: number): EndFailure {
    const status = queue.statusAt(index);
    const error = queue.errorAt(index, `A request to ${this.#peer} (${this.route})`);
    return { kind: kindOf(status), sequence: queue.sequenceAt(index), tag: queue.tagAt(index), error };
  }

  /** One look takes a part of what waits; other queue pairs of the queue may go on meanwhile. */
  #drain(): void {
    const { completions } = this.#device;
    for (let look = 0; look < MAX_LOOKS && completions.poll(); look++);
  }
}

function kindOf(status: number): EndFailure['kind'] {
  if (status === completionStatus.remoteAccess) return 'access';
  if (status === completionStatus.retriesExceeded) return 'unanswered';
  return status === completionStatus.flushed ? 'flushed' : 'other';
}

/** The port in errors: "rxe0 port 1 (::ffff:10.77.0.1)". */
function describePort({ name, gid }: Pick<PortAddress, 'name' | 'gid'>): string {
  const groups = gid.replaceAll(/(....)(?!$)/g, '$1:');
  return `${name} (GID ${groups})`;
}

// Completion queues that the queue pairs of a backend share, as many as they need, so that one call polls for many of them.

interface SharedQueue {
  readonly queue: CompletionQueue;
  /** Entries that queue pairs have reserved; who reserves them gives them back. */
  used: number;
}

/** Entries of one queue: with 64 bytes each, a MiB. */
const ENTRIES = 16_384;
const POLL_BATCH = 16;
/** Batches of one look at most, so that a busy queue does not hold up the others. */
const MAX_BATCHES = 8;

export class CompletionPool implements Completions {
  readonly #context: VerbsContext;
  readonly #channel: CompletionChannel;
  readonly #queues: SharedQueue[] = [];
  /** Takers by number of the queue pair. */
  readonly #takers = new Map<number, QueuePairEnd>();

  constructor(context: VerbsContext, channel: CompletionChannel) {
    this.#context = context;
    this.#channel = channel;
  }

  /** Room for so many completions of a queue pair. Fails with WL_CAPACITY. */
  reserve(entries: number): SharedQueue {
    const { attributes, device } = this.#context;
    const most = Math.min(ENTRIES, attributes.maxCqe);
    requireWithin(device, 'entries in a completion queue', entries, ['max_cqe', most]);
    let shared = this.#queues.find(({ used }) => used + entries <= most);
    if (shared === undefined) {
      shared = { queue: new CompletionQueue(this.#context, most, this.#channel), used: 0 };
      this.#queues.push(shared);
    }
    shared.used += entries;
    return shared;
  }

  /** Hands completions to the taker from now on. */
  enter(queuePair: number, taker: QueuePairEnd): void {
    this.#takers.set(queuePair, taker);
  }

  /** The queue pair is about to be closed. */
  leave(queuePair: number): void {
    this.#takers.delete(queuePair);
  }

  get isInUse(): boolean {
    return this.#takers.size > 0;
  }

  /** Hot path. Hands over what has completed. True if anything has. */
  poll(): boolean {
    let hasNews = false;
    for (let at = 0; at < this.#queues.length; at++) {
      const { queue } = this.#queues[at]!;
      for (let batch = 0; batch < MAX_BATCHES; batch++) {
        const count = queue.poll();
        for (let index = 0; index < count; index++) this.#takers.get(queue.queuePairAt(index))?.complete(queue, index);
        if (count > 0) hasNews = true;
        if (count < POLL_BATCH) break;
      }
    }
    return hasNews;
  }

  /** The channel hears of all completions. */
  get isBusy(): boolean {
    return false;
  }

  /** The next completion makes the channel readable. Poll once more before sleeping. */
  arm(): boolean {
    for (const { queue } of this.#queues) queue.arm();
    return true;
  }
}

// What is made of a port for all links of a backend: protection domain, completion queues, events.

/** A single request may be longer nowhere; smaller ones let other transfers in, and the ends of cancelled ones come sooner. */
const MAX_CHUNK_BYTES = 1 << 20;
const KEY_BYTES = 4;

/** The key of a region is all that a request needs of it. */
const keys: RemoteKeys = {
  add: (key) => (key.length === KEY_BYTES ? new DataView(key.buffer, key.byteOffset).getUint32(0, true) : undefined),
  remove: () => {},
  namesOf: () => new Map(),
};

class VerbsDevice implements RdmaDevice {
  readonly rail: RdmaRail;
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  readonly completions: CompletionPool;
  readonly events: AsyncEvents;
  readonly port: PortAddress;
  readonly hasAtomics: boolean;
  readonly chunkBytes: number;
  readonly #channel: CompletionChannel;
  readonly #settings: Settings;
  /** How the device reaches memory of each GPU, by ordinal. */
  readonly #gpuMemory = new Map<number, GpuMemoryChoice>();

  constructor(rail: RdmaRail, settings: Settings) {
    this.rail = rail;
    this.context = VerbsContext.open(rail.name);
    try {
      const { lid, linkLayer, activeMtuBytes, maxMsgSz } = this.context.queryPort(rail.port);
      this.domain = new ProtectionDomain(this.context);
      this.#channel = new CompletionChannel(this.context);
      this.completions = new CompletionPool(this.context, this.#channel);
      this.events = new AsyncEvents(this.context);
      const name = `${rail.name} port ${rail.port}`;
      this.port = { gid: rail.gid.gid.replaceAll(':', ''), lid, linkLayer, mtuBytes: activeMtuBytes as 256, name };
      this.hasAtomics = this.context.attributes.atomicCap !== 'none';
      this.chunkBytes = Math.min(MAX_CHUNK_BYTES, maxMsgSz);
      this.#settings = settings;
    } catch (error) {
      this.context.close();
      throw error;
    }
  }

  get portNumber(): number {
    return this.rail.port;
  }

  get descriptors(): readonly number[] {
    return [this.#channel.descriptor];
  }

  takeChannelEvents(): void {
    this.#channel.takeEvents();
  }

  gpuMemory({ device }: Pick<AgentMemory, 'device'>): GpuMemoryChoice {
    if (!(device instanceof CudaDevice)) {
      return { way: 'pinned', reason: 'it is no memory of a CUDA device of this package', flush: 'none' };
    }
    const { ordinal } = device.context;
    const choice = this.#gpuMemory.get(ordinal) ?? gpuMemoryBy(this, device, this.#settings);
    this.#gpuMemory.set(ordinal, choice);
    return choice;
  }

  /** Relaxed ordering stays off, whatever the setting: receivers of signals look at memory, not at completions. */
  register(memory: RdmaMemory): OwnMemory {
    const access = {
      remoteWrite: true,
      remoteRead: memory.isOffered,
      remoteAtomic: memory.isOffered && this.hasAtomics,
    };
    const region = this.#registerRegion(memory, access);
    const remoteKey = new Uint8Array(KEY_BYTES);
    new DataView(remoteKey.buffer).setUint32(0, region.remoteKey, true);
    return { localKey: region.localKey, remoteKey, close: () => region.close() };
  }

  #registerRegion({ address, bytes, device }: RdmaMemory, access: RegionAccess): MemoryRegion {
    // What peermem translates is registered as memory of the host is.
    if (!(device instanceof CudaDevice) || this.gpuMemory({ device }).way !== 'dmabuf') {
      return MemoryRegion.host(this.domain, address, bytes, access);
    }
    const { descriptor, offset } = device.exportDmabuf(address, bytes);
    try {
      return MemoryRegion.dmabuf(this.domain, { descriptor, offset, bytes, address }, access);
    } finally {
      // The region holds what the descriptor names.
      closeSync(descriptor);
    }
  }

  /** Peers know by themselves which of their requests was refused. */
  isRegistered(): boolean {
    return true;
  }

  openKeys(): RemoteKeys {
    return keys;
  }

  openEnd(options: EndOptions): RdmaEnd {
    return new QueuePairEnd(this, options);
  }

  pathTo({ gid, lid }: PortAddress): VerbsPath {
    const { port, gid: own } = this.rail;
    const remoteGid = Buffer.from(gid, 'hex');
    return { port, gidIndex: own.index, remoteGid, remoteLid: lid, trafficClass: this.#settings.rdmaTrafficClass };
  }

  /** Closes all that was made of the device: afterwards it touches no memory of this process. */
  [Symbol.dispose](): void {
    this.context.close();
  }
}

/**
 * Fails with WL_UNSUPPORTED without libibverbs or a port that can be used, with WL_CONFIG for settings that name what this
 * host does not have.
 */
export async function createBackend(context: BackendContext): Promise<Backend<'verbs'>> {
  const { rail, controlHost = context.host } = choosePort(context.settings);
  const device = new VerbsDevice(rail, context.settings);
  return openRdmaBackend(context, { name: 'verbs', device, host: controlHost });
}
