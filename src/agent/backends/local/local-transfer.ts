// A prepared transfer within the host. `post` is a hot path: no allocation.
import { asWeftlineError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import { copyMemory } from '../../../native/libc.ts';
import { copyError, whyCopyFailed } from '../../../native/process-memory.ts';
import type { PartTable } from '../../../transport/part-table.ts';
import type {
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from '../../backend.ts';
import {
  BEGIN,
  type CheckedCopies,
  CopyCursor,
  type CopyJob,
  CopyRows,
  CUT_SHORT,
  jobStates,
  jobWord,
  STEP_BYTES,
  STEP_PIECES,
} from './copy-lane.ts';
import type { CopyThread, LaneToPeer } from './copy-thread.ts';
import type { LocalRegion } from './local-region.ts';
import { recordBytes } from './mailbox-layout.ts';
import type { LocalRemoteRegion, RegionReach } from './remote-region.ts';
import { type DeviceWork, type PeerSteps, RegionGrants, REVOKED } from './sender-end.ts';

/** The copies of one prepared transfer, and how far they have come. Hot path after construction: no allocation. */
export interface CopyPlan {
  readonly bytes: number;
  /** So little that `post` copies it itself. */
  readonly isShort: boolean;
  /** Finds out how much it is: the parts are others than before. */
  measure(): void;
  /** Starts from the beginning again. */
  begin(): void;
  /** Copies up to about `budget` bytes more. True when all are where they belong. Throws when that cannot be. */
  advance(budget: number): boolean;
  /** True if nothing works on copies of earlier posts any more. A GPU may, even after a post has failed or was cancelled. */
  isOver(): boolean;
  /** Resolves when that is so. Fails with WL_TIMEOUT. */
  over(): Promise<void>;
}

export type LocalPlan = PlannedTransfer<BackendRegion, BackendRemoteRegion>;

interface LocalTransferParts {
  readonly plan: CopyPlan;
  /** The plan, if the thread that copies can carry it out. */
  readonly host: HostCopies | undefined;
  /** Each region stands here once. */
  readonly locals: readonly LocalRegion[];
  readonly remotes: readonly LocalRemoteRegion[];
  /** The parts are others for each post. */
  readonly isBySelection: boolean;
  readonly dispose: () => void;
}

/** What a link knows of the peer's memory. */
export interface LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number;
  stream(device: CudaDevice): CudaStream;
  readonly deviceWork: DeviceWork;
}

/** Fails with WL_UNSUPPORTED for pairs of memory that nothing copies. */
export function planCopies(link: LinkedMemory, operation: TransferOperation, plan: LocalPlan): LocalTransferParts {
  const isRead = operation === 'read';
  const locals = plan.locals as readonly LocalRegion[];
  const remotes = plan.remotes as readonly LocalRemoteRegion[];
  const { parts, isBySelection } = plan;
  const addresses = remoteAddresses(link, { locals, remotes, parts, isBySelection });
  const plans: CopyPlan[] = [];
  const cuda: CudaCopies[] = [];
  let host: HostCopies | undefined;
  for (const [device, known] of addresses) {
    const own = locals.map((local) => (local.device === device ? local.address : Number.NaN));
    if (device === undefined) {
      const processOf = ({ reach }: LocalRemoteRegion): number => (reach.kind === 'process' ? link.pid : 0);
      const places = remotes.map((remote, at) => ({ process: processOf(remote), address: known[at]! }));
      const rows = CopyRows.of({ parts, isRead, locals: own, remotes: places });
      host = new HostCopies(rows, { pid: link.pid, isRead, peer: link.peerName });
    } else {
      const copies = { parts, locals: own, remotes: known };
      cuda.push(new CudaCopies(copies, { device, stream: link.stream(device), work: link.deviceWork, isRead }));
    }
  }
  plans.push(...cuda);
  if (host !== undefined) plans.push(host);
  return {
    host: cuda.length === 0 ? host : undefined,
    plan: plans.length === 1 ? (plans[0] as CopyPlan) : new JoinedCopies(plans),
    locals,
    remotes,
    isBySelection,
    dispose: () => {
      for (const copies of cuda) copies[Symbol.dispose]();
    },
  };
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

/** Up to this much is copied at once, within `post`: less than a millisecond. */
const INLINE_BYTES: number = 4 << 20;
/** Small pieces cost by their number. Most of them that are copied within `post`. */
const INLINE_PIECES = 16_384;

interface HostCopiesOptions {
  readonly pid: number;
  readonly isRead: boolean;
  readonly peer: string;
}

/** Copies from memory of hosts to memory of hosts. */
class HostCopies implements CopyPlan {
  bytes = 0;
  isShort = false;
  readonly rows: CopyRows;
  /** The only copy, as most messages are one; 0 bytes if there is none. A look at the columns would take a sixth of a short post. */
  #onlyTo = 0;
  #onlyFrom = 0;
  #onlyBytes = 0;
  readonly #options: HostCopiesOptions;
  readonly #at = new CopyCursor();
  readonly #end = new CopyCursor();

  constructor(rows: CopyRows, options: HostCopiesOptions) {
    this.rows = rows;
    this.#options = options;
    this.measure();
  }

  measure(): void {
    const { bytes, ranges } = this.rows.sums();
    this.bytes = bytes;
    this.isShort = bytes <= INLINE_BYTES && ranges <= INLINE_PIECES;
    [this.#onlyTo, this.#onlyFrom, this.#onlyBytes] = this.rows.only ?? [0, 0, 0];
  }

  begin(): void {
    this.#at.follow(BEGIN);
  }

  advance(budget: number): boolean {
    const { rows } = this;
    if (this.isShort) {
      if (this.#onlyBytes > 0) copyMemory(this.#onlyTo, this.#onlyFrom, this.#onlyBytes);
      else this.#check(rows.copyAll());
      return true;
    }
    const at = this.#at;
    const end = this.#end;
    for (let left = budget; at.row < rows.parts.count && left > 0;) {
      end.follow(at);
      left -= rows.move(end, STEP_BYTES, STEP_PIECES);
      this.#check(rows.copy(at, end));
      at.follow(end);
    }
    return at.row === rows.parts.count;
  }

  #check(failure: number): void {
    if (failure !== 0) throw this.failure(failure);
  }

  isOver(): boolean {
    return true;
  }

  over(): Promise<void> {
    return Promise.resolve();
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

// Copies to and from memory of GPUs: enqueued on a stream of their own, done when an event behind them is.

export interface CudaCopiesOptions {
  readonly device: CudaDevice;
  readonly stream: CudaStream;
  readonly isRead: boolean;
  /** What the peer is told of it. */
  readonly work: DeviceWork;
}

/** Parts between memory of a GPU and memory that it reaches. */
interface DeviceParts {
  readonly parts: PartTable;
  /** Where regions begin, as the GPU sees them; NaN for those of this side whose parts are others' to copy. */
  readonly locals: ArrayLike<number>;
  readonly remotes: ArrayLike<number>;
}

/**
 * Copies begin when the transfer is posted; they do not wait for work of other streams: what is sent must lie there, as
 * for a copy by the host. Host memory that the driver does not know is copied by the host within `advance`.
 */
export class CudaCopies implements CopyPlan, Disposable {
  bytes = 0;
  isShort = false;
  readonly #device: CudaDevice;
  readonly #stream: CudaStream;
  readonly #event: CudaEvent;
  readonly #work: DeviceWork;
  readonly #isRead: boolean;
  readonly #parts: DeviceParts;
  #isEnqueued = false;
  /** While the GPU may work on it. */
  #ticket: number | undefined;

  constructor(copies: DeviceParts, { device, stream, isRead, work }: CudaCopiesOptions) {
    this.#work = work;
    this.#device = device;
    this.#stream = stream;
    this.#event = device.createEvent();
    this.#isRead = isRead;
    this.#parts = copies;
    this.measure();
  }

  measure(): void {
    const { parts, locals } = this.#parts;
    let bytes = 0;
    for (let row = 0; row < parts.count; row++) {
      if (!Number.isNaN(locals[parts.local[row]!]!)) bytes += parts.bytes[row]! * parts.ranges[row]!;
    }
    this.bytes = bytes;
    this.isShort = bytes <= INLINE_BYTES;
  }

  begin(): void {
    this.#isEnqueued = false;
  }

  advance(): boolean {
    if (!this.#isEnqueued) this.#enqueue();
    return this.#event.isDone() && this.isOver();
  }

  isOver(): boolean {
    if (this.#ticket === undefined) return true;
    try {
      if (!this.#event.isDone()) return false;
    } catch {
      // A device that has failed copies nothing more.
    }
    this.#work.end(this.#ticket);
    this.#ticket = undefined;
    return true;
  }

  async over(): Promise<void> {
    if (this.isOver()) return;
    try {
      await this.#event.wait();
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_TIMEOUT') throw error;
    }
    this.isOver();
  }

  [Symbol.dispose](): void {
    this.#event[Symbol.dispose]();
  }

  #enqueue(): void {
    const { context } = this.#device;
    context.enter();
    context.workCount += 1;
    // Copies of an earlier post go before these on the stream: their end is that of these.
    this.#ticket ??= this.#work.begin();
    this.#isEnqueued = true;
    try {
      this.#enqueueAll();
    } finally {
      this.#event.record(this.#stream);
    }
  }

  #enqueueAll(): void {
    const { context } = this.#device;
    const { parts, locals, remotes } = this.#parts;
    for (let row = 0; row < parts.count; row++) {
      const local = locals[parts.local[row]!]! + parts.localOffset[row]!;
      if (Number.isNaN(local)) continue;
      const remote = remotes[parts.remote[row]!]! + parts.remoteOffset[row]!;
      for (let range = 0; range < parts.ranges[row]!; range++) {
        const here = local + range * parts.localStride[row]!;
        const there = remote + range * parts.remoteStride[row]!;
        const [to, from] = this.#isRead ? [here, there] : [there, here];
        const status = context.driver.cuMemcpyAsync(to, from, parts.bytes[row]!, this.#stream.handle);
        context.check('cuMemcpyAsync', status);
      }
    }
  }
}

/** Several plans as one. */
class JoinedCopies implements CopyPlan {
  bytes = 0;
  isShort = false;
  readonly #plans: readonly CopyPlan[];
  #at = 0;

  constructor(plans: readonly CopyPlan[]) {
    this.#plans = plans;
    this.measure();
  }

  measure(): void {
    for (const plan of this.#plans) plan.measure();
    this.bytes = this.#plans.reduce((sum, plan) => sum + plan.bytes, 0);
    this.isShort = this.bytes <= INLINE_BYTES && this.#plans.every((plan) => plan.isShort);
  }

  begin(): void {
    this.#at = 0;
    for (let index = 0; index < this.#plans.length; index += 1) (this.#plans[index] as CopyPlan).begin();
  }

  advance(budget: number): boolean {
    while (this.#at < this.#plans.length) {
      if (!(this.#plans[this.#at] as CopyPlan).advance(budget)) return false;
      this.#at += 1;
    }
    return true;
  }

  isOver(): boolean {
    let areOver = true;
    for (const plan of this.#plans) areOver = plan.isOver() && areOver;
    return areOver;
  }

  async over(): Promise<void> {
    await Promise.all(this.#plans.map((plan) => plan.over()));
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

export class LocalTransfer implements BackendTransfer {
  /** The link's list of pending transfers. */
  next: LocalTransfer | undefined;
  readonly #link: TransferLink;
  readonly #parts: LocalTransferParts;
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
  #areCopied = false;
  #isReleased = false;
  #hasMessage = false;
  #message: Uint8Array = new Uint8Array(0);
  /** Once the thread that copies was needed. */
  #shared: SharedCopies | undefined;
  /** Another thread goes on with it. */
  isHandedOver = false;

  constructor(link: TransferLink, parts: LocalTransferParts) {
    this.#link = link;
    this.#parts = parts;
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
    this.#areCopied = false;
    this.#plan.begin();
    if (this.#isShort && this.#link.isQuiet) {
      if (this.#goOn(INLINE_BYTES, message)) return;
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
  get canBeHandedOver(): boolean {
    return this.#parts.host !== undefined;
  }

  handOver(help: CopyHelp): void {
    this.#shared ??= new SharedCopies(help, {
      rows: (this.#parts.host as HostCopies).rows,
      grants: RegionGrants.of(this.#remotes),
    });
    this.isHandedOver = true;
    this.#shared.begin(this.#hasMessage ? this.#message : undefined);
  }

  uses(region: LocalRegion): boolean {
    return this.#locals.includes(region);
  }

  touches(region: LocalRemoteRegion): boolean {
    return this.#remotes.includes(region);
  }

  /** Goes on. True if it has ended. */
  advance(budget: number): boolean {
    if (this.state !== 'pending') return true;
    return this.isHandedOver ? this.#look() : this.#goOn(budget, this.#hasMessage ? this.#message : undefined);
  }

  /** How far the other thread has come. */
  #look(): boolean {
    const shared = this.#shared as SharedCopies;
    if (!shared.hasEnded) return false;
    this.isHandedOver = false;
    const { failure } = shared;
    // It took long enough for the peer to have died meanwhile.
    const error = failure === 0 ? this.#link.findDeath() : this.#failure(failure);
    if (error === undefined) this.state = 'done';
    else this.#end(error);
    return true;
  }

  #failure(code: number): WeftlineError | undefined {
    return code === REVOKED ? this.#link.refusal() : this.#parts.host?.failure(code);
  }

  #goOn(budget: number, message: Uint8Array | undefined): boolean {
    const steps = this.#steps;
    steps.begin();
    try {
      if (!this.#areCopied) this.#areCopied = this.#copy(budget);
      const isSent = this.#areCopied && (message === undefined || this.#link.push(message));
      // ORDER: the step ends behind the message, which would otherwise wait until the processor has written out the data.
      steps.end();
      if (!isSent) return false;
    } catch (error) {
      steps.end();
      this.#end(asWeftlineError(error));
      return true;
    }
    const death = this.#link.noteCopied(this.#bytes);
    if (death === undefined) this.state = 'done';
    else this.#end(death);
    return true;
  }

  /** Within a step. */
  #copy(budget: number): boolean {
    if (!this.#steps.mayTouch(this.#remotes)) throw this.#link.refusal();
    return this.#plan.advance(budget);
  }

  /** Keeps what is to be sent after the post. */
  #keep(message: Uint8Array | undefined): void {
    this.#hasMessage = message !== undefined;
    if (message === undefined) return;
    if (message.length !== this.#message.length) this.#message = new Uint8Array(message.length);
    this.#message.set(message);
  }

  #end(error: WeftlineError): void {
    this.fail(error);
    if (error.code === 'WL_PEER_LOST') this.#link.lose(error);
  }

  /** Nothing is copied any more when it returns. What had been delivered before is done instead. */
  fail(error: WeftlineError): void {
    if (this.state !== 'pending') return;
    const wasHandedOver = this.isHandedOver;
    this.isHandedOver = false;
    if (wasHandedOver) {
      this.#shared?.takeBack();
      if (this.#shared?.isDone === true) {
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
    this.#link.drop(this, new WeftlineError('WL_CLOSED', `A transfer with ${this.#link.peerName} was cancelled`));
  }

  /** Fails with WL_TIMEOUT while a GPU works on its copies, and may then be called again: what tells of their end is kept. */
  async release(): Promise<void> {
    this.#isReleased = true;
    this.cancel();
    this.#shared?.release();
    await this.#plan.over();
    this.#parts.dispose();
  }
}

/** Memory that was deregistered may be unmapped. */
function areRegistered(locals: readonly LocalRegion[]): boolean {
  for (let index = 0; index < locals.length; index += 1) if ((locals[index] as LocalRegion).isReleased) return false;
  return true;
}

// A transfer's copies in the hands of the thread that copies, from a post to its end.

export interface CopyHelp {
  readonly thread: CopyThread;
  readonly lane: LaneToPeer;
}

class SharedCopies {
  readonly #help: CopyHelp;
  readonly #copies: CheckedCopies;
  #job: CopyJob | undefined;

  constructor(help: CopyHelp, copies: CheckedCopies) {
    this.#help = help;
    this.#copies = copies;
  }

  /** Allocates at the first call, and when the length of the message changes. */
  begin(message: Uint8Array | undefined): void {
    const { thread, lane } = this.#help;
    if (this.#job === undefined || (message !== undefined && message.length !== this.#job.message.length)) {
      this.#job = thread.makeJob(this.#copies, message?.length ?? 0, this.#job);
    }
    if (message !== undefined) this.#job.message.set(message);
    lane.copies.add(this.#job, message !== undefined);
  }

  /** Hot path. */
  get hasEnded(): boolean {
    return this.#job !== undefined && Atomics.load(this.#job.words, jobWord.state) === jobStates.ended;
  }

  /** Once it has ended: why, as CopyRows.copy says it, or REVOKED; 0 if all is copied and the message is sent. */
  get failure(): number {
    return this.#job?.words[jobWord.failure] ?? 0;
  }

  get isDone(): boolean {
    return this.hasEnded && this.failure === 0;
  }

  /** When it returns, nothing is copied any more. May wait for a step of a copy. */
  takeBack(): void {
    if (this.#job !== undefined) this.#help.lane.copies.remove(this.#job);
  }

  /** It must not be under way. */
  release(): void {
    if (this.#job !== undefined) this.#help.thread.forgetJob(this.#job);
    this.#job = undefined;
  }
}
