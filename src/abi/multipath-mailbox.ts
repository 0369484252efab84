// The mailbox of a link: a counter and a ring on each side, through which messages travel behind their data.
import { defineLayout } from './layout.ts';

/** Most bytes of messages that the peer has not taken. A power of two. */
export const MAILBOX_RING_BYTES = 256 * 1024;

/**
 * At the receiver, `counter` is the bytes that have arrived in its ring: the sender's engine adds to it by signals, behind
 * the bytes. At the sender, `counter` is the bytes that the receiver has taken: it adds to it by signals, and only then
 * may the sender's count of reserved bytes go on; messages wait in the sender's ring until they are sent. The low 32 bits
 * of a counter are enough: differences are below 2^31. A stale look shows fewer bytes and costs time only.
 */
export const mailboxHead = defineLayout('AgentMailbox', { counter: 'u64', pad: { of: 'u64', count: 7 } }, 64);

/** What begins a message in the ring; it and its bytes are padded to a multiple of 8. May wrap at the ring's end. */
export const mailboxRecord = defineLayout('AgentMessage', { bytes: 'u32', reserved: 'u32' }, 8);
