// The PacketIo over queue pairs: packets become requests that are posted in chains, payload by reference. Hot path: no
// allocation, one native call for all packets of a path between two flushes.
import { sendOpcode } from '../../../abi/verbs-words.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import type { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { Region } from '../../engine/region.ts';
import { type Burst, copyPayload, type PacketIo, placeNative, type PlacementRun } from '../packet-io.ts';
import { microseconds } from '../engine-turns.ts';
import { type PacketMemory, SMALL_BYTES } from './packet-memory.ts';
import type { PathEnd } from './path-end.ts';
import type { VerbsPort } from './verbs-port.ts';

/** Counters of what did not go out or come in. */
export interface VerbsFailures {
  /** Queue pairs that have failed. */
  queuePairs: number;
  /** Packets given up because their queue pair had failed, or would not take them. */
  unsent: number;
  /** Packets that came with an error, such as messages of which a part was lost. */
  broken: number;
  /** Packets of queue pairs that are not the peer's. */
  strangers: number;
}

/** Packets under way over all queue pairs, each of which has room for so many. */
export const MAX_UNDER_WAY = 512;
/** Completions are looked for when so many packets are under way: then most polls find some. */
const REAP_FROM = 128;
const ARENA_BYTES = 512 * 1024;
const MAX_BURST_BYTES = 65_507;
/** As many as one poll takes; a burst of them is one chain. */
const BURST_SEGMENTS = 16;
/** A device takes microseconds for what it has; then the queue pairs that do not come to an end are failed. */
const SETTLE_MICROSECONDS = 500_000;

export class VerbsPacketIo implements PacketIo {
  readonly arena: Uint8Array;
  readonly burstSegments: number = BURST_SEGMENTS;
  readonly burstBytes: number = MAX_BURST_BYTES;
  readonly failures: VerbsFailures = { queuePairs: 0, unsent: 0, broken: 0, strangers: 0 };
  readonly memory: PacketMemory;
  readonly #arenaWords: Int32Array;
  readonly #port: VerbsPort;
  readonly #completions: CompletionQueue;
  readonly #relaxedOrdering: boolean;
  readonly #keys = new Map<Region, MemoryRegion>();
  readonly #peers: (readonly PathEnd[] | undefined)[] = [];
  /** By number of its queue pair. */
  readonly #ends = new Map<number, PathEnd>();
  readonly #pending: PathEnd[] = [];
  #underWay = 0;
  readonly #onFailed: (end: PathEnd) => void;

  /** `completions`: of sends alone. `onFailed` hears of queue pairs that have failed. */
  // oxlint-disable-next-line max-params -- the parts of an engine's side, each made by its own file
  constructor(
    port: VerbsPort,
    memory: PacketMemory,
    completions: CompletionQueue,
    relaxedOrdering: boolean,
    onFailed: (end: PathEnd) => void,
  ) {
    const arena = new NativeBlock(ARENA_BYTES);
    this.arena = arena.bytes;
    this.#arenaWords = new Int32Array(arena.bytes.buffer, arena.bytes.byteOffset, ARENA_BYTES / 4);
    this.memory = memory;
    this.#port = port;
    this.#completions = completions;
    this.#relaxedOrdering = relaxedOrdering;
    this.#onFailed = onFailed;
  }

  /** True if so much is under way that the engine must wait for completions. */
  get isFull(): boolean {
    return this.#room < BURST_SEGMENTS;
  }

  addEnd(end: PathEnd): void {
    this.#ends.set(end.queuePair.number, end);
  }

  /** Closes the queue pair; what it had to send has been sent, as far as that goes in bounded time. */
  removeEnd(end: PathEnd): void {
    this.settle();
    this.#ends.delete(end.queuePair.number);
    this.#underWay -= end.close(this.memory);
  }

  findEnd(queuePair: number): PathEnd | undefined {
    return this.#ends.get(queuePair);
  }

  /** The ends of a peer, by path. */
  setPeer(peer: number, ends: readonly PathEnd[] | undefined): void {
    this.#peers[peer] = ends;
  }

