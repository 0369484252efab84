// Puts and gets of one link that a device carries out, in the ring of its sends. Hot path: no allocation.
import { linkWord, remoteStates } from '../../../abi/ucx-words.ts';
import { failures } from './failure.ts';
import { QUEUE, SENDS } from './link-block.ts';
import type { LinkTools, Sender } from './sender.ts';
import type { PartCursor } from './part-cursor.ts';
import type { MappedPlace } from './ucx-worker.ts';

export class Direct {
  readonly #tools: LinkTools;
  readonly #sender: Sender;

  constructor(tools: LinkTools, sender: Sender) {
    this.#tools = tools;
    this.#sender = sender;
  }

  /** The part's region may be used so. A place of the table may be another region's by now. */
  mayUse({ remote, region, key }: PartCursor): boolean {
    if (remote < 0) return false;
    const { block, tables } = this.#tools;
    return (
      tables.remoteState[remote] === remoteStates.granted &&
      tables.remoteLink[remote] === block.words[linkWord.number] &&
      tables.remoteRegion[remote] === region &&
      tables.remoteKey[remote] === (key | 0)
    );
  }

  put(entry: number, place: MappedPlace, remote: number, offset: number): void {
    const { block, worker, tables } = this.#tools;
    const to = tables.remoteAddress[remote]! + offset;
    this.#sender.note(worker.put(place, block.endpoint[0]!, to, tables.remoteHandle[remote]!));
    block.words[linkWord.isUnflushed] = 1;
    this.#mark(entry);
  }

  get(entry: number, place: MappedPlace, remote: number, offset: number): void {
    const { block, worker, tables } = this.#tools;
    const from = tables.remoteAddress[remote]! + offset;
    this.#sender.note(worker.get(place, block.endpoint[0]!, from, tables.remoteHandle[remote]!));
    this.#mark(entry);
  }

  /**
   * Behind the last put of the operation that is sent now: a put that has ended need not be visible at the peer. Its
   * notification is sent when the flush has ended.
   */
  flush(entry: number): void {
    const { block } = this.#tools;
    const { words } = block;
    if (block.isDirect[entry] === 0) return;
    this.#flush();
    this.#mark(entry);
    if (block.isMessageSent[entry] === 0) words[linkWord.directMessageEnd] = (words[linkWord.queueSend]! + 1) | 0;
  }

  /** Behind the puts of an operation that goes on, or was stopped, if no flush is. The ring has room for one. */
  flushPuts(): void {
    if (this.#tools.block.words[linkWord.isUnflushed] === 1) this.#flush();
  }

  /** Something is under way that a signal or notification must not overtake, or an earlier notification waits for it. */
  get isUnderWay(): boolean {
    return !this.#hasReturned(this.#tools.block.words[linkWord.directEnd]!) || this.#keepsMessage();
  }

  /** Direct writes send their notifications in order, so the last of them tells of all. */
  #keepsMessage(): boolean {
    const { words, isMessageSent, failure } = this.#tools.block;
    const end = words[linkWord.directMessageEnd]!;
    const waiting = (end - words[linkWord.queueDone]!) | 0;
    if (waiting <= 0 || waiting > QUEUE) {
      // So that the difference does not wrap.
      words[linkWord.directMessageEnd] = words[linkWord.queueDone]!;
      return false;
    }
    const entry = (end - 1) & (QUEUE - 1);
    // One that has failed sends none, which tells nothing of those before it.
    return isMessageSent[entry] === 0 || failure[entry] !== failures.none;
  }

  /** All puts and gets of the operation are done. */
  hasEnded(entry: number): boolean {
    const { block } = this.#tools;
    return block.isDirect[entry] === 0 || this.#hasReturned(block.directEnd[entry]!);
  }

  #flush(): void {
    const { block, worker } = this.#tools;
    this.#sender.note(worker.flush(block.endpoint[0]!));
    block.words[linkWord.isUnflushed] = 0;
  }

  #mark(entry: number): void {
    const { block } = this.#tools;
    const end = block.words[linkWord.sendsPushed]!;
    block.isDirect[entry] = 1;
    block.directEnd[entry] = end;
    block.words[linkWord.directEnd] = end;
  }

  #hasReturned(mark: number): boolean {
    const sends = (mark - this.#tools.block.words[linkWord.sendsPopped]!) | 0;
    // Of a mark that was made long ago the difference may have wrapped.
    return sends <= 0 || sends > SENDS;
  }
}
