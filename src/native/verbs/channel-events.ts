// Taking the events of a completion channel, by whichever thread of the process sleeps on its descriptor.
import { NativeBlock } from '../native-block.ts';
import { wideAt } from '../../abi/layout.ts';
import { openVerbs } from './library.ts';

export class ChannelEvents {
  readonly #channel: number;
  readonly #event = new NativeBlock(16);
  readonly #calls = openVerbs().calls;

  /** `channel`: native address of one whose descriptor does not block. */
  constructor(channel: number) {
    this.#channel = channel;
  }

  /** Takes all events, so that the descriptor is not readable any more. Returns how many there were. Does not wait. */
  take(): number {
    const { ibv_get_cq_event: take, ibv_ack_cq_events: acknowledge } = this.#calls;
    const { address, words } = this.#event;
    let count = 0;
    while (take(this.#channel, address, address + 8) === 0) {
      // A queue cannot be closed before each of its events was acknowledged.
      acknowledge(wideAt(words, 0), 1);
      count += 1;
    }
    return count;
  }
}