  adopt(region: Region): void {
    const { address, bytes } = region;
    if (address === 0 || bytes.length === 0) return;
    const access = { relaxedOrdering: this.#relaxedOrdering };
    this.#keys.set(region, MemoryRegion.host(this.#port.domain, address, bytes.length, access));
  }

  abandon(region: Region): void {
    const registered = this.#keys.get(region);
    if (registered === undefined) return;
    this.#keys.delete(region);
    this.settle();
    registered.close();
  }

  room(): number {
    if (this.#underWay >= REAP_FROM || this.isFull) this.reap();
    return Math.floor(this.#room / BURST_SEGMENTS);
  }

  send(burst: Burst): void {
    const end = this.#peers[burst.peer]?.[burst.path];
    if (end === undefined) return;
    if (end.isFailed) {
      this.failures.unsent += burst.count;
      return;
    }
    const { region } = burst;
    const registered = region === undefined || burst.ranges !== undefined ? undefined : this.#keys.get(region);
    if (registered === undefined) this.#addCopies(end, burst);
    else this.#addReferences(end, burst, (region as Region).address + burst.payloadOffset, registered.localKey);
  }

  flush(): void {
    for (const end of this.#pending) this.#post(end);
    this.#pending.length = 0;
  }

  place(run: PlacementRun): void {
    placeNative(run, this.memory.received, this.memory.receivedAddress);
  }

  /** Takes the completions of sends: their memory is free again. Returns how many there were. */
  reap(): number {
    const queue = this.#completions;
    const count = queue.poll();
    for (let index = 0; index < count; index += 1) {
      const end = this.#ends.get(queue.queuePairAt(index));
      if (end === undefined) continue;
      if (!queue.isSuccess(index)) this.fail(end);
      this.#underWay -= end.doneUntil(queue.sequenceAt(index), this.memory);
    }
    return count;
  }

  /** The same, if there may be any. */
  reapSome(): void {
    if (this.#underWay > 0) this.reap();
  }

  settle(): void {
    this.flush();
    this.#waitForSends(SETTLE_MICROSECONDS);
    if (this.#underWay === 0) return;
    // What a failed queue pair has under way is flushed at once.
    for (const end of this.#ends.values()) {
      if (end.underWay === 0) continue;
      end.queuePair.fail();
      this.fail(end);
    }
    this.#waitForSends(SETTLE_MICROSECONDS);
    if (this.#underWay === 0) return;
    throw new WeftlineError(
      'WL_NATIVE',
      `${this.#port.rail.name} does not end the ${this.#underWay} sends that it was given, so that their memory can never be given back`,
      { details: { device: this.#port.rail.name, underWay: this.#underWay } },
    );
  }

  /** The queue pair sends nothing any more: to the protocol its packets are lost. */
  fail(end: PathEnd): void {
    if (end.isFailed) return;
    end.isFailed = true;
    this.failures.queuePairs += 1;
    this.#onFailed(end);
  }

  /** Sends one packet of this process's own, header only, outside of bursts. */
  sendBytes(end: PathEnd, packet: Uint8Array): void {
    if (end.isFailed || this.#room < 1) return;
    const place = this.#begin(end, packet.length);
    this.memory.bytes.set(packet, place);
    this.#addPiece(end, place, packet.length);
  }

  get #room(): number {
    return Math.min(MAX_UNDER_WAY - this.#underWay, this.memory.room);
  }

  #waitForSends(most: number): void {
    const end = microseconds() + most;
    while (this.#underWay > 0) if (this.reap() === 0 && microseconds() >= end) return;
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per burst
  #addReferences(end: PathEnd, burst: Burst, payload: number, key: number): void {
    const { count, headerBytes, payloadBytes, lastPayloadBytes } = burst;
    const { sends } = end;
    const { words } = this.memory;
    const arena = this.#arenaWords;
    let from = burst.headerOffset >>> 2;
    let address = payload;
    for (let packet = 0; packet < count; packet += 1) {
      const place = this.#begin(end, headerBytes);
      let to = place >>> 2;
      for (const stop = from + (headerBytes >>> 2); from < stop; from += 1, to += 1) words[to] = arena[from]!;
      this.#addPiece(end, place, headerBytes);
      const bytes = packet === count - 1 ? lastPayloadBytes : payloadBytes;
      if (bytes > 0) sends.add(address, bytes, key);
      address += payloadBytes;
    }
  }

  /** Packets without payload, and those whose payload must be gathered or lies in memory that is not registered. */
  #addCopies(end: PathEnd, burst: Burst): void {
    const { count, headerOffset, headerBytes } = burst;
    const { bytes } = this.memory;
    for (let packet = 0; packet < count; packet += 1) {
      const payloadBytes = packet === count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      const place = this.#begin(end, headerBytes + payloadBytes);
      this.#copyHeader(headerOffset + packet * headerBytes, headerBytes, place);
      const length = headerBytes + copyPayload(burst, packet, bytes, place + headerBytes);
      this.#addPiece(end, place, length);
    }
  }

  #copyHeader(from: number, count: number, to: number): void {
    if (count > SMALL_BYTES) {
      this.memory.bytes.set(this.arena.subarray(from, from + count), to);
      return;
    }
    const { bytes } = this.memory;
    for (let index = 0; index < count; index += 1) bytes[to + index] = this.arena[from + index]!;
  }

  /** Starts a request. Returns the place of so many bytes that it may read. */
  #begin(end: PathEnd, bytes: number): number {
    const { sends } = end;
    sends.start(sendOpcode.send, 0, end.number);
    if (end.handle !== undefined) sends.datagram(end.handle.address, end.remoteNumber, end.remoteQueueKey);
    const place = this.memory.take(bytes);
    end.hold(place);
    this.#underWay += 1;
    if (!end.isPending) {
      end.isPending = true;
      this.#pending.push(end);
    }
    return place;
  }

  #addPiece(end: PathEnd, place: number, bytes: number): void {
    end.sends.add(this.memory.address + place, bytes, this.memory.localKey);
  }

  #post(end: PathEnd): void {
    end.isPending = false;
    if (end.sends.unposted === 0) return;
    end.sends.signal();
    try {
      end.sends.post();
    } catch {
      // Those before the refused ones went without asking for a completion, so nothing tells when their memory is free.
      const refused = end.takeBack(this.memory);
      this.#underWay -= refused;
      this.failures.unsent += refused;
      this.#failRefused(end);
    }
  }

  #failRefused(end: PathEnd): void {
    if (end.underWay > 0) end.queuePair.fail();
    this.fail(end);
  }
}
