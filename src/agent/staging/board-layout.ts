// What an agent's thread and its staging thread share: a ring of commands, and what has become of them.

export const STAGED_TRANSFERS = 16_384;
export const STAGED_CHANNELS = 1024;
/** Operations of a channel that may be under way: whoever posts counts them, so there is always a place for a command. */
export const STAGED_OPERATIONS = 256;
/** A power of two. */
export const STAGING_COMMANDS = 4096;

export const stagingCommandKinds = { post: 1, cancel: 2, put: 3, signal: 4 } as const;

/** In a command, as numbers of 64 bits. `number`: of the transfer or channel. */
export const stagingCommandField = {
  kind: 0,
  number: 1,
  /** Of a post: bytes of its message, -1 for none. */
  message: 2,
  local: 2,
  localOffset: 3,
  remote: 4,
  remoteOffset: 5,
  bytes: 6,
  add: 7,
  /** Of a signal: what the cell then holds; -1 if that is not known. */
  sum: 8,
} as const;
export const STAGING_COMMAND_FIELDS = 9;

/** `pushed` and `taken` count commands, `news` what ended; all wrap. */
export const stagingBoardWord = { pushed: 0, taken: 16, news: 32 } as const;
export const STAGING_BOARD_WORDS = 48;

export const stagedStates = { idle: 0, pending: 1, done: 2, failed: 3 } as const;

/** Of the ring of messages of a lane: bytes that were written and taken, both wrap. */
export const stagedMessageWord = { written: 0, taken: 16 } as const;
export const STAGED_MESSAGE_WORDS = 32;
/** Holds the longest notification twice. A power of two. */
export const STAGED_MESSAGE_BYTES = 65_536 * 2;
