// A prepared transfer within the host. `post` is a hot path: no allocation.
import { asWeftlineError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import { copyMemory } from '../../../native/libc.ts';
import { copyError, whyCopyFailed } from '../../../native/process-memory.ts';
import type {
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from '../../backend.ts';
import { type CopyJob, CopyRows, CUT_SHORT, jobStates, jobWord } from './copy-lane.ts';
import type { CopyThread, LaneToPeer } from './copy-thread.ts';
import { type CopyPlan, GpuCopies, INLINE_BYTES, isMany, RangeKernel } from './gpu-copies.ts';
import type { LocalRegion, LocalRemoteRegion, RegionReach } from './local-region.ts';
import { recordBytes } from './mailbox-layout.ts';
import { type DeviceWork, type PeerSteps, RegionGrants, REVOKED } from './peer-mailbox.ts';

export type LocalPlan = PlannedTransfer<BackendRegion, BackendRemoteRegion>;

interface LocalTransferParts {
  readonly plan: CopyPlan;
  /** The plan, if it is between hosts, and threads that copy can carry it out. */
  readonly host: HostCopies | undefined;
  /** Each region stands here once. */
  readonly locals: readonly LocalRegion[];
  readonly remotes: readonly LocalRemoteRegion[];
  /** The parts are others for each post. */
  readonly isBySelection: boolean;
}

/** What a link knows of the peer's memory. */
export interface LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number;
  doKernelsReach(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): boolean;
  stream(device: CudaDevice): CudaStream;
  readonly deviceWork: DeviceWork;
}

/**
 * Memory of this side is all of hosts or all of GPUs. Fails with WL_UNSUPPORTED for pairs of memory that nothing copies, and with
 * WL_MEMORY.
 */
export async function planCopies(
  link: LinkedMemory,
  operation: TransferOperation,
  plan: LocalPlan,
): Promise<LocalTransferParts> {
  const isRead = operation === 'read';
  const locals = plan.locals as readonly LocalRegion[];
  const remotes = plan.remotes as readonly LocalRemoteRegion[];
  const { parts, isBySelection } = plan;
  const kernels = await rangeKernels(link, { locals, remotes, parts, isBySelection });
  const addresses = remoteAddresses(link, { locals, remotes, parts, isBySelection });
  const known = addresses.get(undefined);
  if (known === undefined) {
    const ways = [...addresses].map(([device, there]) => ({
      device: device as CudaDevice,
      stream: link.stream(device as CudaDevice),
      locals: locals.map((local) => (local.device === device ? local.address : Number.NaN)),
      remotes: there,
      kernel: kernels.get(device as CudaDevice),
    }));
    const copies = new GpuCopies({ parts, ways, isRead, isBySelection, work: link.deviceWork });
    return { plan: copies, host: undefined, locals, remotes, isBySelection };
  }
  const processOf = ({ reach }: LocalRemoteRegion): number => (reach.kind === 'process' ? link.pid : 0);
  const places = remotes.map((remote, at) => ({ process: processOf(remote), address: known[at]! }));
  const rows = CopyRows.of({ parts, isRead, locals: locals.map(({ address }) => address), remotes: places });
  const host = new HostCopies(rows, { pid: link.pid, isRead, peer: link.peerName });
  return { plan: host, host, locals, remotes, isBySelection };
}

/** The kernels that may copy for GPUs of this side; without one, copy engines do. Host memory that the driver does not know is no kernel's. */
async function rangeKernels(
  link: LinkedMemory,
  plan: PlannedTransfer<LocalRegion, LocalRemoteRegion>,
): Promise<ReadonlyMap<CudaDevice, RangeKernel | undefined>> {
  const kernels = new Map<CudaDevice, RangeKernel | undefined>();
  if (!isMany(plan)) return kernels;
  for (const { device } of plan.locals) {
    if (device === undefined) continue;
    const isAllowed = plan.remotes.every(({ reach }) => reach.kind === 'cuda' && link.doKernelsReach(reach, device));
    if (isAllowed) kernels.set(device, await RangeKernel.of(device));
  }
  return kernels;
}

/** Where the peer's regions begin, as what copies sees them: by the device of this side's memory, then by region; NaN where none is asked for. */
function remoteAddresses(
  link: LinkedMemory,
  { locals, remotes, parts, isBySelection }: PlannedTransfer<LocalRegion, LocalRemoteRegion>,
): ReadonlyMap<CudaDevice | undefined, Float64Array> {
  const byDevice = new Map<CudaDevice | undefined, Float64Array>();
  const byLocal = locals.map(({ device }) => {
    const known = byDevice.get(device) ?? new Float64Array(remotes.length).fill(Number.NaN);
    byDevice.set(device, known);
    return known;
  });
  let [lastLocal, lastRemote] = [-1, -1];
  const ask = (local: number, remote: number): void => {
    const known = byLocal[local] as Float64Array;
    [lastLocal, lastRemote] = [local, remote];
    if (!Number.isNaN(known[remote])) return;
    const { device } = locals[local] as LocalRegion;
    known[remote] = remoteAddress(link, (remotes[remote] as LocalRemoteRegion).reach, device);
  };
  const { count } = parts;
  for (let row = 0; row < count; row++) {
    const [local, remote] = [parts.local[row]!, parts.remote[row]!];
    if (local !== lastLocal || remote !== lastRemote) ask(local, remote);
  }
  // A selection may pair any of them.
  if (isBySelection) for (const local of locals.keys()) for (const remote of remotes.keys()) ask(local, remote);
  return byDevice;
}

function remoteAddress(link: LinkedMemory, reach: RegionReach, device: CudaDevice | undefined): number {
  if (device === undefined) {
    if (reach.kind !== 'cuda') return reach.address;
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `Cannot move host memory of this side to or from GPU memory of ${link.peerName}: give GPU memory of this side`,
    );
  }
  if (reach.kind === 'cuda') return link.mapAllocation(reach, device);
  if (reach.kind === 'mapped') return reach.address;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `GPU memory can be moved to and from memory that ${link.peerName} took from agent.allocate(), not from its other host memory`,
  );
}

