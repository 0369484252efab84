// The PacketIo over queue pairs: packets become requests that are posted in chains, payload by reference. Hot path: no
// allocation, one native call for all packets of a path between two flushes.
import { sendOpcode } from '../../../native/verbs/c-structs.ts';
import { NativeBlock } from '../../../native/library.ts';
import type { Region } from '../../engine/region.ts';
import {
  type Burst,
  copyPayload,
  type MemoryReaders,
  type PacketIo,
  type PlacementRun,
  placeNative,
  placeRun,
} from '../packet-io.ts';
import { microseconds } from '../packet-io-kind.ts';
import { SMALL_BYTES, type VerbsFailures } from './path-end.ts';
import { BURST_SEGMENTS, type RailEnd, type VerbsRail } from './verbs-rail.ts';

const ARENA_BYTES = 512 * 1024;
const MAX_BURST_BYTES = 65_507;

export class VerbsPacketIo implements PacketIo {
  readonly arena: Uint8Array;
  readonly burstSegments: number = BURST_SEGMENTS;
  readonly burstBytes: number = MAX_BURST_BYTES;
  readonly #failures: VerbsFailures;
  readonly #arenaWords: Int32Array;
  readonly #rails: readonly VerbsRail[];
  readonly #peers: (readonly RailEnd[] | undefined)[] = [];
  readonly #pending: RailEnd[] = [];

  constructor(rails: readonly VerbsRail[], failures: VerbsFailures) {
    const arena = new NativeBlock(ARENA_BYTES);
    this.arena = arena.bytes;
    this.#arenaWords = new Int32Array(arena.bytes.buffer, arena.bytes.byteOffset, ARENA_BYTES / 4);
    this.#rails = rails;
    this.#failures = failures;
  }

  /** The ends of a peer, by path. */
  setPeer(peer: number, ends: readonly RailEnd[] | undefined): void {
    this.#peers[peer] = ends;
  }

  adopt(region: Region): void {
    const registered: VerbsRail[] = [];
    try {
      for (const rail of this.#rails) {
        rail.regions.add(region);
        registered.push(rail);
      }
    } catch (error) {
      for (const rail of registered) rail.regions.remove(region);
      throw error;
    }
  }

  abandon(region: Region): void {
    for (const rail of this.#rails) rail.regions.remove(region);
  }

  readersOf(region: Region, peer?: number): MemoryReaders | undefined {
    const now = microseconds();
    const readers = this.#rails.flatMap((rail) => rail.readersOf(region, peer, now) ?? []);
    if (readers.length === 0) return undefined;
    return {
      areThrough: () => {
        const then = microseconds();
        return readers.filter((ofRail) => !ofRail.areThrough(then)).length === 0;
      },
    };
  }

  /** Room of the port that has the least room now; those that no longer take anything hold up none. */
  room(): number {
    let least = 0;
    for (const rail of this.#rails) {
      rail.makeRoom();
      if (rail.isStuck) continue;
      const { room } = rail;
      if (room < BURST_SEGMENTS) return 0;
      if (least === 0 || room < least) least = room;
    }
    return Math.floor(least / BURST_SEGMENTS);
  }

  send(burst: Burst): void {
    const end = this.#peers[burst.peer]?.[burst.path];
    if (end === undefined) return;
    if (end.isFailed || end.rail.room < burst.count) {
      this.#failures.unsent += burst.count;
      return;
    }
    const { region } = burst;
    const use = region === undefined ? undefined : end.rail.regions.find(region);
    if (use === undefined) {
      this.#addCopies(end, burst);
      return;
    }
    this.#addReferences(end, burst, (region as Region).address + burst.payloadOffset, use.registered.localKey);
    use.mark(end);
  }

  flush(): void {
    for (const end of this.#pending) this.#post(end);
    this.#pending.length = 0;
  }

  place(run: PlacementRun): void {
    for (const { memory } of this.#rails) {
      if (run.source !== memory.received) continue;
      placeNative(run, memory.received, memory.receivedAddress);
      return;
    }
    placeRun(run);
  }

  /** Sends one packet of this process's own, header only, outside of bursts. */
  sendBytes(end: RailEnd, packet: Uint8Array): void {
    const { memory } = end.rail;
    if (end.isFailed || end.rail.room < 1) return;
    const place = this.#begin(end, packet.length);
    memory.bytes.set(packet, place);
    addElement(end, place, packet.length);
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per burst
  #addReferences(end: RailEnd, burst: Burst, payload: number, key: number): void {
    const { count, headerBytes, payloadBytes, lastPayloadBytes } = burst;
    const { sends } = end;
    const { words } = end.rail.memory;
    const arena = this.#arenaWords;
    let from = burst.headerOffset >>> 2;
    let address = payload;
    for (let packet = 0; packet < count; packet += 1) {
      const place = this.#begin(end, headerBytes);
      let to = place >>> 2;
      for (const stop = from + (headerBytes >>> 2); from < stop; from += 1, to += 1) words[to] = arena[from]!;
      addElement(end, place, headerBytes);
      const bytes = packet === count - 1 ? lastPayloadBytes : payloadBytes;
      if (bytes > 0) sends.add(address, bytes, key);
      address += payloadBytes;
    }
  }

  /** Packets without payload, and those whose payload must be gathered or lies in memory that is not registered. */
  #addCopies(end: RailEnd, burst: Burst): void {
    const { count, headerOffset, headerBytes } = burst;
    const { bytes } = end.rail.memory;
    for (let packet = 0; packet < count; packet += 1) {
      const payloadBytes = packet === count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      const place = this.#begin(end, headerBytes + payloadBytes);
      this.#copyHeader(headerOffset + packet * headerBytes, headerBytes, bytes, place);
      const length = headerBytes + copyPayload(burst, packet, bytes, place + headerBytes);
      addElement(end, place, length);
    }
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  #copyHeader(from: number, count: number, bytes: Uint8Array, to: number): void {
    if (count > SMALL_BYTES) {
      bytes.set(this.arena.subarray(from, from + count), to);
      return;
    }
    for (let index = 0; index < count; index += 1) bytes[to + index] = this.arena[from + index]!;
  }

  /** Starts a request. Returns the place of so many bytes that it may read. */
  #begin(end: RailEnd, bytes: number): number {
    const { sends } = end;
    sends.start(sendOpcode.send, 0, end.number);
    if (end.handle !== undefined) sends.datagram(end.handle.address, end.remoteNumber, end.remoteQueueKey);
    const { rail } = end;
    const place = rail.memory.take(bytes);
    end.hold(place);
    rail.underWay += 1;
    if (!end.isPending) {
      end.isPending = true;
      this.#pending.push(end);
    }
    return place;
  }

  #post(end: RailEnd): void {
    end.isPending = false;
    if (end.isClosed || end.sends.unposted === 0) return;
    end.sends.signal();
    try {
      end.sends.post();
    } catch {
      // The requests before the refused ones went without asking for a completion, so nothing tells when their memory is free.
      const { rail } = end;
      const refused = end.takeBack();
      rail.underWay -= refused;
      this.#failures.unsent += refused;
      if (end.underWay > 0) rail.cutOff(end);
      else rail.fail(end);
    }
  }
}

function addElement(end: RailEnd, place: number, bytes: number): void {
  const { memory } = end.rail;
  end.sends.add(memory.address + place, bytes, memory.localKey);
}
