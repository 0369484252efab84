// Puts and signals between memory of hosts, carried out at once, or of GPUs, enqueued; in order. Hot path: no allocation
// but that of a 64-bit sum.
import type { channelPutArguments } from '../../../abi/device-api.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { type CudaStream, StreamWrites } from '../../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { noPeerAtomics, whyNoPeerAtomics } from '../../../device/cuda/device-properties.ts';
import { copyMemory } from '../../../native/libc.ts';
import { IovecList } from '../../../native/process-memory.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../../backend.ts';
import type { LocalRegion, LocalRemoteRegion, RegionReach } from './local-region.ts';
import type { DeviceWork, PeerSteps } from './peer-mailbox.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

/** What a channel needs of its link. */
interface ChannelLink {
  readonly peerName: string;
  readonly pid: number;
  readonly error: WeftlineError | undefined;
  readonly steps: PeerSteps;
  readonly deviceWork: DeviceWork;
  readonly someDevice: CudaDevice | undefined;
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number;
  doKernelsReach(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): boolean;
  requireUsable(): void;
  refusal(): WeftlineError;
  forget(channel: LocalChannel): void;
}

export class LocalChannel implements BackendChannel {
  readonly #link: ChannelLink;
  readonly #range: IovecList = new IovecList(1);
  readonly #range0 = { local: 0, remote: 0, bytes: 0 };
  /** Where the channel's GPU sees regions of GPUs, and why it cannot add to words there; undefined if it can. */
  readonly #places = new WeakMap<LocalRemoteRegion, { readonly address: number; readonly whyNoAtomics?: string }>();
  #error: WeftlineError | undefined;
  #posted = 0;
  /** All operations of a channel between GPUs. */
  #cuda: LocalCudaChannel | undefined;
  #seen = 0;

  constructor(link: ChannelLink) {
    this.#link = link;
  }

  get posted(): number {
    return this.#cuda?.posted ?? this.#posted;
  }

  get delivered(): number {
    return this.#cuda?.delivered ?? this.#posted;
  }

  get error(): WeftlineError | undefined {
    return this.#error ?? this.#cuda?.error ?? this.#link.error;
  }

  /** Hot path, of `poll`. True if something was delivered. */
  look(): boolean {
    const cuda = this.#cuda;
    if (cuda === undefined) return false;
    try {
      if (this.error === undefined) cuda.flush();
      cuda.settle();
    } catch (error) {
      // It ends the channel, and not the thread that polls.
      this.#error ??= asWeftlineError(error);
    }
    const { delivered } = cuda;
    const hasNews = delivered !== this.#seen;
    this.#seen = delivered;
    return hasNews;
  }

  async prepare(local: BackendRegion, remote: BackendRemoteRegion): Promise<void> {
    const { reach } = remote as LocalRemoteRegion;
    // The local memory of a request for signals only may be the host's.
    const device = (local as LocalRegion).device ?? this.#cuda?.device ?? this.#link.someDevice;
    if (device === undefined || reach.kind !== 'cuda') return;
    this.#placeOf(remote as LocalRemoteRegion, device);
    await this.#gpu(device).ready;
  }

  put(place: PutPlace): boolean {
    this.#begin(place.remote as LocalRemoteRegion);
    try {
      return this.#put(place);
    } finally {
      this.#link.steps.end();
    }
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number, sum?: number): boolean {
    const region = remote as LocalRemoteRegion;
    this.#begin(region);
    try {
      return this.#signal(region, offset, add, sum);
    } finally {
      this.#link.steps.end();
    }
  }

  store(remote: BackendRemoteRegion, offset: number, low: number, high: number): boolean {
    const region = remote as LocalRemoteRegion;
    this.#begin(region);
    try {
      return this.#store(region, offset, low, high);
    } finally {
      this.#link.steps.end();
    }
  }

  send(): void {
    this.#cuda?.flush();
  }

  /** Resolves when what was posted so far touches no memory of this side any more. */
  async idle(): Promise<void> {
    await this.#cuda?.idle();
  }

