// What the agent's thread and the UCX thread say to each other; plain data, so that it can cross threads.
import type { EncodedError } from '../../../core/errors.ts';
import type { JobPart } from './job.ts';

export type UcxCall =
  | { readonly name: 'address' }
  | { readonly name: 'reserve' }
  | { readonly name: 'connect'; readonly options: UcxConnection }
  /** Ends a link; its pending transfers fail with the error. */
  | { readonly name: 'disconnect'; readonly link: number; readonly error: EncodedError }
  | { readonly name: 'register'; readonly address: number; readonly bytes: number }
  /** True once peers use it no more; else `drained` follows. */
  | { readonly name: 'release'; readonly region: number }
  | { readonly name: 'prepare'; readonly transfer: UcxTransferPlan }
  /** True once its memory is not used any more; else `drained` follows. */
  | { readonly name: 'forget'; readonly slot: number }
  | { readonly name: 'openChannel'; readonly channel: UcxChannelPlan }
  | { readonly name: 'closeChannel'; readonly channel: number };

export interface UcxConnection {
  /** This side's number, that it reserved, and the peer's. */
  readonly link: number;
  readonly remoteLink: number;
  readonly peer: string;
  readonly address: Uint8Array;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** UCX reports dead peers in mode `peer`, for which it cannot use shared memory. */
  readonly mode: 'peer' | 'none';
  readonly words: SharedArrayBuffer;
  /** Native address of the ring that carries messages of posts. */
  readonly ring: number;
}

export interface UcxTransferPlan {
  readonly slot: number;
  readonly link: number;
  readonly operation: 'read' | 'write';
  readonly parts: readonly JobPart[];
}

export interface UcxChannelPlan {
  readonly channel: number;
  readonly link: number;
  /** Two words: operations delivered so far, wraps; 1 once the channel has failed. */
  readonly words: SharedArrayBuffer;
}

/** What the UCX thread says without being asked. */
export type UcxEvent =
  /** Sent before the table shows that the transfer failed. */
  | { readonly what: 'failed'; readonly slot: number; readonly error: EncodedError }
  | { readonly what: 'channelFailed'; readonly channel: number; readonly error: EncodedError }
  | { readonly what: 'ended'; readonly link: number; readonly error: EncodedError }
  | { readonly what: 'notification'; readonly link: number; readonly message: Uint8Array }
  | { readonly what: 'drained'; readonly kind: 'transfer' | 'region'; readonly number: number };

/** Kinds of commands in the ring that are not the transport's. */
export const ucxCommands = { post: 1, cancel: 2, notify: 3, put: 4, signal: 5 } as const;
