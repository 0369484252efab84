// The way to one peer of this host: its regions, the transfers that are under way, whether it still lives.
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type {
  BackendChannel,
  BackendLink,
  BackendRemoteRegion,
  BackendTransfer,
  LinkState,
  MemoryKind,
  TransferOperation,
} from '../../backend.ts';
import { untaken } from '../../message-ring.ts';
import { LocalChannel } from './local-channel.ts';
import { type CopyHelp, type LinkedMemory, type LocalPlan, LocalTransfer, planCopies } from './local-transfer.ts';
import { STEP_BYTES } from './copy-lane.ts';
import type { CopyThread } from './copy-thread.ts';
import type { DeviceWork, PeerMailbox, PeerSteps } from './peer-mailbox.ts';
import type { CopyPlan } from './gpu-copies.ts';
import { ImportedMemory, type LocalRegion, type LocalRemoteRegion, type RegionReach } from './local-region.ts';

/** Copying this much takes most of a millisecond; checking whether the peer lives costs nothing beside that. */
const BYTES_PER_LOOK = 16 << 20;

interface LocalLinkOptions {
  readonly peerName: string;
  readonly pid: number;
  readonly mailbox: PeerMailbox;
  /** Why other memory of the peer's process cannot be copied, as of now; undefined if it can. */
  readonly whyNotProcess: () => WeftlineError | undefined;
  /** A GPU whose memory is registered here, if there is one. */
  readonly someDevice: () => CudaDevice | undefined;
  readonly copyThread: () => CopyThread;
  /** Called when a transfer begins to be pending. */
  readonly onWork: () => void;
  /** `closed` resolves when it touches no memory of either side any more. */
  readonly onClose: (closed: Promise<void>) => void;
}

