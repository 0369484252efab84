// A prepared transfer as the user holds it: posted many times, waited for, measured.
import { PartTable } from '../transport/part-table.ts';
import { beginChannelCall, endChannelCall, transferChannel, type TransferContext } from '../core/call-channels.ts';
import { checkOptions } from '../core/check-options.ts';
import { countError } from '../core/counts.ts';
import { waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { traceBegin, traceEnd } from '../core/trace.ts';
import type {
  BackendLink,
  BackendTransfer,
  MemoryKind,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from './backend.ts';
import type { BackendName } from './backends/backend-table.ts';
import { type DescriptorList, whyNoRange } from './descriptors.ts';
import { type Message, messageBytes } from './notifications.ts';
import type { RemoteAgent } from './remote-agent.ts';
import type { Awaited, Waiter } from './waiting.ts';

/** Sizes, counts and times of one transfer since it was prepared; times are in microseconds. */
export interface TransferTelemetry {
  /** Bytes of one post, as the descriptors say. */
  readonly bytes: number;
  readonly descriptors: number;
  /** Ranges that are moved after neighbours were joined. */
  readonly parts: number;
  readonly posts: number;
  readonly failures: number;
  /** The time that the last post's call took, and that until this side saw the end. */
  readonly postMicroseconds: number;
  readonly transferMicroseconds: number;
  /** Sums over all posts. */
  readonly totalPostMicroseconds: number;
  readonly totalTransferMicroseconds: number;
}

interface TransferParts {
  readonly number: number;
  readonly agent: string;
  readonly peer: RemoteAgent;
  readonly operation: TransferOperation;
  readonly backend: BackendName;
  readonly link: BackendLink;
  readonly inner: BackendTransfer;
  readonly bytes: number;
  readonly descriptors: number;
  readonly parts: number;
  readonly waiter: Waiter;
  /** The transfer is under way. */
  readonly onPost: (transfer: Transfer) => void;
  /** Memory of this side that it uses. */
  readonly isLocalOpen: () => boolean;
}

/** Places of times in milliseconds. */
const [POSTED_AT, POST, TRANSFER, ALL_POSTS, ALL_TRANSFERS] = [0, 1, 2, 3, 4] as const;

/** Transfers of this process so far. */
let traced = 0;

const channel = transferChannel();

/**
 * A post fails with WL_INVALID_ARGUMENT while one is under way or for a message that is too long, WL_CLOSED when the
 * transfer, its memory or the agent is released, WL_STALE when the peer's metadata have been replaced, and with the link's error when the peer is gone.
 */
export class Transfer implements Awaited, AsyncDisposable {
  /** The number in this process: agents number their own. */
  readonly #traced = ++traced;
  /** The number at the agent. */
  readonly number: number;
  readonly operation: TransferOperation;
  readonly backend: BackendName;
  readonly #parts: TransferParts;
  readonly #label: string;
  /** One piece of memory, because after a copy that emptied the caches each further cache line costs. */
  readonly #times: Float64Array = new Float64Array(5);
  #posts = 0;
  #failures = 0;
  #isUnderWay = false;
  /** The context of a post whose begin listeners were told. */
  #told: TransferContext | undefined;
  #releasing: Promise<void> | undefined;

  /** @internal */
  constructor(parts: TransferParts) {
    this.number = parts.number;
    this.operation = parts.operation;
    this.backend = parts.backend;
    this.#parts = parts;
    this.#label = `${parts.operation} by ${parts.backend}`;
  }

  /** Name of the agent at the other end. */
  get peer(): string {
    return this.#parts.peer.name;
  }

  /** Hot path. Done means delivered: every byte is visible where it belongs. */
  get state(): TransferState {
    this.look();
    return this.#parts.inner.state;
  }

  /** Why the last post failed. */
  get error(): WeftlineError | undefined {
    return this.state === 'failed' ? this.#parts.inner.error : undefined;
  }

  /** @internal */
  get isSettled(): boolean {
    return this.state !== 'pending';
  }

  /**
   * Hot path: no allocation, never waits. The message, of up to MAX_NOTIFICATION_BYTES (a string as UTF-8), is delivered at
   * the peer behind the data; it is copied. Fails with WL_BUSY, having posted nothing, while the peer does not take its notifications or too much is under way.
   */
  post(message?: Message): void {
    if (this.#isUnderWay && !this.isSettled) throw this.#stillUnderWay();
    const { peer, inner, link, isLocalOpen } = this.#parts;
    if (this.#releasing !== undefined) throw new WeftlineError('WL_CLOSED', `${this.#name()} was closed`);
    const bytes = message === undefined ? undefined : messageBytes(message);
    if (peer.ended !== undefined) throw peer.ended;
    if (link.error !== undefined) throw link.error;
    if (!isLocalOpen())
      throw new WeftlineError('WL_CLOSED', `${this.#name()}: the registration of its memory was closed`);
    const start = performance.now();
    traceBegin('agent.post', this.#traced);
    inner.post(bytes);
    traceEnd('agent.post', this.#traced);
    traceBegin('agent.transfer', this.#traced, this.#label);
    const end = performance.now();
    const times = this.#times;
    times[POSTED_AT] = start;
    times[POST] = end - start;
    times[ALL_POSTS]! += end - start;
    this.#posts++;
    this.#isUnderWay = true;
    if (channel.hasSubscribers) this.#tell();
    if (inner.state === 'pending') this.#parts.onPost(this);
    else this.#end(end);
  }

  /** Resolves when the last post is done; fails with why it failed, with WL_TIMEOUT (it then goes on), with the signal's reason. */
  async wait(options?: WaitOptions): Promise<void> {
    if (options !== undefined) checkOptions(options, waitOptionNames, 'options of wait');
    if (!this.isSettled) await this.#parts.waiter.wait(this, options);
    this.#throwFailure();
  }

  /** The same, but blocks this thread: answers sooner, while its timers and sockets stand still. */
  waitBlocking(timeoutMs?: number): void {
    if (!this.isSettled) this.#parts.waiter.waitBlocking(this, timeoutMs);
    this.#throwFailure();
  }

  /** Ends a post that is under way early, as failed with WL_CLOSED, unless it ends by itself first. */
  cancel(): void {
    if (this.state === 'pending') this.#parts.inner.cancel();
  }

  /** Cancels and frees it. Idempotent. */
  close(): Promise<void> {
    this.#releasing ??= this.#parts.inner.release();
    return this.#releasing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Sizes, counts and times of its posts so far. */
  get telemetry(): TransferTelemetry {
    this.look();
    const { bytes, descriptors, parts } = this.#parts;
    const microseconds = (index: number): number => this.#times[index]! * 1000;
    return {
      bytes,
      descriptors,
      parts,
      posts: this.#posts,
      failures: this.#failures,
      postMicroseconds: microseconds(POST),
      transferMicroseconds: microseconds(TRANSFER),
      totalPostMicroseconds: microseconds(ALL_POSTS),
      totalTransferMicroseconds: microseconds(ALL_TRANSFERS),
    };
  }

  /** @internal Hot path. Notes the end of a post. True if none is under way. */
  look(): boolean {
    if (!this.#isUnderWay) return true;
    if (this.#parts.inner.state === 'pending') return false;
    this.#end(performance.now());
    return true;
  }

  /** @internal */
  describe(): string {
    return `${this.#name()} did not end`;
  }

  /** @internal */
  missing(): { readonly peers: readonly string[] } {
    return { peers: [this.peer] };
  }

  #end(now: number): void {
    this.#isUnderWay = false;
    traceEnd('agent.transfer', this.#traced, this.#label, this.#parts.bytes);
    const times = this.#times;
    const time = now - times[POSTED_AT]!;
    times[TRANSFER] = time;
    times[ALL_TRANSFERS]! += time;
    const { state, error } = this.#parts.inner;
    if (state === 'failed') {
      this.#failures++;
      countError(error);
    }
    if (this.#told === undefined) return;
    if (state === 'failed') this.#told.error = error;
    endChannelCall(channel, this.#told);
    this.#told = undefined;
  }

  #tell(): void {
    const { agent, operation, backend, bytes } = this.#parts;
    this.#told = { agent, peer: this.peer, operation, backend, bytes };
    beginChannelCall(channel, this.#told);
  }

  #throwFailure(): void {
    const { inner, peer } = this.#parts;
    if (inner.state === 'idle') throw new WeftlineError('WL_INVALID_ARGUMENT', `${this.#name()} was never posted`);
    if (inner.state !== 'failed') return;
    const cause = inner.error;
    throw new WeftlineError(cause?.code ?? 'WL_INTERNAL', `${this.#name()} failed: ${cause?.message}`, {
      details: { ...cause?.details, peer: peer.name, backend: this.backend, transfer: this.number },
      cause,
    });
  }

  #stillUnderWay(): WeftlineError {
    return new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `${this.#name()} is under way: wait for its end, or prepare another`,
      {
        details: { peer: this.peer, backend: this.backend, transfer: this.number },
      },
    );
  }

  #name(): string {
    const { agent, peer, operation, backend, number } = this.#parts;
    const preposition = operation === 'read' ? 'from' : 'to';
    return `Transfer ${number} (${operation} of agent ${agent} ${preposition} agent ${peer.name} by ${backend})`;
  }
}

// Finds the registered region that holds a range whole, in logarithmic time, however many regions there are.

/** A region of either side, for looking up addresses. */
interface AddressRange {
  readonly kind: MemoryKind;
  readonly address: number;
  readonly length: number;
}

/**
 * Regions may overlap. The one that was found last is tried first, then the one that begins last of those that hold the
 * range, and of those that begin alike the first of the list.
 */
export class RegionFinder<T extends AddressRange> {
  /** Regions that were found, each once, in the order in which they were found. */
  readonly found: T[] = [];
  /** The address at which the region that was found last begins. */
  begin = 0;
  #end = 0;
  #latest = -1;
  /** The regions by descending address. */
  readonly #sorted: readonly T[];
  readonly #begins: Float64Array;
  /** A tree of maxima over the ends: node n covers nodes 2n and 2n + 1, leaf i is node `leaves` + i. */
  readonly #ends: Float64Array;
  readonly #leaves: number;
  /** Indices in `found` by place in `#sorted`, or -1. */
  readonly #indices: Int32Array;

  constructor(regions: readonly T[], kind: MemoryKind) {
    const sorted = regions.filter((region) => region.kind === kind).toSorted((a, b) => b.address - a.address);
    this.#sorted = sorted;
    this.#begins = Float64Array.from(sorted, ({ address }) => address);
    this.#leaves = 2 ** Math.ceil(Math.log2(Math.max(1, sorted.length)));
    this.#ends = new Float64Array(2 * this.#leaves);
    for (const [place, { address, length }] of sorted.entries()) this.#ends[this.#leaves + place] = address + length;
    for (let node = this.#leaves - 1; node > 0; node--) {
      this.#ends[node] = Math.max(this.#ends[2 * node]!, this.#ends[2 * node + 1]!);
    }
    this.#indices = new Int32Array(sorted.length).fill(-1);
  }

  /** The index in `found` of a region that holds the range whole; -1 if none does. Both must be safe integers. */
  find(address: number, bytes: number): number {
    const end = address + bytes;
    if (this.#latest !== -1 && address >= this.begin && end <= this.#end) return this.#latest;
    const place = this.#placeOf(address, end);
    if (place === -1) return -1;
    const region = this.#sorted[place] as T;
    if (this.#indices[place] === -1) this.#indices[place] = this.found.push(region) - 1;
    this.#latest = this.#indices[place]!;
    this.begin = region.address;
    this.#end = region.address + region.length;
    return this.#latest;
  }

  /** The region that begins last of those that hold the address, for errors. */
  around(address: number): T | undefined {
    return this.#sorted[this.#placeOf(address, address + 1)];
  }

  #placeOf(address: number, end: number): number {
    let low = 0;
    for (let high = this.#begins.length; low < high;) {
      const middle = (low + high) >>> 1;
      if (this.#begins[middle]! <= address) high = middle;
      else low = middle + 1;
    }
    return this.#firstThatReaches(end, low);
  }

  /** The first place from `from` on whose region ends at `end` or later; -1 if there is none. */
  #firstThatReaches(end: number, from: number): number {
    const ends = this.#ends;
    const leaves = this.#leaves;
    if (from >= this.#begins.length) return -1;
    let node = leaves + from;
    // Up, until a subtree to the right of what was looked at reaches far enough.
    while (ends[node]! < end) {
      while (node % 2 === 1) node >>>= 1;
      if (node === 0) return -1;
      node++;
    }
    while (node < leaves) node = ends[2 * node]! >= end ? 2 * node : 2 * node + 1;
    return node - leaves;
  }
}

// Makes the table of parts of two lists of descriptors: finds the region of each entry, and joins neighbours.

interface PlanSide<T extends AddressRange> {
  readonly list: DescriptorList;
  readonly regions: readonly T[];
  /** The owner of the memory, for errors: "this agent" or "agent b". */
  readonly owner: string;
}

export function checkOperation(operation: TransferOperation): void {
  if (operation !== 'write' && operation !== 'read') throw invalidArgument('operation', operation, '"write" or "read"');
}

/**
 * Fails with WL_INVALID_ARGUMENT, having planned nothing: lists of different lengths, entries of different sizes, a range
 * that lies in no registered region or leaves it.
 */
export function planTransfer<L extends AddressRange, R extends AddressRange>(
  local: PlanSide<L>,
  remote: PlanSide<R>,
  { merge }: { readonly merge: boolean },
): PlannedTransfer<L, R> {
  const count = local.list.length;
  if (remote.list.length !== count)
    throw invalidArgument('remote.length', remote.list.length, `${count}, one per local descriptor`);
  if (count === 0) throw invalidArgument('local.length', 0, 'at least one descriptor');
  const here = new RegionFinder(local.regions, local.list.kind);
  const there = new RegionFinder(remote.regions, remote.list.kind);
  const table = PartTable.ofCount(count);
  let parts = 0;
  /** The last part: its regions, and where it ends in them. */
  let [lastFrom, lastTo, fromEnd, toEnd] = [-1, -1, 0, 0];
  // A million entries are common: the columns are not looked up anew for each.
  const { addresses: localAddresses, lengths: localLengths } = local.list;
  const { addresses: remoteAddresses, lengths: remoteLengths } = remote.list;
  const { localOffset, remoteOffset, bytes: partBytes, local: localRegion, remote: remoteRegion } = table;
  for (let index = 0; index < count; index++) {
    const bytes = localLengths[index]!;
    const remoteBytes = remoteLengths[index]!;
    if (remoteBytes !== bytes) {
      throw invalidArgument(
        `remote descriptor ${index}`,
        `${remoteBytes} bytes`,
        `${bytes} bytes, as its local one has`,
      );
    }
    const from = regionOf(here, local, index);
    const to = regionOf(there, remote, index);
    const begin = localAddresses[index]! - here.begin;
    const remoteBegin = remoteAddresses[index]! - there.begin;
    if (merge && from === lastFrom && to === lastTo && begin === fromEnd && remoteBegin === toEnd) {
      partBytes[parts - 1]! += bytes;
    } else {
      localRegion[parts] = from;
      remoteRegion[parts] = to;
      localOffset[parts] = begin;
      remoteOffset[parts] = remoteBegin;
      partBytes[parts] = bytes;
      parts++;
    }
    [lastFrom, lastTo, fromEnd, toEnd] = [from, to, begin + bytes, remoteBegin + bytes];
  }
  return { locals: here.found, remotes: there.found, parts: table.head(parts) };
}

/** Checks the entry again: the arrays of a list can be written to. */
function regionOf<T extends AddressRange>(
  finder: RegionFinder<T>,
  { list, owner }: PlanSide<T>,
  index: number,
): number {
  const address = list.addresses[index]!;
  const bytes = list.lengths[index]!;
  const why = whyNoRange(address, bytes);
  if (why !== undefined) throw invalidArgument(`descriptor ${index}`, [address, bytes], why);
  const region = finder.find(address, bytes);
  if (region !== -1) return region;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Descriptor ${index} (${bytes} bytes at 0x${address.toString(16)}, ${list.kind}) lies in no region that ${owner} has registered${leaving(finder.around(address), address, bytes)}`,
    { details: { index, address, bytes, kind: list.kind, owner } },
  );
}

/** A range that only leaves its region deserves to be told so. */
function leaving(region: AddressRange | undefined, wanted: number, bytes: number): string {
  if (region === undefined) return '';
  const over = wanted + bytes - region.address - region.length;
  return `: it leaves a region of ${region.length} bytes by ${over}`;
}
