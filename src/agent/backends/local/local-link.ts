// The way to one peer of this host: its regions, the transfers that are under way, whether it still lives.
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { Storage } from '../../../device/tensor.ts';
import { SharedMemory } from '../../../memory/shared-memory.ts';
import type { MemoryKind } from '../../agent-memory.ts';
import type { BackendChannel, BackendLink, BackendTransfer, TransferOperation, TransferPart } from '../../backend.ts';
import { LocalChannel } from './local-channel.ts';
import { LocalTransfer } from './local-transfer.ts';
import { MAX_NOTIFICATION_BYTES } from './notification-ring.ts';
import type { PeerMailbox } from './peer-mailbox.ts';
import { type LinkedMemory, planCopies } from './plan-copies.ts';
import { type LocalRemoteRegion, readRegionInfo, type RegionReach, type SharedPlace } from './remote-region.ts';

export interface LocalLinkOptions {
  readonly peerName: string;
  readonly pid: number;
  readonly mailbox: PeerMailbox;
  /** Why other memory of the peer's process cannot be copied; undefined if it can. */
  readonly whyNotProcess: string | undefined;
  /** A GPU whose memory is registered here, if there is one. */
  readonly someDevice: () => CudaDevice | undefined;
  /** Called when a transfer begins to be pending. */
  readonly onWork: () => void;
  readonly onClose: (link: LocalLink) => void;
}