export class LocalLink implements BackendLink, LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  /** Steps of the agent's thread. */
  readonly steps: PeerSteps;
  readonly #options: LocalLinkOptions;
  readonly #mailbox: PeerMailbox;
  readonly #memory: ImportedMemory;
  readonly #channels = new Set<LocalChannel>();
  readonly #streams = new Map<CudaDevice, CudaStream>();
  /** Copies on GPUs of transfers that failed or were cancelled. */
  #draining: CopyPlan[] = [];
  /** Transfers under way, in the order of their posts. */
  #busy: LocalTransfer[] = [];
  #help: CopyHelp | undefined;
  /** Bytes of the peer's ring that messages of pending transfers will take. */
  #promised = 0;
  error: WeftlineError | undefined;
  state: LinkState = 'open';
  #isClosed = false;
  #closing: Promise<void> | undefined;
  #bytesSinceLook = 0;

  constructor(options: LocalLinkOptions) {
    this.peerName = options.peerName;
    this.pid = options.pid;
    this.#mailbox = options.mailbox;
    this.steps = options.mailbox.steps;
    this.#options = options;
    const { pid, peerName } = options;
    this.#memory = new ImportedMemory({
      pid,
      peerName,
      isHeld: (region) => this.steps.holds(region),
      isBusy: (region) => this.#isBusy(region),
      hasChannels: () => this.#channels.size > 0,
    });
  }

  get deviceWork(): DeviceWork {
    return this.#mailbox.deviceWork;
  }

  get isAnswered(): boolean {
    return this.#mailbox.isAdmitted;
  }

  /** True if no transfer is under way. */
  get isQuiet(): boolean {
    return this.#busy.length === 0;
  }

  importRegion(info: Uint8Array, about: { readonly kind: MemoryKind; readonly bytes: number }): LocalRemoteRegion {
    this.requireUsable();
    const region = this.#memory.import(info, about);
    const refusal = region.reach.kind === 'process' ? this.#options.whyNotProcess() : undefined;
    if (refusal === undefined) return region;
    this.#memory.release(region);
    // What is looked for in the peer's process goes with its agent.
    if (this.#mailbox.isClosedByOwner) throw this.#goneError('closed');
    throw refusal;
  }

  releaseRegion(region: BackendRemoteRegion): void {
    this.#memory.release(region as LocalRemoteRegion);
  }

  isWithdrawn(region: BackendRemoteRegion): boolean {
    const known = region as LocalRemoteRegion;
    return known.isReleased || this.#isClosed || !this.steps.holds(known);
  }

  async prepare(operation: TransferOperation, plan: LocalPlan): Promise<BackendTransfer> {
    this.requireUsable();
    for (const { isReleased, reach } of plan.remotes as readonly LocalRemoteRegion[]) {
      // The handle of a released allocation no longer names this memory.
      if (isReleased && reach.kind === 'cuda') throw this.refusal();
    }
    const parts = await planCopies(this, operation, plan);
    // The link may have ended while a kernel was compiled.
    if (this.error !== undefined) parts.plan.close();
    this.requireUsable();
    return new LocalTransfer(this, parts);
  }

  notify(message: Uint8Array): void {
    if (this.#mailbox.isClosedByOwner) this.checkPeer();
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

  // Calls of the transfers.

  /** Hot path. Copies may have gone to the memory of a peer that died meanwhile: why, if that was found. */
  noteCopied(bytes: number): WeftlineError | undefined {
    this.#bytesSinceLook += bytes;
    if (this.#bytesSinceLook < BYTES_PER_LOOK) return undefined;
    this.#bytesSinceLook = 0;
    return this.findDeath();
  }

  /**
   * Why the copied data reached nobody: the peer's process has ended. One that closed its agent may have done so
   * because it had all that it waited for.
   */
  findDeath(): WeftlineError | undefined {
    if (this.#mailbox.ownerState !== 'dead') return undefined;
    this.checkPeer();
    return this.error;
  }

  requireUsable(): void {
    if (this.error !== undefined) throw this.error;
  }

  /** Why the peer does not let this side touch a region. An agent that is closed gives up all of them. */
  refusal(): WeftlineError {
    if (this.#mailbox.isClosedByOwner) return this.#goneError('closed');
    return new WeftlineError(
      'WL_UNAUTHORIZED',
      `${this.peerName} has not registered that memory, or has closed the registration: load its metadata again`,
      { details: { peer: this.peerName } },
    );
  }

  /** A GPU still works on copies whose transfer has ended. */
  drain(plan: CopyPlan): void {
    this.#draining.push(plan);
  }

  /** The peer was found dead. */
  lose(error: WeftlineError): void {
    this.#fail('dead', error);
  }

  /** Fails with WL_BUSY if a message of that length cannot be written now. */
  requireRoom(bytes: number): void {
    if (!this.#hasRoom(this.#promised + bytes)) throw untaken(this.peerName, bytes);
  }

  push(message: Uint8Array): boolean {
    const { sender } = this.#mailbox;
    if (this.#help === undefined) return sender.push(message);
    // The thread that copies sends messages, too.
    const { lock } = this.#help.lane;
    lock.take();
    sender.ring.catchUp();
    const isSent = sender.push(message);
    lock.release();
    return isSent;
  }

  enqueue(transfer: LocalTransfer): void {
    this.#busy.push(transfer);
    this.#promised += transfer.recordBytes;
    if (transfer.isForHelp) transfer.handOver((this.#help ??= this.#openLane()));
    this.#options.onWork();
  }

  /** True if this thread has to go on with what is under way. */
  get needsTurns(): boolean {
    const isHelped = this.#help?.thread.isRunning === true;
    for (let at = 0; at < this.#busy.length; at++) if (!isHelped || !this.#busy[at]!.isForHelp) return true;
    return false;
  }

  /** Hot path, of blocking waits. Does a little of what the other thread does. True if anything was moved. */
  shareWork(): boolean {
    return this.#busy.length > 0 && this.#help?.lane.copies.step() === 'moved';
  }

  /** Ends transfers that use memory which this side is taking back; resolves when none touches it any more. */
  async dropUsing(region: LocalRegion): Promise<void> {
    for (const transfer of this.#busy.filter((known) => known.uses(region)))
      this.drop(transfer, new WeftlineError('WL_CLOSED', 'The registration of the memory was closed'));
    await Promise.all(this.#draining.map((plan) => plan.over()));
    if (region.device === undefined) return;
    await Promise.all([...this.#channels].map((channel) => channel.idle()));
  }

  /** Ends one that is pending. */
  drop(transfer: LocalTransfer, error: WeftlineError): void {
    transfer.fail(error);
    this.#promised -= transfer.recordBytes;
    this.#busy = this.#busy.filter((other) => other !== transfer);
  }

  /** Lets pending transfers go on; without another thread this one copies about so many bytes. True if one ended. */
  advance(budget: number): boolean {
    let hasMoved = false;
    for (let left = budget; left > 0 && this.#help?.thread.isRunning === false; left -= STEP_BYTES) {
      if (!this.shareWork()) break;
      hasMoved = true;
    }
    const busy = this.#busy;
    let kept = 0;
    for (let at = 0; at < busy.length; at++) {
      const transfer = busy[at]!;
      if (!transfer.advance()) busy[kept++] = transfer;
      // A transfer that finds the peer dead ends them all.
      else if (this.#busy !== busy) return true;
      else this.#promised -= transfer.recordBytes;
    }
    const hasEnded = kept < busy.length;
    busy.length = kept;
    return hasMoved || hasEnded;
  }

  /** Enqueues what channels hold. True if one delivered something. */
  lookAtChannels(): boolean {
    let any = false;
    for (const channel of this.#channels) any = channel.look() || any;
    if (this.#draining.length > 0) this.#draining = this.#draining.filter((plan) => !plan.isOver());
    return any;
  }

  /** Looks whether the peer still lives. True if that changed. */
  checkPeer(): boolean {
    if (this.error !== undefined) return false;
    this.#memory.sweep();
    const state = this.#mailbox.ownerState;
    if (state === 'open') return false;
    this.#fail(state, this.#goneError(state));
    return true;
  }

  // What transfers touch.

  /** GPU memory of the peer at an address of the device. */
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number {
    return this.#memory.mapAllocation(reach, device);
  }

  /** True if kernels of the device can use that memory, and not copy engines alone. */
  doKernelsReach(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): boolean {
    return this.#memory.doKernelsReach(reach, device);
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

  close(): Promise<void> {
    if (this.#closing === undefined) {
      this.#closing = this.#close();
      this.#options.onClose(this.#closing);
    }
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#isClosed = true;
    this.#fail('closed', new WeftlineError('WL_CLOSED', `The link to ${this.peerName} was closed`));
    if (this.#help !== undefined) this.#help.thread.closeLane(this.#help.lane);
    // A copy that is running must end before its memory goes.
    for (const channel of this.#channels) await channel.close();
    for (const stream of this.#streams.values()) await stream.idle().catch(() => undefined);
    for (const stream of this.#streams.values()) stream[Symbol.dispose]();
    this.#memory.close();
    // ORDER: last. Its lock tells the peer that this side may still touch its memory.
    this.#mailbox[Symbol.dispose]();
  }

  #goneError(state: 'closed' | 'dead'): WeftlineError {
    const { peerName, pid } = this;
    const [code, how] =
      state === 'closed'
        ? (['WL_CLOSED', 'closed its agent'] as const)
        : (['WL_PEER_LOST', `is gone: its process ${pid} ended`] as const);
    return new WeftlineError(code, `${peerName} ${how}`, { details: { peer: peerName, pid } });
  }

  /** True while copies of this side may touch the region. */
  #isBusy(region: LocalRemoteRegion): boolean {
    if (this.#draining.length > 0) return true;
    return this.#busy.some((transfer) => transfer.touches(region));
  }

  #hasRoom(bytes: number): boolean {
    const { sender } = this.#mailbox;
    if (this.#help === undefined) return sender.ring.hasRoomFor(bytes);
    const { lock } = this.#help.lane;
    lock.take();
    sender.ring.catchUp();
    const hasRoom = sender.ring.hasRoomFor(bytes);
    lock.release();
    return hasRoom;
  }

  #openLane(): CopyHelp {
    const thread = this.#options.copyThread();
    return { thread, lane: thread.openLane(this.#mailbox) };
  }

  #fail(state: LinkState, error: WeftlineError): void {
    if (this.state === 'open') {
      this.state = state;
      if (state === 'dead') log('agent', 'warn', error.message);
    }
    this.error ??= error;
    const busy = this.#busy;
    this.#busy = [];
    for (const transfer of busy) transfer.fail(this.error);
    this.#promised = 0;
  }
}
