// What two agents send each other over UCX, little endian: control messages, the tags of messages.
import { defineLayout } from './layout.ts';

/** Goes up with every change of this file. */
export const UCX_PROTOCOL_VERSION = 5;

export const ucxMessageKinds = {
  /** `bytes` of data for `offset` of a region, then `messageBytes` of a notification. */
  write: 1,
  /** Asks for `bytes` from `offset` of a region; they come as a message of their own. */
  read: 2,
  /** Adds `bytes` to the 64-bit cell at `offset` of a region. */
  signal: 3,
  /** A notification of `messageBytes`. */
  notify: 4,
  /** Nothing but `acknowledged` and `taken`. Has no sequence. */
  acknowledge: 5,
  /** The message whose sequence is `operation` was refused; `reason` says why. Has no sequence. */
  refuse: 6,
  /** The far side may put into `region` with `key` and get from it without asking. The next three have no sequence. */
  grant: 7,
  /** It may no more, and answers with `release` once nothing of that is under way. */
  withdraw: 8,
  release: 9,
} as const;

/** Why a message was refused. */
export const ucxRefusals = { region: 1, range: 2, protocol: 3, native: 4, earlier: 5 } as const;

/** A control message: its header, then data and notification if they fit, else those follow as a message of their own. */
export const UCX_CONTROL_BYTES = 8192;

/**
 * Messages of one direction of a link count up in `sequence`. ORDER: signals and notifications take effect only when all
 * messages before them have; `acknowledged` says that all of the other direction up to it have.
 */
export const ucxMessage = defineLayout(
  'UcxMessage',
  {
    /** The receiver's number of the link, never 0, and the number that only its two ends know. */
    link: 'u32',
    secretLow: 'u32',
    secretHigh: 'u32',
    kind: 'u32',
    sequence: 'u32',
    acknowledged: 'u32',
    /** Bytes of notifications of the other direction that the agent has taken, wraps. */
    taken: 'u32',
    region: 'u32',
    key: 'u32',
    /** Of the sender: messages of one transfer or channel have the same. */
    operation: 'u32',
    reason: 'u32',
    messageBytes: 'u32',
    offset: 'u64',
    bytes: 'u64',
  },
  64,
);

/** What a message over UCX holds, as its tag says. */
export const ucxTagKinds = { control: 0, write: 1, answer: 2 } as const;

/** Numbers of links are below this, so that a tag is a whole number that a double can hold. */
export const UCX_LINK_NUMBERS: number = 2 ** 19;

/** Selects the kind. */
export const UCX_KIND_MASK: number = 3 * 2 ** 32;
/** Selects all of a link. */
export const UCX_LINK_MASK: number = (UCX_LINK_NUMBERS - 1) * 2 ** 34;
/** Selects one message. */
export const UCX_WHOLE_MASK: number = 2 ** 53 - 1;

/** `link` is the receiver's number; data have the sequence of the control message that announced or asked for them. */
export function ucxTag(kind: number, link: number, sequence: number): number {
  return (link * 4 + kind) * 2 ** 32 + (sequence >>> 0);
}
