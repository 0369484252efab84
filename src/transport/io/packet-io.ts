// The seam between the protocol and what moves its packets: bursts go out, batches of received packets come in.
import { copyMemory } from '../../native/libc.ts';
import type { Region } from '../engine/region.ts';

/**
 * Consecutive packets for one peer on one path: each is a header of `headerBytes` from the arena and a payload by
 * reference. All payloads have `payloadBytes`, only the last may be shorter, so that the burst is one send with
 * segmentation offload. One object serves all bursts: read it before `send` returns, keep nothing of it.
 */
export interface Burst {
  /** The peer as the I/O named it in ConnectionOptions. */
  peer: number;
  path: number;
  /** Packets: 1 to PacketIo.burstSegments. */
  count: number;
  /** Place in PacketIo.arena at which the first header begins; the others follow without gap. */
  headerOffset: number;
  headerBytes: number;
  /** Region of the payload; undefined if the packets are headers only (acks, control, probes). */
  region: Region | undefined;
  payloadOffset: number;
  payloadBytes: number;
  lastPayloadBytes: number;
  /** Acks and control packets: small, and better sent before data. */
  urgent: boolean;
}

/**
 * Consecutive segments of one received packet that belong side by side: take `count` payloads out of the batch and put
 * them one behind the other into the region. The engine has checked all bounds. One object serves all runs.
 */
export interface PlacementRun {
  /** The batch's memory. */
  source: Uint8Array;
  /** First payload in `source`. */
  sourceOffset: number;
  /** Distance between the beginnings of two payloads in `source`. */
  sourceStride: number;
  region: Region;
  regionOffset: number;
  count: number;
  payloadBytes: number;
  lastPayloadBytes: number;
}

/** What was read of a region when `PacketIo.readersOf` was called; bursts that were sent later do not count. */
export interface MemoryReaders {
  /** True once nothing of that is read any more. It does not wait, and is to be asked until it is, which is bounded in time. */
  areThrough(): boolean;
}

/** What the engine needs of sockets, or of a simulated network. The engine calls it only inside `onTimer`. */
export interface PacketIo {
  /** Memory for headers and control packets; at least 64 KiB. What lies in it stays until the next `flush` returns. */
  readonly arena: Uint8Array;
  /** Most packets of a burst: 1 without segmentation offload, at most 64. */
  readonly burstSegments: number;
  /** Most bytes of a burst, headers included; at most 65507. */
  readonly burstBytes: number;
  /** Native address of memory that bursts will refer to; missing where plain memory is read. */
  addressOf?(bytes: Uint8Array): number;
  /** How many more bursts `send` takes before `flush`; 0 while the socket is full, then the engine asks again later. */
  room(): number;
  /** Takes a burst. It may be lost on the way, like any packet. */
  send(burst: Burst): void;
  /** Sends what was taken and is not yet sent; afterwards the engine writes over the arena. */
  flush(): void;
  /** Copies payload to its final place; called inside `onPackets`. `placeRun` does it for plain memory. */
  place(run: PlacementRun): void;
  /** A region that bursts will refer to, for an I/O that must prepare its memory. Fails with WL_CAPACITY. */
  adopt?(region: Region): void;
  /** No burst refers to the region any more, and nothing reads it: see `readersOf`. */
  abandon?(region: Region): void;
  /**
   * Where memory of bursts is read after `flush` has returned: what of the region is read now, by bursts to one peer or to
   * all; undefined if nothing is. For requests that end before the peer has everything, since their memory is then the
   * caller's again.
   */
  readersOf?(region: Region, peer?: number): MemoryReaders | undefined;
}

/**
 * Received packets, as arrays that the I/O fills and uses again. Each entry is one datagram, or several of one sender
 * and path that the kernel has joined: `segmentBytes` is then the size of each but the last.
 */
export interface ReceivedBatch {
  /** The memory that all packets of the batch lie in. Best the same object each time. */
  bytes: Uint8Array;
  count: number;
  readonly offset: Uint32Array;
  readonly length: Uint32Array;
  /** 0 for a single datagram. */
  readonly segmentBytes: Uint32Array;
  /** 1 if the network marked the packet (ECN congestion experienced). */
  readonly marked: Uint8Array;
  /** 1 if the payload of a single data packet already lies where `payloadAddress` said; here is only its header. */
  readonly placed: Uint8Array;
  /** The sender as the I/O names it; -1 where it cannot tell. A packet of another peer than the connection's is dropped. */
  readonly peer: Int32Array;
}

/** An empty batch with room for `capacity` packets that lie in `bytes`. */
export function createReceivedBatch(bytes: Uint8Array, capacity: number): ReceivedBatch {
  return {
    bytes,
    count: 0,
    offset: new Uint32Array(capacity),
    length: new Uint32Array(capacity),
    segmentBytes: new Uint32Array(capacity),
    marked: new Uint8Array(capacity),
    placed: new Uint8Array(capacity),
    peer: new Int32Array(capacity).fill(-1),
  };
}

/** PacketIo.place for packets that lie in native memory from `address` on, as `bytes`. */
export function placeNative(run: PlacementRun, bytes: Uint8Array, address: number): void {
  const { region, payloadBytes } = run;
  if (region.address === 0 || run.source !== bytes) {
    placeRun(run);
    return;
  }
  let from = address + run.sourceOffset;
  let to = region.address + run.regionOffset;
  for (let left = run.count; left > 1; left -= 1) {
    copyMemory(to, from, payloadBytes);
    from += run.sourceStride;
    to += payloadBytes;
  }
  copyMemory(to, from, run.lastPayloadBytes);
}

/** PacketIo.place for regions that are plain memory of this process. */
export function placeRun(run: PlacementRun): void {
  const { source, region, payloadBytes } = run;
  let from = run.sourceOffset;
  let to = run.regionOffset;
  for (let left = run.count; left > 0; left--) {
    const bytes = left === 1 ? run.lastPayloadBytes : payloadBytes;
    region.bytes.set(source.subarray(from, from + bytes), to);
    from += run.sourceStride;
    to += bytes;
  }
}

/** Copies the payload of packet number `packet` of a burst, out of plain memory. Returns how many bytes it is. */
export function copyPayload(burst: Burst, packet: number, target: Uint8Array, at: number): number {
  const { region, payloadBytes } = burst;
  if (region === undefined) return 0;
  const bytes = packet === burst.count - 1 ? burst.lastPayloadBytes : payloadBytes;
  const from = burst.payloadOffset + packet * payloadBytes;
  target.set(region.bytes.subarray(from, from + bytes), at);
  return bytes;
}
