// The agent's backend over RDMA queue pairs (RC), driven by libibverbs.
import { AsyncEvents, ProtectionDomain, VerbsContext } from '../../../native/verbs/context.ts';
import { CompletionChannel } from '../../../native/verbs/completion-queue.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { VerbsPath } from '../../../native/verbs/queue-pair.ts';
import type { RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { Backend, BackendContext } from '../../backend.ts';
import { openRdmaBackend } from '../../rdma/rdma-backend.ts';
import type { EndOptions, OwnMemory, RdmaDevice, RdmaEnd, RemoteKeys } from '../../rdma/rdma-device.ts';
import { choosePort } from '../../rdma/rdma-port.ts';
import { CompletionPool, type EndDevice, type PortAddress, QueuePairEnd } from './queue-pair-end.ts';

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

class VerbsDevice implements RdmaDevice, EndDevice {
  readonly rail: RdmaRail;
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  readonly completions: CompletionPool;
  readonly events: AsyncEvents;
  readonly port: PortAddress;
  readonly hasAtomics: boolean;
  readonly chunkBytes: number;
  readonly #channel: CompletionChannel;
  readonly #trafficClass: number;

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
      this.port = { gid: rail.gid.gid.replaceAll(':', ''), lid, linkLayer, mtuBytes: activeMtuBytes, name };
      this.hasAtomics = this.context.attributes.atomicCap !== 'none';
      this.chunkBytes = Math.min(MAX_CHUNK_BYTES, maxMsgSz);
      this.#trafficClass = settings.rdmaTrafficClass;
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

  get channelAddress(): number {
    return this.#channel.address;
  }

  takeChannelEvents(): void {
    this.#channel.takeEvents();
  }

  /** Relaxed ordering stays off, whatever the setting: receivers of signals look at memory, not at completions. */
  register({ address, bytes, isOffered }: Parameters<RdmaDevice['register']>[0]): OwnMemory {
    const access = { remoteWrite: true, remoteRead: isOffered, remoteAtomic: isOffered && this.hasAtomics };
    const region = MemoryRegion.host(this.domain, address, bytes, access);
    const remoteKey = new Uint8Array(KEY_BYTES);
    new DataView(remoteKey.buffer).setUint32(0, region.remoteKey, true);
    return { localKey: region.localKey, remoteKey, close: () => region.close() };
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
    return { port, gidIndex: own.index, remoteGid, remoteLid: lid, trafficClass: this.#trafficClass };
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
