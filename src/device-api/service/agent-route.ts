// The commands of one request go over a channel of the agent, one route for each of its remote ranges. Hot path.
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../../agent/backend.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CommandRoute } from './command-server.ts';

const SLOTS = 512;

/** Stores of 8 bytes over a channel that only puts registered memory: the bytes wait there until they are delivered. */
export class StagedStores {
  /** Bytes of the registered memory where they wait. */
  static readonly bytes: number = SLOTS * 8;
  readonly #channel: BackendChannel;
  readonly #words: Uint32Array;
  /** What the channel will have delivered when a slot is free, by slot. */
  readonly #sequences = new Float64Array(SLOTS);
  readonly #local: BackendRegion;
  /** Made with the first put. */
  #place: PutPlace | undefined;
  #next = 0;

  /** `memory` is that of `local`, of StagedStores.bytes. */
  constructor(channel: BackendChannel, local: BackendRegion, memory: ArrayBuffer) {
    this.#channel = channel;
    this.#local = local;
    this.#words = new Uint32Array(memory);
  }

  /** False, with nothing posted, if there is no room now. */
  put(remote: BackendRemoteRegion, remoteOffset: number, low: number, high: number): boolean {
    const slot = this.#next;
    if (this.#channel.delivered < this.#sequences[slot]!) return false;
    this.#words[slot * 2] = low;
    this.#words[slot * 2 + 1] = high;
    this.#place ??= { local: this.#local, localOffset: 0, remote, remoteOffset: 0, bytes: 8 };
    const place = this.#place;
    place.localOffset = slot * 8;
    place.remote = remote;
    place.remoteOffset = remoteOffset;
    if (!this.#channel.put(place)) return false;
    this.#sequences[slot] = this.#channel.posted;
    this.#next = (slot + 1) % SLOTS;
    return true;
  }
}

export interface PeerRange {
  /** The number of the region in the peer's metadata. */
  readonly region: number;
  readonly offset: number;
  readonly bytes: number;
}

/** The way of a request. */
interface AgentWay {
  readonly channel: BackendChannel;
  /** Owned by the route. */
  readonly place: PutPlace;
  /** Stores for a channel that cannot store by itself. */
  readonly staged: StagedStores | undefined;
}

/** Offsets of commands count from the begin of the request's ranges. */
interface RouteRange {
  /** Offset of the local range in its region. */
  readonly offset: number;
  readonly bytes: number;
  readonly range: PeerRange;
  readonly isSoleWriter: boolean;
}

/** The commands of one request for one of its remote ranges, which go over a channel of the agent. Hot path. */
export class AgentRoute implements CommandRoute {
  readonly channel: BackendChannel;
  readonly #way: AgentWay;
  readonly #range: RouteRange;
  /** What cells hold that only this route writes, by offset. */
  readonly #held = new Map<number, number>();

  constructor(way: AgentWay, range: RouteRange) {
    this.channel = way.channel;
    this.#way = way;
    this.#range = range;
  }

  put(source: number, target: number, bytes: number): boolean {
    const { offset, bytes: localBytes, range } = this.#range;
    // The device has checked this; its memory may have been overwritten since.
    if (source + bytes > localBytes) throw outside('source', source + bytes, localBytes);
    if (target + bytes > range.bytes) throw outside('target', target + bytes, range.bytes);
    const { place } = this.#way;
    place.localOffset = offset + source;
    place.remoteOffset = range.offset + target;
    place.bytes = bytes;
    return this.channel.put(place);
  }

  signal(target: number, add: number): boolean {
    const offset = this.#cell(target);
    const { remote } = this.#way.place;
    const sum = (this.#range.isSoleWriter ? (this.#held.get(target) ?? 0) : 0) + add;
    // Numbers here are exact below this; a negative one of the device would be the largest of all.
    if (sum > Number.MAX_SAFE_INTEGER) throw invalidArgument('what a signal adds', sum, 'below 2^53, in sum as well');
    if (!this.#range.isSoleWriter) return this.channel.signal(remote, offset, add);
    if (!this.channel.signal(remote, offset, add, sum)) return false;
    this.#held.set(target, sum);
    return true;
  }

  store(target: number, low: number, high: number): boolean {
    const { channel } = this;
    const offset = this.#cell(target);
    const { place, staged } = this.#way;
    if (channel.store !== undefined) return channel.store(place.remote, offset, low, high);
    return (staged as StagedStores).put(place.remote, offset, low, high);
  }

  set(target: number, low: number, high: number): boolean {
    const { channel } = this;
    const offset = this.#cell(target);
    const { remote } = this.#way.place;
    if (channel.store !== undefined) return channel.store(remote, offset, low, high);
    // What such a channel orders behind its puts are additions.
    const value = high * 2 ** 32 + low;
    const add = value - (this.#held.get(target) ?? 0);
    if (!(add >= 0 && value <= Number.MAX_SAFE_INTEGER)) {
      throw invalidArgument('epoch of a word', value, 'not less than the last of its cell, and below 2^53');
    }
    if (!channel.signal(remote, offset, add)) return false;
    this.#held.set(target, value);
    return true;
  }

  /** The offset of a cell in the region. */
  #cell(target: number): number {
    const { range } = this.#range;
    if (target + 8 > range.bytes) throw outside('cell', target + 8, range.bytes);
    return range.offset + target;
  }
}

function outside(what: string, end: number, limit: number): Error {
  return invalidArgument(`end of a command's ${what}`, end, `at most ${limit}`);
}
