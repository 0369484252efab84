// The words that the threads of a process share about its UCX worker, about each link, and about each transfer.

/**
 * - `lock`: a SharedLock. Everything that the threads share is read and written under it, but for
 *   the words that say otherwise.
 * - `drives`: looks of the agent's thread so far. While they go on, the UCX thread stands back.
 * - `handOvers`: how often the agent's thread has told the UCX thread to take over, because it sleeps itself.
 * - `thread`: what the UCX thread does. ORDER: it stores `armed` under the lock, after it has found nothing to do; the next
 *   thread that works under the lock sees that and rings the doorbell.
 * - `stop`: 1 once all threads must stop working: the backend closes, or a turn has failed. A thread checks it under the lock at each turn.
 * - `crashed`: 1 once it has failed; its last message, with the reason, was posted before.
 */
export const driverWords = { lock: 0, drives: 16, handOvers: 32, thread: 48, stop: 64, crashed: 80 } as const;
export const DRIVER_WORDS = 96;

export const threadStates = { running: 0, watching: 1, armed: 2 } as const;

/** Words of the worker as a whole. */
export const tableWord = {
  receiveAt: 0,
  /** How many entries `active` has. */
  activeCount: 1,
  nextOperation: 2,
  /** Goes up with everything that the agent's thread is to look at. Read without the lock. */
  news: 3,
  /** 1 if peers may be granted direct puts and gets; how many places of peers' regions were ever in use. */
  putsAreNative: 4,
  remotesMade: 5,
} as const;
export const TABLE_WORDS = 16;

export const ucxTransferStates = { idle: 0, pending: 1, done: 2, failed: 3 } as const;

/** Counters wrap at 2^32; only differences count. */
export const linkWord = {
  /** 1 while messages of the far side are for it. */
  isOpen: 0,
  /** This side's number of the link, and the far side's. */
  number: 1,
  remoteNumber: 2,
  secretLow: 3,
  secretHigh: 4,
  /** Why it cannot be used any more: a failure and its detail. */
  failure: 6,
  failureDetail: 7,
  /** Sequences: last sent, last that the far side has acknowledged, last that has taken effect here, last told of those. */
  sequence: 8,
  acknowledged: 9,
  watermark: 10,
  told: 11,
  /** Bytes of large messages that have taken effect since the far side was told. */
  unacknowledgedBytes: 12,
  /** Bytes of notifications: taken here, told of those, sent, taken there; reserved by posts that have not sent theirs. */
  taken: 13,
  toldTaken: 14,
  sentMessages: 15,
  takenThere: 16,
  reserved: 17,
  sendsPushed: 18,
  sendsPopped: 19,
  queueTail: 20,
  queueSend: 21,
  queueDone: 22,
  answersTail: 23,
  answersHead: 24,
  readsTail: 25,
  readsHead: 26,
  noticesTail: 27,
  noticesHead: 28,
  /** Positions in the ring of notifications that go out. */
  outEnd: 29,
  outFree: 30,
  /** Of those that come: written, to be seen by the agent, taken by it. */
  inEnd: 31,
  inPublished: 32,
  inTaken: 33,
  failedCount: 34,
  /** How far the end of the link has come: see LinkHalves. */
  end: 35,
  /** Of the links that have had this block, which one it is. */
  life: 36,
  /** Descriptor of the peer's process, or -1. */
  process: 37,
  /** 1 once a message of the far side has come. */
  hasHeard: 38,
  /** `sendsPushed` behind the last direct put or get. */
  directEnd: 39,
  /** Regions that the far side was asked to release. */
  withdrawals: 40,
  /** 1 while no flush is behind the last direct put. */
  isUnflushed: 41,
  /** Place in the queue behind the last direct write that had a notification to send. */
  directMessageEnd: 42,
  /** Word that UCX sets when the peer is lost. */
  lost: 48,
  lostHigh: 49,
} as const;
export const LINK_WORDS = 64;

/** Of a region of a peer: whether it may be used directly. */
export const remoteStates = { free: 0, unknown: 1, granted: 2, withdrawn: 3 } as const;

/**
 * A part of a transfer: the numbers of its record. `memory`: UCX's handle of the local memory. `remote`: the place of the
 * peer's region in UcxTables, or -1.
 */
export const partField = { local: 0, remoteOffset: 1, bytes: 2, region: 3, key: 4, memory: 5, remote: 6 } as const;
export const PART_FIELDS = 7;
