// What two endpoints tell each other in notifications; a payload follows the head.
import { defineLayout } from './layout.ts';

export const ENDPOINT_VERSION = 2;

export const endpointMessageKinds = {
  /** Payload: metadata of a region of the sender. */
  region: 1,
  /** A receive was posted. Payload: its memory, as an encoded descriptor list. */
  offer: 2,
  /** The message for that receive lies in its memory. */
  arrived: 3,
  /** The message for that receive does not fit it: `bytes` is its size. */
  refused: 4,
} as const;

export const endpointMessage = defineLayout('EndpointMessage', {
  kind: 'u32',
  /** The addressee's number of the connection. */
  connection: 'u32',
  /** The receiver's number of the receive. */
  request: 'u32',
  reserved: 'u32',
  bytes: 'u64',
});
