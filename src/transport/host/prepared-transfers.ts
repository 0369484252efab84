// Transfers of many ranges that are described once and posted with one command; what follows the data is sent by the
// engine's own thread. Hot path: no allocation.
import { type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import { REQUEST_SLOTS } from '../engine-commands.ts';
import type { Region } from '../engine/region.ts';
import type {
  EngineHandle,
  RemoteOptions,
  ScatterOptions,
  SignalOptions,
  TransportConnection,
} from '../engine/transport-engine.ts';
import { PartTable } from '../part-table.ts';
import { MAX_GATHERED_BYTES, RangeList } from '../send/range-list.ts';

/** Plain data, so that it can cross threads. */
export interface TransferPlan {
  readonly connection: number;
  readonly operation: 'read' | 'write';
  readonly flow: number;
  /** Buffer of a PartTable, whose indices are into these lists. */
  readonly parts: SharedArrayBuffer;
  /** The table is written anew before each post. */
  readonly isBySelection: boolean;
  readonly regions: readonly number[];
  readonly remoteRegions: readonly number[];
  readonly remoteKeys: readonly number[];
  /** That of `openLine` which carries the messages of posts. */
  readonly line: number;
}

/**
 * Carries messages in the order in which their transfers end: into a ring of a peer's region, followed by a signal that
 * adds their bytes to a counter. Nothing here keeps the ring from overflowing: the poster counts.
 */
export interface LinePlan {
  readonly connection: number;
  /** No other requests should use it. */
  readonly flow: number;
  /** Region of this side where messages wait. */
  readonly region: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;
  /** Offsets of the counter and the ring in the peer's region. */
  readonly counter: number;
  readonly ring: number;
  readonly ringBytes: number;
}

/** Place in the line's region on this side. There is no message if `bytes` is 0. */
export interface TransferMessage {
  offset: number;
  bytes: number;
}

interface Line {
  readonly plan: LinePlan;
  /** Place of the next message in the ring. */
  position: number;
}

interface TransferHost {
  connection(number: number): TransportConnection | undefined;
  region(number: number): Region | undefined;
  /** The request's end is to be reported under the slot. */
  follow(handle: EngineHandle, slot: number): void;
  done(slot: number, bytes: number): void;
  failed(slot: number, error: EncodedError): void;
  /** True if no other engine has a part of the slot's request that has not ended. */
  isAlone(slot: number): boolean;
  /** A part on another engine has failed. */
  hasFailedElsewhere(slot: number): boolean;
}

/** A plan, with its runs of small ranges that go together. */
interface Prepared extends TransferPlan {
  readonly table: PartTable;
  /** Scatters in the order of their first rows, and how many of the list there are. */
  readonly scatters: RangeList[];
  scatterCount: number;
}

interface Post {
  plan: Prepared | undefined;
  slot: number;
  /** Queue of its connection. */
  queue: PostQueue | undefined;
  /** The row that is posted next, its ranges that are posted already, how many scatters were posted, and requests that have not ended. */
  row: number;
  within: number;
  scatters: number;
  pending: number;
  bytes: number;
  error: EncodedError | undefined;
  messageSent: boolean;
  /** It stands in the list of those whose messages wait. */
  isUnsent: boolean;
  message: TransferMessage;
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

const nowhere = { remoteRegion: 0, remoteKey: 0, remoteOffset: 0 };
const NO_REGION: Region = { id: 0, key: 0, bytes: new Uint8Array(), address: 0, remote: { read: false, write: false } };
const NO_RANGES = new RangeList({
  sources: new Float64Array(1),
  targets: new Float64Array(1),
  lengths: new Float64Array(1),
});

export class PreparedTransfers {
  readonly #host: TransferHost;
  /** Numbers are not used again: who forgets a plan may not have heard yet that its connection ended, and the plan with it. */
  readonly #plans = new Map<number, Prepared>();
  #nextPlan = 0;
  readonly #lines: (Line | undefined)[] = [];
  /** Posts by slot; objects are used again. */
  readonly #posts: (Post | undefined)[] = Array.from({ length: REQUEST_SLOTS }, () => undefined);
  readonly #turns = new PostTurns();
  /** Transfers whose ranges are where they belong, while ranges on other engines are not: their messages wait. */
  readonly #unsent: Post[] = [];
  /** What is being posted: the engine reads these during its calls, and they are filled in again for the next. */
  readonly #part: Writable<RemoteOptions> = { region: NO_REGION, flow: 0, offset: 0, bytes: 0, ...nowhere };
  readonly #scattered: Writable<ScatterOptions> = { region: NO_REGION, ranges: NO_RANGES, flow: 0, ...nowhere };
  readonly #cell: Writable<SignalOptions> = { flow: 0, add: 0, ...nowhere };

  constructor(host: TransferHost) {
    this.#host = host;
  }

  prepare(plan: TransferPlan): number {
    const number = this.#nextPlan++;
    const prepared: Prepared = { ...plan, table: PartTable.over(plan.parts), scatters: [], scatterCount: 0 };
    if (!plan.isBySelection) findScatters(prepared, MAX_GATHERED_BYTES);
    this.#plans.set(number, prepared);
    return number;
  }

  forget(number: number): void {
    this.#plans.delete(number);
  }

  openLine(plan: LinePlan): number {
    const free = this.#lines.indexOf(undefined);
    const number = free === -1 ? this.#lines.length : free;
    this.#lines[number] = { plan, position: 0 };
    return number;
  }

  /** True if the slot's request is a transfer that has not ended. */
  has(slot: number): boolean {
    return this.#posts[slot]?.plan !== undefined;
  }

  post(slot: number, number: number, message: TransferMessage): void {
    const plan = this.#plans.get(number);
    if (plan === undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    const post = (this.#posts[slot] ??= emptyPost(slot));
    post.plan = plan;
    post.row = 0;
    post.within = 0;
    post.scatters = 0;
    post.pending = 0;
    post.bytes = 0;
    post.error = undefined;
    post.messageSent = false;
    post.message.offset = message.offset;
    post.message.bytes = message.bytes;
    try {
      if (plan.isBySelection) findScatters(plan, MAX_GATHERED_BYTES);
    } catch (error) {
      post.error = encodeError(error);
    }
    const queue = this.#turns.of(plan.connection);
    post.queue = queue;
    queue.waiting.push(post);
    this.#postWaiting(queue);
  }

  /** A request that was followed has ended; `error` is undefined if it is done. */
  ended(slot: number, error: EncodedError | undefined): void {
    const post = this.#posts[slot] as Post;
    const queue = post.queue as PostQueue;
    this.#turns.ended(queue);
    post.pending--;
    post.error ??= error;
    this.#advance(post);
    this.#postWaiting(queue);
  }

  /**
   * Nothing more is posted for the transfer; its requests are the caller's to cancel. False if its message is under way
   * already: then it ends as it would have.
   */
  cancel(slot: number): boolean {
    const post = this.#posts[slot];
    if (post?.plan === undefined || post.messageSent) return false;
    post.error ??= encodeError(new WeftlineError('WL_CLOSED', 'The transfer was cancelled'));
    this.#advance(post);
    return true;
  }

  /** Ranges on other engines have ended: messages that waited for them go. */
  resume(): void {
    for (const post of this.#unsent.splice(0)) {
      post.isUnsent = false;
      this.#advance(post);
    }
  }

  /** Fails the transfers of a connection that have requests no more. */
  end(connection: number, error: EncodedError): void {
    for (const [number, line] of this.#lines.entries()) {
      if (line?.plan.connection === connection) this.#lines[number] = undefined;
    }
    for (const [number, plan] of this.#plans) if (plan.connection === connection) this.#plans.delete(number);
    for (const post of this.#posts) {
      if (post?.plan?.connection !== connection) continue;
      post.error ??= error;
      this.#advance(post);
    }
  }

  #postWaiting(queue: PostQueue): void {
    const turns = this.#turns;
    while (queue.waiting.length > 0) {
      const post = queue.waiting[0] as Post;
      const plan = post.plan as Prepared;
      if (post.row === plan.table.count || post.error !== undefined) {
        turns.remove(queue, post);
        this.#advance(post);
      } else {
        if (!turns.hasRoom(queue)) return;
        if (!turns.goesOn(queue)) continue;
        const scatter = post.scatters < plan.scatterCount ? plan.scatters[post.scatters] : undefined;
        if (scatter?.first === post.row) this.#postScatter(post, plan, scatter);
        else this.#postPart(post, plan);
      }
    }
  }

  #postPart(post: Post, plan: Prepared): void {
    const { row, within } = post;
    const { table } = plan;
    const part = this.#part;
    const remote = table.remote[row]!;
    part.offset = table.localOffset[row]! + within * table.localStride[row]!;
    part.remoteRegion = plan.remoteRegions[remote]!;
    part.remoteKey = plan.remoteKeys[remote]!;
    part.remoteOffset = table.remoteOffset[row]! + within * table.remoteStride[row]!;
    part.bytes = table.bytes[row]!;
    post.within++;
    if (post.within === table.ranges[row]) {
      post.row++;
      post.within = 0;
    }
    post.bytes += part.bytes;
    this.#request(post, plan, plan.regions[table.local[row]!]!);
  }

  #postScatter(post: Post, plan: Prepared, ranges: RangeList): void {
    const { connection: number, flow, table, operation } = plan;
    const remote = table.remote[post.row]!;
    const region = plan.regions[table.local[post.row]!]!;
    post.row = ranges.end;
    post.scatters++;
    post.bytes += ranges.bytes;
    const scattered = this.#scattered;
    try {
      scattered.region = this.#region(region);
      scattered.ranges = ranges;
      scattered.remoteRegion = plan.remoteRegions[remote]!;
      scattered.remoteKey = plan.remoteKeys[remote]!;
      scattered.flow = flow;
      const connection = this.#connection(number);
      this.#follow(post, operation === 'read' ? connection.gather(scattered) : connection.scatter(scattered));
    } catch (error) {
      post.error ??= encodeError(error);
    }
  }

  #connection(number: number): TransportConnection {
    const connection = this.#host.connection(number);
    if (connection === undefined) throw new WeftlineError('WL_CLOSED', 'The connection was closed');
    return connection;
  }

  #region(number: number): Region {
    const region = this.#host.region(number);
    if (region === undefined) throw new WeftlineError('WL_CLOSED', 'The region was closed');
    return region;
  }

  #request(post: Post, { connection: number, flow, operation }: Carrier, regionNumber: number): void {
    const part = this.#part;
    try {
      const connection = this.#connection(number);
      part.region = this.#region(regionNumber);
      part.flow = flow;
      this.#follow(post, operation === 'read' ? connection.read(part) : connection.write(part));
    } catch (error) {
      post.error ??= encodeError(error);
    }
  }

  #follow(post: Post, handle: EngineHandle): void {
    post.pending++;
    this.#turns.began(post.queue as PostQueue);
    this.#host.follow(handle, post.slot);
  }

  /** ORDER: the message only when every range is where it belongs, those on other engines as well, and the end only when the message is. */
  #advance(post: Post): void {
    const { plan, message } = post;
    if (plan === undefined || post.pending > 0) return;
    if (post.error === undefined) {
      if (post.row < plan.table.count) return;
      if (message.bytes > 0 && !post.messageSent) {
        if (!this.#host.isAlone(post.slot)) {
          if (!post.isUnsent) this.#unsent.push(post);
          post.isUnsent = true;
          return;
        }
        if (!this.#host.hasFailedElsewhere(post.slot)) {
          post.messageSent = true;
          this.#sendMessage(post, plan);
          if (post.pending > 0) return;
        }
      }
    }
    const { error, queue } = post;
    if (queue !== undefined) this.#turns.remove(queue, post);
    post.plan = undefined;
    if (error === undefined) this.#host.done(post.slot, post.bytes);
    else this.#host.failed(post.slot, error);
  }

  #sendMessage(post: Post, { line: number }: TransferPlan): void {
    const line = this.#lines[number];
    if (line === undefined) {
      post.error = encodeError(new WeftlineError('WL_CLOSED', 'The connection was closed'));
      return;
    }
    const { plan, position } = line;
    const { offset, bytes } = post.message;
    const first = Math.min(bytes, plan.ringBytes - position);
    this.#sendRun(post, plan, offset, position, first);
    if (first < bytes) this.#sendRun(post, plan, offset + first, 0, bytes - first);
    line.position = (position + bytes) % plan.ringBytes;
    if (post.error !== undefined) return;
    const cell = this.#cell;
    try {
      cell.flow = plan.flow;
      cell.remoteRegion = plan.remoteRegion;
      cell.remoteKey = plan.remoteKey;
      cell.remoteOffset = plan.counter;
      cell.add = bytes;
      this.#follow(post, this.#connection(plan.connection).signal(cell));
    } catch (error) {
      post.error ??= encodeError(error);
    }
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per message
  #sendRun(post: Post, plan: LinePlan, offset: number, position: number, bytes: number): void {
    const part = this.#part;
    part.offset = offset;
    part.remoteRegion = plan.remoteRegion;
    part.remoteKey = plan.remoteKey;
    part.remoteOffset = plan.ring + position;
    part.bytes = bytes;
    this.#request(post, plan, plan.region);
  }
}