  async close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', `A channel to ${this.#link.peerName} was closed`);
    this.#link.forget(this);
    await this.#cuda?.close();
  }

  #put(place: PutPlace): boolean {
    if (place.bytes === 0) return true;
    const local = place.local as LocalRegion;
    const { reach } = place.remote as LocalRemoteRegion;
    if (local.device !== undefined || reach.kind === 'cuda') {
      if (local.device === undefined || reach.kind !== 'cuda') throw mixedMemory();
      const to = this.#placeOf(place.remote as LocalRemoteRegion, local.device).address + place.remoteOffset;
      return this.#gpu(local.device).put(to, local.address + place.localOffset, place.bytes);
    }
    if (this.#cuda !== undefined) throw mixedMemory();
    const [from, to] = [local.address + place.localOffset, reach.address + place.remoteOffset];
    if (reach.kind === 'mapped') copyMemory(to, from, place.bytes);
    else this.#copyToProcess(from, to, place.bytes);
    this.#posted += 1;
    return true;
  }

  #signal(region: LocalRemoteRegion, offset: number, add: number, sum: number | undefined): boolean {
    requireCell(region, offset);
    if (region.reach.kind === 'cuda') {
      const device = this.#signalling();
      const { address, whyNoAtomics } = this.#placeOf(region, device);
      if (whyNoAtomics !== undefined) this.#requireStore(whyNoAtomics, sum);
      return this.#gpu(device).signal(address + offset, add, sum);
    }
    if (this.#cuda !== undefined) throw mixedMemory();
    // ORDER: the puts before it are ordinary stores of this thread, which this makes visible.
    Atomics.add(region.cells, offset / 8, BigInt(add));
    this.#posted += 1;
    return true;
  }

  #store(region: LocalRemoteRegion, offset: number, low: number, high: number): boolean {
    requireCell(region, offset);
    if (region.reach.kind === 'cuda') {
      const device = this.#signalling();
      return this.#gpu(device).store(this.#placeOf(region, device).address + offset, low, high);
    }
    if (this.#cuda !== undefined) throw mixedMemory();
    Atomics.store(region.cells, offset / 8, (BigInt(high) << 32n) | BigInt(low));
    this.#posted += 1;
    return true;
  }

  #gpu(device: CudaDevice): LocalCudaChannel {
    if (this.#cuda === undefined) {
      if (this.#posted > 0) throw mixedMemory();
      this.#cuda = new LocalCudaChannel(device, this.#link.deviceWork);
    }
    return this.#cuda;
  }

  /** The GPU whose stream writes to cells of the peer's GPU. */
  #signalling(): CudaDevice {
    const device = this.#cuda?.device ?? this.#link.someDevice;
    if (device === undefined) throw mixedMemory();
    return device;
  }

  #placeOf(
    region: LocalRemoteRegion,
    device: CudaDevice,
  ): { readonly address: number; readonly whyNoAtomics?: string } {
    let place = this.#places.get(region);
    if (place === undefined) {
      const reach = region.reach as Extract<RegionReach, { kind: 'cuda' }>;
      if (!this.#link.doKernelsReach(reach, device)) {
        const { ordinal } = device.context;
        throw new WeftlineError('WL_UNSUPPORTED', `Kernels of GPU ${ordinal} cannot use memory of the peer's GPU`);
      }
      const address = this.#link.mapAllocation(reach, device);
      const whyNoAtomics = whyNoPeerAtomics(device.context, address);
      place = { address, ...(whyNoAtomics === undefined ? {} : { whyNoAtomics }) };
      this.#places.set(region, place);
    }
    return place;
  }

  /** A stream can still store a sum that the caller knows, in a work of its own, where this GPU cannot add to the peer's memory. */
  #requireStore(reason: string, sum: number | undefined): void {
    if (sum === undefined || this.#cuda?.canStore === false) throw noPeerAtomics(reason, 'A signal of several writers');
    this.#cuda?.flush();
  }

  /** Begins a step, which the caller ends. Fails if the memory must not be touched. */
  #begin(region: LocalRemoteRegion): void {
    if (this.#error !== undefined) throw this.#error;
    this.#link.requireUsable();
    const { steps } = this.#link;
    steps.begin();
    if (!region.isReleased && steps.holds(region)) return;
    steps.end();
    throw this.#link.refusal();
  }

  #copyToProcess(from: number, to: number, bytes: number): void {
    this.#range0.local = from;
    this.#range0.remote = to;
    this.#range0.bytes = bytes;
    this.#range.set(0, this.#range0);
    if (this.#range.copy(this.#link.pid, false, 0, 1) === bytes) return;
    this.#error = new WeftlineError(
      'WL_SHARED_MEMORY',
      `A put of ${bytes} bytes into memory of ${this.#link.peerName} failed: the process ended or no longer has it`,
      { details: { peer: this.#link.peerName, bytes } },
    );
    throw this.#error;
  }
}

