// Completion queues that the queue pairs of a backend share, as many as they need, so that one call polls for many of them.
import type { CompletionChannel, CompletionQueue as Queue } from '../../../native/verbs/completion-queue.ts';
import { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import type { VerbsContext } from '../../../native/verbs/context.ts';
import { requireWithin } from '../../../native/verbs/limits.ts';
import type { Completions } from '../../rdma/rdma-device.ts';

/** What takes the completions of a queue pair. */
export interface CompletionTaker {
  /** Hot path. `index`: of the queue's last poll. */
  complete(queue: Queue, index: number): void;
}

/** A place in a queue for the completions of one queue pair. */
export interface CompletionPlace {
  readonly queue: Queue;
  /** From now on. */
  take(queuePair: number, taker: CompletionTaker): void;
  /** The queue pair is closed. */
  giveBack(): void;
}

interface Shared {
  readonly queue: Queue;
  used: number;
}

/** Of one queue: with 64 bytes each, a MiB. */
const ENTRIES = 16_384;
const POLL_BATCH = 16;
/** Batches of one look at most, so that a busy queue does not hold up the others. */
const MAX_BATCHES = 8;

export class CompletionPool implements Completions {
  readonly #context: VerbsContext;
  readonly #channel: CompletionChannel;
  readonly #queues: Shared[] = [];
  /** By number of the queue pair. */
  readonly #takers = new Map<number, CompletionTaker>();

  constructor(context: VerbsContext, channel: CompletionChannel) {
    this.#context = context;
    this.#channel = channel;
  }

  /** Room for so many completions of a queue pair. Fails with WL_CAPACITY. */
  reserve(entries: number): CompletionPlace {
    const { attributes, device } = this.#context;
    const most = Math.min(ENTRIES, attributes.maxCqe);
    requireWithin(device, 'entries in a completion queue', entries, ['max_cqe', most]);
    let shared = this.#queues.find(({ used }) => used + entries <= most);
    if (shared === undefined) {
      shared = { queue: new CompletionQueue(this.#context, most, this.#channel), used: 0 };
      this.#queues.push(shared);
    }
    shared.used += entries;
    return this.#place(shared, entries);
  }

  get isInUse(): boolean {
    return this.#takers.size > 0;
  }

  /** Hot path. Hands over what has completed. True if anything has. */
  poll(): boolean {
    let hasNews = false;
    for (let at = 0; at < this.#queues.length; at++) {
      const { queue } = this.#queues[at]!;
      for (let batch = 0; batch < MAX_BATCHES; batch++) {
        const count = queue.poll();
        for (let index = 0; index < count; index++) this.#takers.get(queue.queuePairAt(index))?.complete(queue, index);
        if (count > 0) hasNews = true;
        if (count < POLL_BATCH) break;
      }
    }
    return hasNews;
  }

  /** Of all completions, the channel hears. */
  get isBusy(): boolean {
    return false;
  }

  /** The next completion makes the channel readable. Poll once more before sleeping. */
  arm(): boolean {
    for (const { queue } of this.#queues) queue.arm();
    return true;
  }

  #place(shared: Shared, entries: number): CompletionPlace {
    let number = -1;
    let isGivenBack = false;
    return {
      queue: shared.queue,
      take: (queuePair, taker) => {
        number = queuePair;
        this.#takers.set(queuePair, taker);
      },
      giveBack: () => {
        if (isGivenBack) return;
        isGivenBack = true;
        this.#takers.delete(number);
        shared.used -= entries;
      },
    };
  }
}