/** What a request goes through; a line writes. */
interface Carrier {
  readonly connection: number;
  readonly flow: number;
  readonly operation?: 'read' | 'write';
}

function emptyPost(slot: number): Post {
  return {
    plan: undefined,
    slot,
    queue: undefined,
    row: 0,
    within: 0,
    scatters: 0,
    pending: 0,
    bytes: 0,
    error: undefined,
    messageSent: false,
    isUnsent: false,
    message: { offset: 0, bytes: 0 },
  };
}

/** Consecutive rows of at least two ranges of at most `longest` bytes between the same two regions, over the table's columns. */
function findScatters(plan: Prepared, longest: number): void {
  const { table, scatters } = plan;
  plan.scatterCount = 0;
  const { count, bytes, local, remote, ranges } = table;
  const columns = { sources: table.localOffset, targets: table.remoteOffset, lengths: bytes };
  const repeats = { ranges, sourceStrides: table.localStride, targetStrides: table.remoteStride };
  for (let first = 0; first < count;) {
    let end = first;
    let isRepeated = false;
    while (end < count && bytes[end]! <= longest && local[end] === local[first] && remote[end] === remote[first]) {
      isRepeated ||= ranges[end]! > 1;
      end++;
    }
    if (end - first > 1 || isRepeated) {
      const list = scatters[plan.scatterCount];
      const own = isRepeated ? repeats : undefined;
      if (list === undefined) scatters.push(new RangeList(columns, first, end, own));
      else list.cover(columns, first, end, own);
      plan.scatterCount++;
    }
    first = Math.max(end, first + 1);
  }
}

