// What precedes every active message between two agents over UCX, little endian.
import { defineLayout } from './layout.ts';

/** Goes up with every change of this file. */
export const UCX_PROTOCOL_VERSION = 2;

export const ucxMessageKinds = {
  /** `bytes` of data for `offset` of a region, then `messageBytes` of a notification. */
  write: 1,
  /** Asks for `bytes` from `offset` of a region. */
  read: 2,
  /** The answer to a read: `operation`, `part` and `offset` are those of the question. */
  data: 3,
  /** Adds `bytes` to the 64-bit cell at `offset` of a region. */
  signal: 4,
  /** A notification of `messageBytes`. */
  notify: 5,
  /** Nothing but `acknowledged` and `taken`. Has no sequence. */
  acknowledge: 6,
  /** The message whose sequence is `operation` was refused; `part` says why. Has no sequence. */
  refuse: 7,
} as const;

/** Why a message was refused. */
export const ucxRefusals = { region: 1, range: 2, protocol: 3, native: 4, earlier: 5 } as const;

/**
 * Messages of one direction of a link count up in `sequence`. ORDER: signals and notifications take effect only when all
 * messages before them have; `acknowledged` says that all of the other direction up to it have.
 */
export const ucxMessage = defineLayout(
  'UcxMessage',
  {
    /** The receiver's number of the link, and the number that only its two ends know. */
    link: 'u32',
    secretLow: 'u32',
    secretHigh: 'u32',
    kind: 'u32',
    sequence: 'u32',
    acknowledged: 'u32',
    /** Bytes of notifications of the other direction that the agent has taken, see noticeBytes. Wraps. */
    taken: 'u32',
    region: 'u32',
    key: 'u32',
    /** Of the sender: messages of one transfer or channel have the same. */
    operation: 'u32',
    part: 'u32',
    messageBytes: 'u32',
    offset: 'u64',
    bytes: 'u64',
  },
  64,
);

/** What a notification counts until it is taken. */
export function noticeBytes(length: number): number {
  return length + 64;
}
