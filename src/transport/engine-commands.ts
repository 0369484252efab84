// What the user's thread and the engines' threads share: a ring of commands for each engine, a table that shows how requests
// stand, and how much of each channel is delivered.
import { defineLayout } from '../abi/layout.ts';

export const engineCommandKinds = {
  receive: 1,
  send: 2,
  write: 3,
  read: 4,
  signal: 5,
  flush: 6,
  /** Withdraws the request in `slot`. */
  cancel: 7,
  /** Posts the prepared transfer `region`; its message lies at `offset` and has `bytes` bytes. */
  transfer: 8,
  /** Writes `bytes` ranges of the shared table `region`, from number `offset` on, of a channel. */
  ranges: 9,
} as const;

/** One entry of the ring: a request. 64-bit values are below 2^53. */
export const commandRecord = defineLayout(
  'TransportCommand',
  {
    /**
     * Low 8 bits: the kind. The others: where a part begins in its request, in units of 64 KiB: PART_BYTES. They reach to
     * 2^40, beyond which no request goes.
     */
    kindAndPart: 'u32',
    /** Index in the request table; from REQUEST_SLOTS on the number of a channel, whose next operation it is. */
    slot: 'u32',
    /** Numbers of the connection in the engine's thread, and of the region. */
    connection: 'u32',
    region: 'u32',
    flow: 'u32',
    remoteRegion: 'u32',
    remoteKey: 'u32',
    reserved: 'u32',
    offset: 'u64',
    bytes: 'u64',
    /** Place in the peer's region. */
    remoteOffset: 'u64',
    /** Bytes of the whole message, in a send, of which this is a part; what a signal adds. */
    add: 'u64',
  },
  64,
);

/**
 * The head of an engine's command ring. Each word stands alone on its cache line.
 *
 * - `tail`: commands written so far. Written by the user's thread; its store publishes the records before it. Wraps.
 * - `head`: commands taken so far. Written by the engine's thread; the user's thread may write over what lies before it.
 * - `calls`: messages posted to the engine's port so far; it reads the port when this differs from what it has seen.
 * - `fences`: how often other engines have ended the last part that this engine may be waiting for; wraps.
 * - `sleeping`: 1 while the engine's thread is asleep or about to be. ORDER: the engine stores it, then looks at `tail`,
 *   `calls` and `fences` once more; the others store those, then look at it. So one of the two sees the other.
 * - `crashed`: 1 once the engine has failed. Its last message, with the reason, was posted before.
 */
export const commandHead = defineLayout(
  'TransportCommandHead',
  {
    tail: 'u32',
    tailPad: { of: 'u32', count: 15 },
    head: 'u32',
    headPad: { of: 'u32', count: 15 },
    calls: 'u32',
    callsPad: { of: 'u32', count: 15 },
    fences: 'u32',
    fencesPad: { of: 'u32', count: 15 },
    sleeping: 'u32',
    sleepingPad: { of: 'u32', count: 15 },
    crashed: 'u32',
    crashedPad: { of: 'u32', count: 15 },
  },
  64,
);

/** Commands of the ring and entries of the table: most requests that are under way at a time. A power of two. */
export const REQUEST_SLOTS = 4096;

/** What a table entry says about its request, in its low bits; `free` has none. */
export const slotStates = { free: 0, pending: 1, done: 2, failed: 3 } as const;

/**
 * The other bits of the entry of a pending request: whether a part of it has failed, how many of its parts have not ended,
 * and which engine, counted from 1, waits until it alone is left.
 */
export const slotBits = { states: 0b111, partFailed: 0b1000, partsShift: 4, partsMask: 0xff, lastShift: 12 } as const;

/** Channels of a transport, and operations of each that may be under way: powers of two. */
export const MAX_CHANNELS = 16_384;
export const CHANNEL_OPERATIONS = 512;

/** `failed`: nothing behind what was delivered counts any more. `over`: closed, and the engine has nothing of it. */
export const channelStates = { open: 0, failed: 1, over: 2 } as const;

/** Parts of a request begin at multiples of this. */
export const PART_BYTES = 65_536;

/** Most engines of a transport. */
export const MAX_ENGINES = 16;