/** Ranges of a connection that are under way at a time. */
const MAX_OF_CONNECTION = 8192;
/** Most ranges of all connections under way. The engine has 2^16 requests for everything. */
const MAX_OF_ALL = 32_768;
/** A connection may always have so many, whatever the others have: as many as 1024 peers find room for. */
const MIN_OF_CONNECTION = 16;
/** Ranges that a transfer posts before it is the next one's turn. */
const TURN = 64;

/** The transfers of a connection with ranges that are not posted yet; the first has the turn. */
interface PostQueue {
  readonly waiting: Post[];
  /** Ranges that it may still post. */
  left: number;
  /** Ranges that are under way. */
  underWay: number;
}

/**
 * Decides which prepared transfers of an engine may post ranges now: each connection has its share of the engine's requests,
 * and its transfers take turns, so that none waits for a peer that is not its own, nor for the whole of a long one.
 */
class PostTurns {
  /** Queues by connection. */
  readonly #queues: (PostQueue | undefined)[] = [];
  #underWay = 0;

  of(connection: number): PostQueue {
    return (this.#queues[connection] ??= { waiting: [], left: TURN, underWay: 0 });
  }

  /** True if a further range may be posted; if not, one of the connection is under way, after whose end it is asked again. */
  hasRoom({ underWay }: PostQueue): boolean {
    return underWay < MIN_OF_CONNECTION || (underWay < MAX_OF_CONNECTION && this.#underWay < MAX_OF_ALL);
  }

  began(queue: PostQueue): void {
    queue.underWay++;
    this.#underWay++;
  }

  ended(queue: PostQueue): void {
    queue.underWay--;
    this.#underWay--;
  }

  /** The one with the turn posts a range. False if its turn is over: then another has it. */
  goesOn(queue: PostQueue): boolean {
    if (queue.left > 0) {
      queue.left--;
      return true;
    }
    queue.waiting.push(queue.waiting.shift() as Post);
    queue.left = TURN;
    return false;
  }

  /** It has nothing more to post. */
  remove(queue: PostQueue, post: Post): void {
    const at = queue.waiting.indexOf(post);
    if (at < 0) return;
    queue.waiting.splice(at, 1);
    if (at === 0) queue.left = TURN;
  }
}