function requireCell({ bytes }: LocalRemoteRegion, offset: number): void {
  if (offset % 8 === 0 && offset >= 0 && offset + 8 <= bytes) return;
  throw invalidArgument('offset of a signal', offset, `a multiple of 8 from 0 to ${bytes - 8}`);
}

function mixedMemory(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'A channel of the local backend goes from GPUs to GPUs or from hosts to hosts: put what lies in the other kind on a channel of its own, or as a transfer',
  );
}

// Puts and signals into memory of a GPU of this host, in order, on a stream of the channel. Hot path: no allocation.

/** Up to here one block of a kernel copies faster than the copy engine starts; beyond, that needs no multiprocessor. */
const KERNEL_BYTES = 32 << 10;
const THREADS = 256;
/** Enqueued and not yet done. */
const MAX_PENDING = 512;
/** Words of one call, the news of the last of them included. */
const MAX_WRITES = 33;
const TWO_32 = 2 ** 32;

type PutPlan = LaunchPlan<keyof typeof channelPutArguments.offset>;

class LocalCudaChannel {
  readonly device: CudaDevice;
  readonly #stream: CudaStream;
  readonly #done: HostMemory;
  readonly #doneWord: Int32Array;
  /** Held back, to go in one call; never while a put is. Undefined where the driver cannot write words. */
  readonly #writes: StreamWrites | undefined;
  #plan: PutPlan | undefined;
  error: WeftlineError | undefined;
  posted = 0;
  #delivered = 0;
  /** A put that waits a moment for its signal, to go with it in one launch; of 0 bytes when a copy engine makes it. */
  #isHeld = false;
  #to = 0;
  #from = 0;
  #bytes = 0;
  readonly #work: DeviceWork;
  /** What the peer was told of: operations since the last look, and the earlier ones, up to number `#sealedAt`. */
  #ticket: number | undefined;
  #sealed: number | undefined;
  #sealedAt = 0;

  /** Resolves when the kernel is compiled, loaded, and has run once. Until then nothing can be posted. */
  readonly ready: Promise<void>;

  constructor(device: CudaDevice, work: DeviceWork) {
    this.device = device;
    this.#work = work;
    this.#stream = device.createStream({ priority: 'high' });
    this.#done = device.allocateHost(4);
    this.#doneWord = this.#done.view('i32');
    if (StreamWrites.isSupported(device.context)) this.#writes = new StreamWrites(device.context, MAX_WRITES);
    this.ready = this.#prepare();
    this.ready.catch((error: unknown) => (this.error = asWeftlineError(error)));
  }

  /** Whether streams can store words. */
  get canStore(): boolean {
    return this.#writes !== undefined;
  }