/** Small pieces cost by their number. Most of them that are copied within `post`. */
const INLINE_PIECES = 16_384;

interface HostCopiesOptions {
  readonly pid: number;
  readonly isRead: boolean;
  readonly peer: string;
}

/** Copies from memory of hosts to memory of hosts. Long ones are carried out as a job, step by step. */
class HostCopies implements CopyPlan {
  bytes = 0;
  isShort = false;
  readonly rows: CopyRows;
  /** The only copy, as most messages are one; 0 bytes if there is none. A look at the columns would take a sixth of a short post. */
  #onlyTo = 0;
  #onlyFrom = 0;
  #onlyBytes = 0;
  readonly #options: HostCopiesOptions;

  constructor(rows: CopyRows, options: HostCopiesOptions) {
    this.rows = rows;
    this.#options = options;
    this.measure();
  }

  measure(): void {
    const { bytes, ranges } = this.rows.parts.sums();
    this.bytes = bytes;
    this.isShort = bytes <= INLINE_BYTES && ranges <= INLINE_PIECES;
    [this.#onlyTo, this.#onlyFrom, this.#onlyBytes] = this.rows.only ?? [0, 0, 0];
  }

  begin(): void {
    // All is copied at once, or by the job.
  }

  advance(): boolean {
    const failure = this.#onlyBytes > 0 ? 0 : this.rows.copyAll();
    if (this.#onlyBytes > 0) copyMemory(this.#onlyTo, this.#onlyFrom, this.#onlyBytes);
    if (failure !== 0) throw this.failure(failure);
    return true;
  }

  isOver(): boolean {
    return true;
  }

  over(): Promise<void> {
    return Promise.resolve();
  }

  close(): void {
    // It holds nothing.
  }

  /** `code`: as CopyRows.copy says it. */
  failure(code: number): WeftlineError {
    const { peer, pid, isRead } = this.#options;
    const details = { peer, pid, bytes: this.bytes };
    const cause = code === CUT_SHORT ? undefined : copyError(isRead, code);
    if (code !== CUT_SHORT && whyCopyFailed(code) === 'gone') {
      return new WeftlineError('WL_PEER_LOST', `${peer} is gone: its process ended`, { details, cause });
    }
    return new WeftlineError(
      'WL_SHARED_MEMORY',
      `Copying ${this.bytes} bytes ${isRead ? 'from' : 'to'} memory of ${peer} failed: ${cause?.message ?? 'part of its region is no longer mapped there'}`,
      { details, cause },
    );
  }
}

/** What a transfer needs of its link. */
interface TransferLink {
  readonly peerName: string;
  readonly steps: PeerSteps;
  readonly isQuiet: boolean;
  checkPeer(): boolean;
  requireUsable(): void;
  requireRoom(bytes: number): void;
  push(message: Uint8Array): boolean;
  enqueue(transfer: LocalTransfer): void;
  drop(transfer: LocalTransfer, error: WeftlineError): void;
  drain(plan: CopyPlan): void;
  noteCopied(bytes: number): WeftlineError | undefined;
  findDeath(): WeftlineError | undefined;
  lose(error: WeftlineError): void;
  refusal(): WeftlineError;
}

/** The thread that copies, and its lane to the peer. */
export interface CopyHelp {
  readonly thread: CopyThread;
  readonly lane: LaneToPeer;
}

export class LocalTransfer implements BackendTransfer {
  readonly #link: TransferLink;
  readonly #host: HostCopies | undefined;
  /** Everything that a post reads is in fields of this object: reading it through other objects costs as much as a check. */
  readonly #plan: CopyPlan;
  #bytes: number;
  #isShort: boolean;
  readonly #isBySelection: boolean;
  readonly #steps: PeerSteps;
  readonly #locals: readonly LocalRegion[];
  readonly #remotes: readonly LocalRemoteRegion[];
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  #isReleased = false;
  #hasMessage = false;
  #message: Uint8Array = new Uint8Array(0);
  /** Its copies in the hands of all threads that copy, once they were needed, and whether they are from a post to its end. */
  #help: CopyHelp | undefined;
  #job: CopyJob | undefined;
  #isQueued = false;
  /** Why it was cancelled, while a GPU works on its copies. */
  #cancelled: WeftlineError | undefined;

  constructor(link: TransferLink, parts: LocalTransferParts) {
    this.#link = link;
    this.#host = parts.host;
    this.#plan = parts.plan;
    this.#bytes = parts.plan.bytes;
    this.#isShort = parts.plan.isShort;
    this.#isBySelection = parts.isBySelection;
    this.#steps = link.steps;
    this.#locals = parts.locals;
    this.#remotes = parts.remotes;
  }

  /** What its message takes of the peer's ring. */
  get recordBytes(): number {
    return this.#hasMessage ? recordBytes(this.#message.length) : 0;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    if (this.state === 'pending') throw invalidArgument('post', 'a transfer that is pending', 'one that has ended');
    if (this.#isBySelection) this.#measure();
    // A check costs nothing beside so long a copy.
    if (!this.#isShort) this.#link.checkPeer();
    this.#link.requireUsable();
    if (!areRegistered(this.#locals)) throw new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
    if (message !== undefined) this.#link.requireRoom(message.length);
    this.state = 'pending';
    this.error = undefined;
    this.#cancelled = undefined;
    this.#plan.begin();
    if (this.#isShort && this.#link.isQuiet) {
      if (this.#goOn(message)) return;
    } else if (!this.#steps.mayTouch(this.#remotes)) {
      this.fail(this.#link.refusal());
      return;
    }
    this.#keep(message);
    this.#link.enqueue(this);
  }

  #measure(): void {
    this.#plan.measure();
    this.#bytes = this.#plan.bytes;
    this.#isShort = this.#plan.isShort;
  }

  /** False if only this thread can carry it out. */
  get isForHelp(): boolean {
    return this.#host !== undefined;
  }

  /** Allocates at the first call, and when the length of the message changes. */
  handOver(help: CopyHelp): void {
    const message = this.#hasMessage ? this.#message : undefined;
    this.#help = help;
    if (this.#job === undefined || (message !== undefined && message.length !== this.#job.message.length)) {
      const copies = { rows: this.#host!.rows, grants: RegionGrants.of(this.#remotes) };
      this.#job = help.thread.makeJob(copies, message?.length ?? 0, this.#job);
    }
    if (message !== undefined) this.#job.message.set(message);
    this.#isQueued = true;
    help.lane.copies.add(this.#job, message !== undefined);
  }

  uses(region: LocalRegion): boolean {
    return this.#locals.includes(region);
  }

  touches(region: LocalRemoteRegion): boolean {
    return this.#remotes.includes(region);
  }

  /** Goes on. True if it has ended. */
  advance(): boolean {
    if (this.state !== 'pending') return true;
    if (this.#cancelled !== undefined) {
      if (!this.#plan.isOver()) return false;
      this.fail(this.#cancelled);
      return true;
    }
    if (!this.#isQueued) return this.#goOn(this.#hasMessage ? this.#message : undefined);
    const failure = this.#jobFailure();
    if (failure === undefined) return false;
    this.#isQueued = false;
    // It took long enough for the peer to have died meanwhile.
    this.#settle(failure === 0 ? this.#link.findDeath() : this.#failureOf(failure));
    return true;
  }

  /** Once its job has ended: why, as CopyRows.copy says it, or REVOKED; 0 if all is copied and the message is sent. */
  #jobFailure(): number | undefined {
    const { words } = this.#job as CopyJob;
    return Atomics.load(words, jobWord.state) === jobStates.ended ? words[jobWord.failure]! : undefined;
  }

  #failureOf(code: number): WeftlineError | undefined {
    return code === REVOKED ? this.#link.refusal() : this.#host?.failure(code);
  }

  #goOn(message: Uint8Array | undefined): boolean {
    const steps = this.#steps;
    steps.begin();
    try {
      if (!steps.mayTouch(this.#remotes)) throw this.#link.refusal();
      const isSent = this.#plan.advance() && (message === undefined || this.#link.push(message));
      // ORDER: the step ends behind the message, which would otherwise wait until the processor has written out the data.
      steps.end();
      if (!isSent) return false;
    } catch (error) {
      steps.end();
      this.#settle(asWeftlineError(error));
      return true;
    }
    this.#settle(this.#link.noteCopied(this.#bytes));
    return true;
  }

  /** Keeps what is to be sent after the post. */
  #keep(message: Uint8Array | undefined): void {
    this.#hasMessage = message !== undefined;
    if (message === undefined) return;
    if (message.length !== this.#message.length) this.#message = new Uint8Array(message.length);
    this.#message.set(message);
  }

  #settle(error: WeftlineError | undefined): void {
    if (error === undefined) this.state = 'done';
    else this.fail(error);
    if (error?.code === 'WL_PEER_LOST') this.#link.lose(error);
  }

  /** Nothing is copied any more when it returns. What had been delivered before is done instead. */
  fail(error: WeftlineError): void {
    if (this.state !== 'pending') return;
    if (this.#isQueued) {
      this.#isQueued = false;
      // May wait for a step of a copy.
      this.#help?.lane.copies.remove(this.#job as CopyJob);
      if (this.#jobFailure() === 0) {
        this.state = 'done';
        return;
      }
    }
    this.state = 'failed';
    this.error = error;
    if (!this.#plan.isOver()) this.#link.drain(this.#plan);
  }

  cancel(): void {
    if (this.state !== 'pending') return;
    this.#cancelled ??= new WeftlineError('WL_CLOSED', `A transfer with ${this.#link.peerName} was cancelled`);
    // What was given to a GPU cannot be taken back: it ends when that is done.
    if (this.#plan.isOver()) this.#link.drop(this, this.#cancelled);
  }

  /** Fails with WL_TIMEOUT while a GPU works on its copies, and may then be called again: what tells of their end is kept. */
  async release(): Promise<void> {
    this.#isReleased = true;
    this.cancel();
    if (this.#job !== undefined) this.#help?.thread.forgetJob(this.#job);
    this.#job = undefined;
    await this.#plan.over();
    this.cancel();
    this.#plan.close();
  }
}

/** Memory that was deregistered may be unmapped. */
function areRegistered(locals: readonly LocalRegion[]): boolean {
  for (let index = 0; index < locals.length; index += 1) if ((locals[index] as LocalRegion).isReleased) return false;
  return true;
}
