// What two endpoints tell each other in notifications: a head, then the payload or a piece of it.
import { defineLayout } from './layout.ts';

export const ENDPOINT_VERSION = 2;

/** "WLEM". Notifications that do not begin with it are not of endpoints. */
export const ENDPOINT_MAGIC = 0x4d_45_4c_57;

export const endpointMessageKinds = {
  /** Payload: metadata of a region of the sender. */
  region: 1,
  /** A receive was posted. Payload: its memory, as an encoded descriptor list. */
  offer: 2,
  /** The message for that receive lies in its memory. */
  arrived: 3,
  /** The message for that receive does not fit it: `bytes` is its size. */
  refused: 4,
  /** The send that this receive was matched with failed: no message follows. */
  failed: 5,
} as const;

/**
 * A payload that is too long for one notification goes in several, one behind the other, with equal heads but for
 * `payloadOffset`; all but the last are full. Between them come only messages without payload.
 */
export const endpointMessage = defineLayout('EndpointMessage', {
  magic: 'u32',
  kind: 'u32',
  /** The addressee's number of the connection. */
  connection: 'u32',
  /** The receiver's number of the receive: counts up by one from 1 on, and wraps. */
  request: 'u32',
  bytes: 'u64',
  /** Of the whole payload, and where the piece in this notification begins. */
  payloadBytes: 'u32',
  payloadOffset: 'u32',
});

/** Limit of one side's receives that no send has matched yet, in bytes as `offerCost` counts them. */
export const MAX_OFFERED_BYTES: number = 64 << 20;

/** What an offered receive takes at the peer until a send matches it. */
export function offerCost(payloadBytes: number): number {
  return payloadBytes + 512;
}
