// The engine's side of channels: what each has under way and how far it is delivered, and the tables of ranges that they
// write. Hot path: no allocation but for more operations under way than ever before.
import { type EncodedError, encodeError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import {
  CHANNEL_OPERATIONS,
  channelStates,
  engineCommandKinds,
  MAX_CHANNELS,
  REQUEST_SLOTS,
} from '../engine-commands.ts';
import type { Region } from '../engine/region.ts';
import type { EngineHandle, ScatterOptions, TransportConnection } from '../engine/transport-engine.ts';
import { PartTable } from '../part-table.ts';
import { RangeList } from '../send/range-list.ts';
import type { EngineCommand } from './command-ring.ts';
import type { SharedRequests } from './shared-requests.ts';

const MASK = CHANNEL_OPERATIONS - 1;

/** What stands for a handle if there is nothing to write. */
const NOTHING: EngineHandle = -1;

const outcomes = { pending: 0, done: 1, failed: 2 } as const;

interface ChannelsHost {
  readonly requests: SharedRequests;
  /** Fails with the reason for which the connection takes nothing more. */
  readonly connection: (number: number) => TransportConnection;
  readonly find: (number: number) => TransportConnection | undefined;
  readonly region: (number: number) => Region | undefined;
  /** The request belongs to the operation of that name: `ended` is to be told of its end. */
  readonly follow: (handle: EngineHandle, name: number) => void;
  /** Hears why a channel has failed, before its state shows it. */
  readonly onFailure: (channel: number, error: EncodedError) => void;
}

class EngineChannel {
  readonly connection: number;
  /** Operations that were taken, and those of them that are delivered; both wrap. */
  taken = 0;
  delivered = 0;
  /** Operations whose requests have not ended. */
  pending = 0;
  isClosing = false;
  hasFailed = false;
  readonly handles: Float64Array = new Float64Array(CHANNEL_OPERATIONS);
  readonly outcomes: Uint8Array = new Uint8Array(CHANNEL_OPERATIONS);
  /** Ranges that operations write, by their places; used again. */
  readonly ranges: (RangeList | undefined)[] = [];
  /** Why operations failed, by their places. */
  readonly errors = new Map<number, EncodedError>();

  constructor(connection: number) {
    this.connection = connection;
  }
}

export class EngineChannels {
  readonly tables = new RangeTables();
  readonly #host: ChannelsHost;
  readonly #channels: (EngineChannel | undefined)[] = [];

  constructor(host: ChannelsHost) {
    this.#host = host;
  }

  /** Carries out a command of a channel as its next operation. */
  carryOut(command: EngineCommand): void {
    const number = command.slot - REQUEST_SLOTS;
    // A broken program's: there is no such channel, or no place for one more end. There is nobody to tell.
    if (number >= MAX_CHANNELS) return;
    const channel = (this.#channels[number] ??= new EngineChannel(command.connection));
    if (((channel.taken - channel.delivered) | 0) === CHANNEL_OPERATIONS) return;
    const place = channel.taken & MASK;
    channel.taken = (channel.taken + 1) | 0;
    channel.pending++;
    channel.outcomes[place] = outcomes.pending;
    channel.handles[place] = NOTHING;
    try {
      // What follows, a signal among it, must not tell the peer of bytes that never went.
      if (channel.errors.size > 0) return this.#end(number, channel, place, [...channel.errors.values()][0]);
      const handle = this.#post(channel, place, command);
      if (handle === NOTHING) return this.#end(number, channel, place, undefined);
      channel.handles[place] = handle;
      this.#host.follow(handle, REQUEST_SLOTS + number * CHANNEL_OPERATIONS + place);
    } catch (error) {
      this.#end(number, channel, place, encodeError(error));
    }
  }

  /** The request of an operation has ended. */
  ended(name: number, error: EncodedError | undefined): void {
    const number = Math.floor((name - REQUEST_SLOTS) / CHANNEL_OPERATIONS);
    const channel = this.#channels[number];
    if (channel?.outcomes[name & MASK] === outcomes.pending) this.#end(number, channel, name & MASK, error);
  }

  /** The connection of an operation that has not ended. */
  connectionOf(name: number): number | undefined {
    return this.#channels[Math.floor((name - REQUEST_SLOTS) / CHANNEL_OPERATIONS)]?.connection;
  }

  /** Withdraws all that the channel has under way; its state is `over` when all of it has ended. */
  close(number: number): void {
    const channel = this.#channels[number];
    if (channel === undefined) return;
    channel.isClosing = true;
    // Requests of one that has ended have ended, or will be told of.
    const connection = this.#host.find(channel.connection);
    for (let at = channel.delivered; at !== channel.taken; at = (at + 1) | 0) {
      const place = at & MASK;
      const handle = channel.handles[place]!;
      if (channel.outcomes[place] === outcomes.pending && handle !== NOTHING) connection?.cancel(handle);
    }
    this.#closeIfQuiet(number, channel);
  }

  /** A connection has ended, and nothing of its requests is left. */
  endConnection(connection: number, error: EncodedError): void {
    for (const [number, channel] of this.#channels.entries()) {
      if (channel?.connection !== connection) continue;
      for (let at = channel.delivered; at !== channel.taken; at = (at + 1) | 0) {
        if (channel.outcomes[at & MASK] === outcomes.pending) this.#end(number, channel, at & MASK, error);
      }
    }
    this.tables.end(connection);
  }

  #post(channel: EngineChannel, place: number, command: EngineCommand): EngineHandle {
    const connection = this.#host.connection(command.connection);
    const { kind } = command;
    if (kind === engineCommandKinds.ranges) {
      const list = (channel.ranges[place] ??= new RangeList());
      const scatter = this.tables.cover(list, command, this.#host.region);
      return scatter === undefined ? NOTHING : connection.scatter(scatter);
    }
    if (kind !== engineCommandKinds.write && kind !== engineCommandKinds.signal) {
      throw invalidArgument('kind', kind, 'that of an operation of channels');
    }
    return postRequest(command, connection, this.#host.region);
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per operation
  #end(number: number, channel: EngineChannel, place: number, error: EncodedError | undefined): void {
    channel.pending--;
    channel.outcomes[place] = error === undefined ? outcomes.done : outcomes.failed;
    if (error !== undefined) channel.errors.set(place, error);
    this.#count(number, channel);
    this.#closeIfQuiet(number, channel);
  }

  /** Counts what is delivered in order, up to the first that failed. */
  #count(number: number, channel: EngineChannel): void {
    if (channel.hasFailed || channel.isClosing) return;
    const { requests, onFailure } = this.#host;
    const before = channel.delivered;
    while (channel.delivered !== channel.taken && channel.outcomes[channel.delivered & MASK] === outcomes.done) {
      channel.delivered = (channel.delivered + 1) | 0;
    }
    if (channel.delivered !== before) requests.deliverOfChannel(number, (channel.delivered - before) | 0);
    if (channel.delivered === channel.taken) return;
    const place = channel.delivered & MASK;
    if (channel.outcomes[place] !== outcomes.failed) return;
    channel.hasFailed = true;
    // ORDER: the reason first, so that a thread that sees the failure finds it.
    onFailure(number, channel.errors.get(place)!);
    requests.setChannel(number, channelStates.failed);
  }

  #closeIfQuiet(number: number, channel: EngineChannel): void {
    if (!channel.isClosing || channel.pending > 0 || this.#channels[number] !== channel) return;
    this.#channels[number] = undefined;
    this.#host.requests.setChannel(number, channelStates.over);
  }
}

/** Makes a request of a command. Fails with WL_CLOSED for a region that is gone, and as the connection does. */
export function postRequest(
  command: EngineCommand,
  connection: TransportConnection,
  findRegion: ChannelsHost['region'],
): EngineHandle {
  const { kind, flow, offset, bytes, add, partOffset, remoteRegion, remoteKey, remoteOffset } = command;
  if (kind === engineCommandKinds.flush) return connection.flush(flow);
  if (kind === engineCommandKinds.signal)
    return connection.signal({ flow, remoteRegion, remoteKey, remoteOffset, add });
  const region = findRegion(command.region);
  if (region === undefined) throw new WeftlineError('WL_CLOSED', 'The region was closed');
  if (kind === engineCommandKinds.send) {
    return connection.postSend({
      region,
      offset,
      bytes,
      flow,
      whole: add === bytes ? undefined : { partOffset, bytes: add },
    });
  }
  if (kind === engineCommandKinds.receive) return connection.postReceive({ region, offset, bytes, flow });
  const range = { region, offset, bytes, flow, remoteRegion, remoteKey, remoteOffset };
  if (kind === engineCommandKinds.write) return connection.write(range);
  if (kind === engineCommandKinds.read) return connection.read(range);
  throw invalidArgument('kind', kind, 'one of engineCommandKinds');
}

/** Plain data, so that it can cross threads. */
export interface RangesPlan {
  readonly connection: number;
  /** Buffer of a PartTable, whose indices of regions mean nothing here. */
  readonly parts: SharedArrayBuffer;
  readonly region: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;
}

interface RangeTable extends RangesPlan {
  readonly columns: Parameters<RangeList['cover']>[0];
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

const NO_REGION: Region = { id: 0, key: 0, bytes: new Uint8Array(), address: 0, remote: { read: false, write: false } };

/** Tables of ranges that the user's thread fills in: each write names some of their entries. */
class RangeTables {
  /** Numbers are not used again: who forgets a table may not have heard yet that its connection ended, and the table with it. */
  readonly #tables = new Map<number, RangeTable>();
  #nextTable = 0;
  /** The engine reads it during its call. */
  readonly #scatter: Writable<ScatterOptions> = {
    region: NO_REGION,
    ranges: new RangeList(),
    flow: 0,
    remoteRegion: 0,
    remoteKey: 0,
  };

  share(plan: RangesPlan): number {
    const number = this.#nextTable++;
    const { localOffset: sources, remoteOffset: targets, bytes: lengths } = PartTable.over(plan.parts);
    this.#tables.set(number, { ...plan, columns: { sources, targets, lengths } });
    return number;
  }

  forget(number: number): void {
    this.#tables.delete(number);
  }

  /** A connection has ended. */
  end(connection: number): void {
    for (const [number, table] of this.#tables) if (table.connection === connection) this.#tables.delete(number);
  }

  /** What the command writes, by a list that is free; undefined if it is no byte. Fails with WL_CLOSED, WL_INVALID_ARGUMENT. */
  cover(
    list: RangeList,
    { region: number, offset, bytes, flow }: EngineCommand,
    findRegion: (number: number) => Region | undefined,
  ): ScatterOptions | undefined {
    const shared = this.#tables.get(number);
    if (shared === undefined) throw new WeftlineError('WL_CLOSED', 'The table of ranges was released');
    const region = findRegion(shared.region);
    if (region === undefined) throw new WeftlineError('WL_CLOSED', 'The region was closed');
    if (bytes === 0) return undefined;
    list.cover(shared.columns, offset, offset + bytes);
    if (list.bytes === 0) return undefined;
    const scatter = this.#scatter;
    scatter.region = region;
    scatter.ranges = list;
    scatter.flow = flow;
    scatter.remoteRegion = shared.remoteRegion;
    scatter.remoteKey = shared.remoteKey;
    return scatter;
  }
}
