// Messages of a group in the order in which kernels take them, in launches that hold them.
import { COLLECTIVE_POSTS, messageDirections } from '../../abi/cuda-collectives.ts';
import type { PairMessage } from '../collective-engine.ts';

/** What a kernel does with a message: `to` is where a copy goes. */
export interface LaunchedMessage {
  readonly message: PairMessage;
  readonly direction: number;
  readonly to: number;
}

/**
 * In rounds: in the n-th one a rank sends to the rank n behind it, and receives from the one n before it, so that ranks never
 * wait in a circle. At most COLLECTIVE_POSTS from one rank to another in a launch: both sides divide them alike.
 */
export function messageBatches(messages: readonly PairMessage[], rank: number, ranks: number): LaunchedMessage[][] {
  const batches: LaunchedMessage[][] = [];
  const put = (batch: number, launched: LaunchedMessage): void => {
    while (batches.length <= batch) batches.push([]);
    batches[batch]!.push(launched);
  };
  const own = messages.filter(({ peer }) => peer === rank);
  const copied = own.filter(({ direction }) => direction === 'recv');
  for (const [index, message] of own.filter(({ direction }) => direction === 'send').entries()) {
    const to = copied[index]!.address;
    put(Math.floor(index / COLLECTIVE_POSTS), { message, direction: messageDirections.copy, to });
  }
  for (let round = 1; round < ranks; round++) {
    for (const direction of ['send', 'recv'] as const) {
      const peer = direction === 'send' ? (rank + round) % ranks : (rank + ranks - round) % ranks;
      const number = direction === 'send' ? messageDirections.send : messageDirections.receive;
      const ofPair = messages.filter((message) => message.peer === peer && message.direction === direction);
      for (const [index, message] of ofPair.entries()) {
        put(Math.floor(index / COLLECTIVE_POSTS), { message, direction: number, to: 0 });
      }
    }
  }
  return batches;
}
