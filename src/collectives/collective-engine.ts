// What a Communicator asks of the engine that carries its calls out; arguments were checked before.
import type { OverlapOptions } from '../group/overlap.ts';
import type { CallWait } from '../core/deadline.ts';
import type { DType } from '../core/dtype.ts';
import type { DeviceEvent } from '../device/device.ts';
import type { Tensor } from '../device/tensor.ts';
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
  /** Whose memory it is, which must not be collected until the message is over: a group's messages wait for its end. */
  readonly tensor: Tensor;
}

export interface CollectiveEngine {
  /** Where calls can be recorded in graphs: what fails when a graph with such calls cannot be launched now. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  /** By rank of the group. */
  readonly routes: readonly Route[];
  /** Of GPUs: calls return before they are over, and begin after `previousEvent` by themselves. */
  readonly ordersCalls: boolean;
  /** Of the last call, where it was to end asynchronously: when it is over. */
  readonly lastEvent: DeviceEvent | undefined;
  /** Hot path. Fails when an earlier call left the ranks in disagreement. */
  throwIfUnusable(): void;
  /** Hot path. Does as much as it can at once: undefined when the call has ended, and no promise was made. */
  run(call: CollectiveCall, options: CallWait & OverlapOptions): Promise<void> | undefined;
  /** The same for messages that make progress together. */
  exchange(messages: readonly PairMessage[], options: CallWait & OverlapOptions): Promise<void> | undefined;
  /** Collective. Lets all ranks map the memory of a tensor, where that makes calls faster. */
  register(tensor: Tensor, wait: CallWait): Promise<void>;
  /** Once it has resolved, nobody else touches the engine's memory. */
  close(): Promise<void>;
}