  get delivered(): number {
    // The word is a number of 32 bits, which the count continues.
    const news = (Atomics.load(this.#doneWord, 0) - this.#delivered) | 0;
    this.#delivered += news;
    return this.#delivered;
  }

  put(to: number, from: number, bytes: number): boolean {
    if (!this.#hasRoom()) return false;
    this.flush();
    if (bytes > KERNEL_BYTES) {
      const { context } = this.device;
      context.call('cuMemcpyDtoDAsync', to, from, bytes, this.#stream.handle);
      context.workCount += 1;
      this.posted += 1;
      this.#hold(0, 0, 0);
    } else {
      this.posted += 1;
      this.#hold(to, from, bytes);
    }
    return true;
  }

  /** A known sum is written by the stream, which a kernel that adds takes three times as long for. */
  signal(counter: number, add: number, sum: number | undefined): boolean {
    if (!this.#hasRoom()) return false;
    if (sum !== undefined && this.#writes !== undefined && this.#bytes === 0) {
      return this.#write(this.#writes, counter, sum % TWO_32, Math.floor(sum / TWO_32));
    }
    if (this.#writes !== undefined && this.#writes.count > 0) this.#send(this.#writes);
    this.posted += 1;
    if (!this.#isHeld) this.#hold(0, 0, 0);
    this.#launch(counter, add);
    return true;
  }

  store(address: number, low: number, high: number): boolean {
    if (this.#writes === undefined) {
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        'The driver cannot write 64-bit words from a stream: words go to this GPU only where kernels reach it directly',
      );
    }
    if (!this.#hasRoom()) return false;
    if (this.#bytes > 0) this.#launch(0, 0);
    return this.#write(this.#writes, address, low, high);
  }

  /** Enqueues what is held back. */
  flush(): void {
    if (!this.#isHeld) return;
    if (this.#bytes > 0 || this.#writes === undefined) this.#launch(0, 0);
    else this.#send(this.#writes);
  }

  /** Called now and then: tells the peer what is over. */
  settle(): void {
    if (this.#sealed !== undefined && this.#isOver(this.#sealedAt)) {
      this.#work.end(this.#sealed);
      this.#sealed = undefined;
    }
    if (this.#sealed !== undefined || this.#ticket === undefined) return;
    this.#sealed = this.#ticket;
    this.#sealedAt = this.posted;
    this.#ticket = undefined;
  }

  /** Resolves when what was posted is over. Fails with WL_TIMEOUT. */
  async idle(): Promise<void> {
    if (this.error === undefined) this.flush();
    await this.#stream.drained();
  }

  /** Waits for what runs. */
  async close(): Promise<void> {
    if (!this.device.context.disposed) await this.#stream.idle().catch(() => undefined);
    for (const ticket of [this.#sealed, this.#ticket]) if (ticket !== undefined) this.#work.end(ticket);
    if (this.device.context.disposed) return;
    this.#stream[Symbol.dispose]();
    this.#done[Symbol.dispose]();
  }

  async #prepare(): Promise<void> {
    const { channelPut } = await this.device.loadKernels(kernelFiles.channel);
    const plan = channelPut.plan({ grid: 1, block: THREADS });
    plan.arguments.set('done', this.#done.deviceAddress);
    // The driver puts off loading until the first launch, which would wait for kernels that run.
    plan.launch(this.#stream);
    this.#writes?.add32(this.#done.deviceAddress, 0);
    this.#writes?.enqueue(this.#stream);
    await this.#stream.idle();
    this.#plan = plan;
  }

  /** What follows a true one is posted. */
  #hasRoom(): boolean {
    if (this.error !== undefined) throw this.error;
    if (this.#plan === undefined || this.posted - this.delivered >= MAX_PENDING) return false;
    this.#ticket ??= this.#work.begin();
    return true;
  }

  /** A channel that has failed delivers nothing more. */
  #isOver(posted: number): boolean {
    if (this.delivered >= posted) return true;
    try {
      return this.error !== undefined && this.#stream.isIdle();
    } catch {
      return true;
    }
  }

  #hold(to: number, from: number, bytes: number): void {
    this.#isHeld = true;
    this.#to = to;
    this.#from = from;
    this.#bytes = bytes;
  }

  #write(writes: StreamWrites, address: number, low: number, high: number): boolean {
    writes.add64(address, low, high);
    this.#isHeld = true;
    this.posted += 1;
    if (writes.count === MAX_WRITES - 1) this.#send(writes);
    return true;
  }

  /** What is held, with the news of all that was posted; no put that a kernel makes is among it. */
  #send(writes: StreamWrites): void {
    this.#isHeld = false;
    writes.add32(this.#done.deviceAddress, this.posted >>> 0);
    try {
      writes.enqueue(this.#stream);
    } catch (error) {
      this.error = asWeftlineError(error);
      throw this.error;
    }
  }

  #launch(counter: number, add: number): void {
    const plan = this.#plan as PutPlan;
    const block = plan.arguments;
    block.set('to', this.#to);
    block.set('from', this.#from);
    block.set('bytes', this.#bytes);
    block.set('counter', counter);
    block.set('add', add);
    block.set('operations', this.posted >>> 0);
    this.#isHeld = false;
    this.#bytes = 0;
    try {
      plan.launch(this.#stream);
    } catch (error) {
      this.error = asWeftlineError(error);
      throw this.error;
    }
  }
}
