// A channel: writes and signals of one flow on one engine, whose ends are counted in the order of posting. The user's side puts
// commands into the engine's ring and looks at counts; engine-channels.ts is the other. Hot path: no allocation.
import { decodeError, type EncodedError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import {
  CHANNEL_OPERATIONS,
  channelStates,
  engineCommandKinds,
  MAX_CHANNELS,
  REQUEST_SLOTS,
} from '../engine-commands.ts';
import type { PartTable } from '../part-table.ts';
import { checkHeld, EngineCommand } from './command-ring.ts';
import type { EngineGroup, LaneEnd } from './engine-group.ts';

/** What names memory of the peer. */
interface RemoteMemory {
  readonly remoteRegion: number;
  readonly remoteKey: number;
}

/** With at most so many operations under way a wait is for one answer, as with requests of a transport. */
const FEW_OPERATIONS = 4;
/**
 * Most operations of all channels, of the 65,536 requests that an engine has for everything; and what a channel of few may
 * always have under way, so that none is held up by a peer that is not its own. Of many it is less: as many again, together.
 */
const MAX_OF_ALL = 16_384;
const MIN_OF_CHANNEL = 16;

/** The channels of a transport's user. */
export class ChannelPool {
  /** Operations of all channels that are under way. */
  underWay = 0;
  readonly #group: EngineGroup;
  readonly #errors = new Map<number, EncodedError>();
  readonly #free: number[] = [];
  /** Channels that have ended, of which an engine may still have something. */
  readonly #leaving = new Set<Channel>();
  #next = 0;

  constructor(group: EngineGroup) {
    this.#group = group;
  }

  /** A number that no channel has. Fails with WL_CAPACITY. */
  take(): number {
    for (const channel of this.#leaving) {
      // ORDER: it remembers this, whatever the state of its number says from now on.
      if (!channel.isOver) continue;
      this.#leaving.delete(channel);
      this.#free.push(channel.number);
    }
    const number = this.#free.pop() ?? this.#next;
    if (number === MAX_CHANNELS) {
      throw new WeftlineError('WL_CAPACITY', `A transport has at most ${MAX_CHANNELS} channels: close some first`, {
        details: { allowed: MAX_CHANNELS },
      });
    }
    if (number === this.#next) this.#next++;
    this.#errors.delete(number);
    this.#group.requests.openChannel(number);
    return number;
  }

  /** What each channel may always have under way. */
  get leastOfChannel(): number {
    const open = this.#next - this.#free.length - this.#leaving.size;
    return Math.max(1, Math.min(MIN_OF_CHANNEL, Math.floor(MAX_OF_ALL / open)));
  }

  /** True if a wait is for one answer, not for one of a stream of ends. */
  get areFew(): boolean {
    return this.underWay <= FEW_OPERATIONS;
  }

  giveBack(channel: Channel): void {
    this.#leaving.add(channel);
  }

  /** An engine tells why a channel has failed, before its state shows it. */
  failed(number: number, error: EncodedError): void {
    this.#errors.set(number, error);
  }

  errorOf(number: number): WeftlineError {
    // The newest is that of the channel which has the number now.
    this.#group.readEvents();
    const error = this.#errors.get(number);
    return error === undefined
      ? new WeftlineError('WL_INTERNAL', 'A channel failed without a reason')
      : decodeError(error);
  }
}

/** What a connection gives to a channel of its own. */
export interface ChannelParts {
  readonly group: EngineGroup;
  readonly pool: ChannelPool;
  readonly end: LaneEnd;
  readonly flow: number;
  readonly connection: {
    /** Why it takes nothing more; undefined while it does. */
    readonly error: WeftlineError | undefined;
    /** The peer has said that it closes, and may still acknowledge what has gone. */
    readonly isLeaving: boolean;
  };
}

/** The user's side. */
export class Channel {
  /** Operations so far, and how many of them, counted from the first, lie at the peer. */
  posted = 0;
  delivered = 0;
  /** What engines call it, until it has ended and is quiet. */
  readonly number: number;
  #error: WeftlineError | undefined;
  #isOver = false;
  readonly #parts: ChannelParts;
  readonly #command: EngineCommand = new EngineCommand();
  #hasEnded = false;

  constructor(parts: ChannelParts) {
    const { pool, end, flow } = parts;
    this.#parts = parts;
    this.number = pool.take();
    const command = this.#command;
    command.slot = REQUEST_SLOTS + this.number;
    command.connection = end.number;
    command.flow = flow;
  }

  /** Why nothing can be posted any more: what has ended the channel, or its connection. */
  get error(): WeftlineError | undefined {
    return this.#error ?? this.#parts.connection.error;
  }

  /** Fails with the reason for which nothing can be posted any more. */
  get hasRoom(): boolean {
    const { group, end, pool, connection } = this.#parts;
    const why = this.error ?? group.failure;
    if (why !== undefined) throw why;
    const underWay = this.posted - this.delivered;
    if (underWay >= CHANNEL_OPERATIONS || (pool.underWay >= MAX_OF_ALL && underWay >= pool.leastOfChannel))
      return false;
    return !connection.isLeaving && group.links[end.engine]!.ring.hasRoom;
  }

  /** Writes `bytes` bytes of a region into one of the peer. As with all posts, the caller has seen that there is room. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per write
  write(
    region: number,
    offset: number,
    { remoteRegion, remoteKey }: RemoteMemory,
    remoteOffset: number,
    bytes: number,
  ): void {
    checkHeld('offset', offset, Number.MAX_SAFE_INTEGER);
    checkHeld('remoteOffset', remoteOffset, Number.MAX_SAFE_INTEGER);
    checkHeld('bytes', bytes, Number.MAX_SAFE_INTEGER);
    const command = this.#command;
    command.kind = engineCommandKinds.write;
    command.region = region;
    command.offset = offset;
    command.bytes = bytes;
    command.remoteRegion = remoteRegion;
    command.remoteKey = remoteKey;
    command.remoteOffset = remoteOffset;
    this.#post();
  }

  /** Adds to the 64-bit cell at `remoteOffset`, behind the data of everything before it. */
  add({ remoteRegion, remoteKey }: RemoteMemory, remoteOffset: number, add: number): void {
    checkHeld('remoteOffset', remoteOffset, Number.MAX_SAFE_INTEGER);
    checkHeld('add', add, Number.MAX_SAFE_INTEGER);
    const command = this.#command;
    command.kind = engineCommandKinds.signal;
    command.remoteRegion = remoteRegion;
    command.remoteKey = remoteKey;
    command.remoteOffset = remoteOffset;
    command.add = add;
    this.#post();
  }

  /** Tells the engine of a table of ranges, which this side fills in again and again, from one region into one of the peer. */
  async shareTable(table: PartTable, region: number, remote: RemoteMemory): Promise<SharedTable> {
    if (this.error !== undefined) throw this.error;
    const { group, end } = this.#parts;
    const plan = { ...remote, region, connection: end.number, parts: table.buffer };
    return { number: await group.call(end.engine, 'shareRanges', plan), count: table.count };
  }

  /** Nothing of the table may be under way. */
  async unshareTable({ number }: SharedTable): Promise<void> {
    const { group, end, connection } = this.#parts;
    if (connection.error === undefined) await group.call(end.engine, 'unshareRanges', number);
  }

  /** Writes ranges of a table as one operation. Their entries must stay as they are until it is delivered. */
  writeRanges(table: SharedTable, first: number, count: number): void {
    const most = table.count;
    checkNumber('first', first, most, `a number of a part, up to ${most}`);
    checkNumber('count', count, most - first, `up to ${most - first}, which the table has from part ${first} on`);
    const command = this.#command;
    command.kind = engineCommandKinds.ranges;
    command.region = table.number;
    command.offset = first;
    command.bytes = count;
    this.#post();
  }

  /** Looks at what has ended. True if something was delivered or the channel has failed. */
  look(): boolean {
    if (this.#error !== undefined || this.delivered === this.posted) return false;
    const { pool, group } = this.#parts;
    // ORDER: the state first: what was delivered before the failure is counted by then.
    const state = group.requests.channelState(this.number);
    const ended = (group.requests.channelDelivered(this.number) - this.delivered) | 0;
    this.delivered += ended;
    pool.underWay -= ended;
    if (state !== channelStates.failed) return ended > 0;
    this.end(pool.errorOf(this.number));
    return true;
  }

  /** Nothing can be posted any more, and what is under way is withdrawn. Idempotent. */
  end(error: WeftlineError | undefined): void {
    this.#error ??= error;
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    const { pool, group, end } = this.#parts;
    pool.underWay -= this.posted - this.delivered;
    pool.giveBack(this);
    if (this.posted === 0) group.requests.setChannel(this.number, channelStates.over);
    // An engine that has ended uses no memory.
    else group.call(end.engine, 'closeChannel', this.number).catch(() => {});
  }

  /** True once nothing of a channel that has ended reads memory of this side any more. */
  get isQuiet(): boolean {
    return this.delivered === this.posted || this.isOver;
  }

  /** The engine has nothing of it any more. */
  get isOver(): boolean {
    const { group } = this.#parts;
    this.#isOver ||= group.failure !== undefined || group.requests.channelState(this.number) === channelStates.over;
    return this.#isOver;
  }

  #post(): void {
    const { group, end, pool } = this.#parts;
    group.put(end.engine, this.#command);
    this.posted++;
    pool.underWay++;
  }
}

/** What an engine calls a table of ranges, and how many parts it has. */
export interface SharedTable {
  readonly number: number;
  readonly count: number;
}

function checkNumber(name: string, value: number, most: number, expected: string): void {
  if (!(Number.isInteger(value) && value >= 0 && value <= most)) throw invalidArgument(name, value, expected);
}
