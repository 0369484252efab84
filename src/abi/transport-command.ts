// What the user's thread and the engine's thread share: a ring of commands, and a table that shows how requests stand.
import { defineLayout } from './layout.ts';

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
} as const;

/** One entry of the ring: a request. 64-bit values are below 2^53. */
export const commandRecord = defineLayout(
  'TransportCommand',
  {
    kind: 'u32',
    /** Of the request table. */
    slot: 'u32',
    /** Numbers of the connection and of the region in the engine's thread. */
    connection: 'u32',
    region: 'u32',
    flow: 'u32',
    remoteRegion: 'u32',
    remoteKey: 'u32',
    reserved: 'u32',
    offset: 'u64',
    bytes: 'u64',
    remoteOffset: 'u64',
    add: 'u64',
  },
  64,
);

/**
 * The head of the shared block. Each word stands alone on its cache line.
 *
 * - `tail`: commands written so far. Written by the user's thread; its store publishes the records before it. Wraps.
 * - `head`: commands taken so far. Written by the engine's thread; the user's thread may write over what lies before it.
 * - `calls`: messages posted to the engine's port so far; it reads the port when this differs from what it has seen.
 * - `sleeping`: 1 while the engine's thread is asleep or about to be. ORDER: the engine stores it, then looks at `tail` and
 *   `calls` once more; the user's thread stores those, then looks at it. So one of the two sees the other.
 * - `ended`: requests that have ended so far, wraps. Written by the engine's thread behind the table's entry.
 * - `crashed`: 1 once the engine has failed. Its last message, with the reason, was posted before.
 * - `awaited`: how many threads do nothing but wait for `ended`, polling or asleep. Written by them; the engine's thread is
 *   then slow to sleep. A stale look costs time only.
 * - `waiters`: how many waits of the user's thread sleep on `ended`; the engine wakes them only if there are any.
 */
export const sharedHead = defineLayout(
  'TransportShared',
  {
    tail: 'u32',
    tailPad: { of: 'u32', count: 15 },
    head: 'u32',
    headPad: { of: 'u32', count: 15 },
    calls: 'u32',
    callsPad: { of: 'u32', count: 15 },
    sleeping: 'u32',
    sleepingPad: { of: 'u32', count: 15 },
    ended: 'u32',
    endedPad: { of: 'u32', count: 15 },
    waiters: 'u32',
    waitersPad: { of: 'u32', count: 15 },
    crashed: 'u32',
    crashedPad: { of: 'u32', count: 15 },
    awaited: 'u32',
    awaitedPad: { of: 'u32', count: 15 },
  },
  64,
);

/** Commands of the ring and entries of the table: most requests that are under way at a time. A power of two. */
export const REQUEST_SLOTS = 4096;

/** What a table entry says about its request; `free` has none. */
export const slotStates = { free: 0, pending: 1, done: 2, failed: 3 } as const;
