// Puts and gets of one link that a device carries out, in the ring of its sends. Hot path: no allocation.
import { linkWord, remoteStates } from '../../../abi/ucx-words.ts';
import { SENDS } from './link-block.ts';
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
    this.#mark(entry);
  }

  get(entry: number, place: MappedPlace, remote: number, offset: number): void {
    const { block, worker, tables } = this.#tools;
    const from = tables.remoteAddress[remote]! + offset;
    this.#sender.note(worker.get(place, block.endpoint[0]!, from, tables.remoteHandle[remote]!));
    this.#mark(entry);
  }

  /** Behind the last put of an operation: a put that has ended need not be visible at the peer. */
  flush(entry: number): void {
    const { block, worker } = this.#tools;
    if (block.isDirect[entry] === 0) return;
    this.#sender.note(worker.flush(block.endpoint[0]!));
    this.#mark(entry);
  }

  /** Something is under way that a signal or notification must not overtake. */
  get isUnderWay(): boolean {
    return !this.#hasReturned(this.#tools.block.words[linkWord.directEnd]!);
  }

  /** All puts and gets of the operation are done. */
  hasEnded(entry: number): boolean {
    const { block } = this.#tools;
    return block.isDirect[entry] === 0 || this.#hasReturned(block.directEnd[entry]!);
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
