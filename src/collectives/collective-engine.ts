// What a Communicator asks of the engine that carries its calls out; arguments were checked before.
import type { CallWait } from '../core/deadline.ts';
import type { DType } from '../core/dtype.ts';
import type { CollectiveCall } from './collective-call.ts';

/** How bytes get from one rank to another: within it, through the windows of its host, or over the network. */
export type Route = 'self' | 'window' | 'network';

/** One side of a message between two ranks of the group. */
export interface PairMessage {
  readonly direction: 'send' | 'recv';
  readonly peer: number;
  readonly address: number;
  readonly bytes: number;
  readonly dtype: DType;
}

export interface CollectiveEngine {
  /** By rank of the group. */
  readonly routes: readonly Route[];
  /** Hot path. Fails when an earlier call left the ranks in disagreement. */
  throwIfUnusable(): void;
  /** Hot path. Does as much as it can at once: undefined when the call has ended, and no promise was made. */
  run(call: CollectiveCall, wait: CallWait): Promise<void> | undefined;
  /** The same for messages that make progress together. */
  exchange(messages: readonly PairMessage[], wait: CallWait): Promise<void> | undefined;
  /** Once it has resolved, nobody else touches the engine's memory. */
  close(): Promise<void>;
}
