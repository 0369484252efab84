// Reads of one link whose data have not all come: receives that were posted before the question was sent. Hot path: no allocation.
import { linkWord } from '../../../abi/ucx-words.ts';
import { ucxTag, ucxTagKinds } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { isErrorPointer } from '../../../native/ucx-status.ts';
import { WINDOW } from './link-block.ts';
import type { LinkTools, Sender } from './sender.ts';
import type { MappedPlace } from './ucx-worker.ts';

export class Reads {
  readonly #tools: LinkTools;
  readonly #sender: Sender;

  constructor(tools: LinkTools, sender: Sender) {
    this.#tools = tools;
    this.#sender = sender;
  }

  get hasRoom(): boolean {
    const { words } = this.#tools.block;
    return ((words[linkWord.readsTail]! - words[linkWord.readsHead]!) | 0) < WINDOW;
  }

  /** For the answer to the question with that sequence, which belongs to an entry of the queue. False if UCX is broken. */
  receive(entry: number, sequence: number, place: MappedPlace): boolean {
    const { block, worker } = this.#tools;
    const { words } = block;
    const tag = ucxTag(ucxTagKinds.answer, words[linkWord.number]!, sequence);
    const request = worker.receive(place, tag);
    if (isErrorPointer(request)) {
      this.#sender.break(request);
      return false;
    }
    const at = words[linkWord.readsTail]! & (WINDOW - 1);
    block.readRequest[at] = request;
    block.readEntry[at] = entry;
    block.readSequence[at] = sequence;
    block.unanswered[entry] = block.unanswered[entry]! + 1;
    words[linkWord.readsTail] = words[linkWord.readsTail]! + 1;
    return true;
  }

  /** Takes note of data that have arrived. False if there were none. */
  pop(): boolean {
    const { block, worker } = this.#tools;
    const { words } = block;
    let isBusy = false;
    while (words[linkWord.readsHead] !== words[linkWord.readsTail]) {
      const place = words[linkWord.readsHead]! & (WINDOW - 1);
      const request = block.readRequest[place]!;
      const status = request === 0 ? ucsStatus.ok : worker.check(request);
      if (status === ucsStatus.inProgress) return isBusy;
      const entry = block.readEntry[place]!;
      block.unanswered[entry] = block.unanswered[entry]! - 1;
      words[linkWord.readsHead] = words[linkWord.readsHead]! + 1;
      isBusy = true;
      if (status !== ucsStatus.ok && status !== ucsStatus.canceled) this.#sender.break(status);
    }
    return isBusy;
  }

  /** The question was refused. */
  cancel(sequence: number): void {
    const { block, worker } = this.#tools;
    const { words } = block;
    for (let at = words[linkWord.readsHead]!; at !== words[linkWord.readsTail]; at = (at + 1) | 0) {
      const place = at & (WINDOW - 1);
      if (block.readSequence[place] !== (sequence | 0)) continue;
      if (block.readRequest[place] !== 0) worker.cancel(block.readRequest[place]!);
    }
  }

  /** Nothing will come any more. */
  cancelAll(): void {
    const { block, worker } = this.#tools;
    const { words } = block;
    for (let at = words[linkWord.readsHead]!; at !== words[linkWord.readsTail]; at = (at + 1) | 0) {
      const request = block.readRequest[at & (WINDOW - 1)]!;
      if (request !== 0) worker.cancel(request);
    }
  }
}