export class LocalLink implements BackendLink, LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  readonly #options: LocalLinkOptions;
  readonly #mailbox: PeerMailbox;
  readonly #files = new Map<number, SharedMemory>();
  readonly #allocations = new Map<string, Storage>();
  readonly #channels = new Set<LocalChannel>();
  readonly #streams = new Map<CudaDevice, CudaStream>();
  #first: LocalTransfer | undefined;
  #last: LocalTransfer | undefined;
  /** Bytes of the peer's ring that messages of pending transfers will take. */
  #promised = 0;
  #error: WeftlineError | undefined;
  #isClosed = false;

  constructor(options: LocalLinkOptions) {
    this.peerName = options.peerName;
    this.pid = options.pid;
    this.#mailbox = options.mailbox;
    this.#options = options;
  }

  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** True if no transfer is under way. */
  get isQuiet(): boolean {
    return this.#first === undefined;
  }

  importRegion(info: Uint8Array, about: { readonly kind: MemoryKind; readonly bytes: number }): LocalRemoteRegion {
    this.requireUsable();
    const region = readRegionInfo(info, about, (place) => this.#map(place));
    const { whyNotProcess } = this.#options;
    if (region.reach.kind !== 'process' || whyNotProcess === undefined) return region;
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `The memory that ${this.peerName} registered cannot be reached: ${whyNotProcess}. Take memory from agent.allocate() there, or another backend`,
      { details: { peer: this.peerName } },
    );
  }

  async prepare(operation: TransferOperation, parts: readonly TransferPart[]): Promise<BackendTransfer> {
    this.requireUsable();
    return new LocalTransfer(this, planCopies(this, operation, parts));
  }

  notify(message: Uint8Array): void {
    this.requireUsable();
    this.requireRoom(message.length);
    this.push(message);
  }

  openChannel(): BackendChannel {
    this.requireUsable();
    const channel = new LocalChannel(this);
    this.#channels.add(channel);
    return channel;
  }

  // Of the transfers.

  requireUsable(): void {
    if (this.#error !== undefined) throw this.#error;
  }

  /** Hot path. Why the peer does not let this side touch the region. */
  refusal(region: LocalRemoteRegion): WeftlineError | undefined {
    if (this.#mailbox.holds(region.slot, region.key)) return undefined;
    return new WeftlineError(
      'WL_UNAUTHORIZED',
      `${this.peerName} has not registered that region, or no longer: the key is wrong`,
      { details: { peer: this.peerName, slot: region.slot } },
    );
  }

  /** The peer was found dead. */
  lose(error: WeftlineError): void {
    this.#fail(error);
  }

  /** Fails with WL_CAPACITY if a message of that length cannot be written now. */
  requireRoom(bytes: number): void {
    if (bytes <= MAX_NOTIFICATION_BYTES && this.#mailbox.hasRoom(this.#promised + bytes)) return;
    throw new WeftlineError(
      'WL_CAPACITY',
      bytes > MAX_NOTIFICATION_BYTES
        ? `A notification of ${bytes} bytes is too long: at most ${MAX_NOTIFICATION_BYTES}`
        : `${this.peerName} has not taken earlier notifications yet: it must wait for them, or poll`,
      { details: { peer: this.peerName, bytes, allowed: MAX_NOTIFICATION_BYTES } },
    );
  }

  push(message: Uint8Array): boolean {
    return this.#mailbox.push(message);
  }

  enqueue(transfer: LocalTransfer): void {
    transfer.next = undefined;
    if (this.#last === undefined) this.#first = transfer;
    else this.#last.next = transfer;
    this.#last = transfer;
    this.#promised += transfer.recordBytes;
    this.#options.onWork();
  }

  /** Lets pending transfers go on, in the order of their posts. True if one ended. */
  advance(budget: number): boolean {
    let any = false;
    for (let first = this.#first; first?.advance(budget) === true; first = this.#first) {
      any = true;
      // A transfer that finds the peer dead ends them all.
      if (this.#first !== first) break;
      this.#first = first.next;
      this.#promised -= first.recordBytes;
      if (this.#first === undefined) this.#last = undefined;
    }
    return any;
  }

  /** Enqueues what channels hold. True if one delivered something. */
  lookAtChannels(): boolean {
    let any = false;
    for (const channel of this.#channels) any = channel.look() || any;
    return any;
  }

  /** Looks whether the peer still lives. True if that changed. */
  checkPeer(): boolean {
    if (this.#error !== undefined) return false;
    const state = this.#mailbox.ownerState;
    if (state === 'open') return false;
    const details = { peer: this.peerName, pid: this.pid };
    this.#fail(
      state === 'closed'
        ? new WeftlineError('WL_PEER_LOST', `${this.peerName} closed its agent`, { details })
        : new WeftlineError('WL_PEER_LOST', `${this.peerName} is gone: its process ${this.pid} ended`, {
            details: { ...details, hasDied: true },
          }),
    );
    return true;
  }

  // What transfers touch.

  /** GPU memory of the peer at an address of the device. */
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number {
    if (this.pid === process.pid) return reach.base + reach.offset;
    const key = `${device.context.ordinal} ${reach.handle}`;
    let storage = this.#allocations.get(key);
    if (storage === undefined) {
      storage = device.openPeerMemory(reach.handle, reach.mappedBytes);
      this.#allocations.set(key, storage);
    }
    return storage.address + reach.offset;
  }

  /** A GPU from whose memory the channels may signal. */
  get someDevice(): CudaDevice | undefined {
    return this.#options.someDevice();
  }

  forget(channel: LocalChannel): void {
    this.#channels.delete(channel);
  }

  stream(device: CudaDevice): CudaStream {
    let stream = this.#streams.get(device);
    if (stream === undefined) {
      stream = device.createStream();
      this.#streams.set(device, stream);
    }
    return stream;
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#fail(new WeftlineError('WL_CLOSED', `The link to ${this.peerName} was closed`));
    this.#options.onClose(this);
    this.#mailbox[Symbol.dispose]();
    // A copy that is running must end before its memory goes.
    for (const channel of this.#channels) await channel.close();
    for (const stream of this.#streams.values()) await stream.idle().catch(() => undefined);
    for (const stream of this.#streams.values()) stream[Symbol.dispose]();
    for (const storage of this.#allocations.values()) storage[Symbol.dispose]();
    for (const file of this.#files.values()) file[Symbol.dispose]();
  }

  #map({ offset, ...place }: SharedPlace): number {
    let file = this.#files.get(place.inode);
    if (file === undefined) {
      file = SharedMemory.open({ pid: this.pid, ...place }, this.peerName);
      this.#files.set(place.inode, file);
    }
    return file.address + offset;
  }

  #fail(error: WeftlineError): void {
    this.#error ??= error;
    for (let transfer = this.#first; transfer !== undefined; transfer = transfer.next) transfer.fail(this.#error);
    this.#first = undefined;
    this.#last = undefined;
    this.#promised = 0;
  }
}
