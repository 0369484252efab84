// What a thread does when it has its turn at the UCX worker: receives control messages, works for links. Under the lock.
import { PART_FIELDS, tableWord } from '../../../abi/ucx-words.ts';
import { UCX_CONTROL_BYTES, UCX_KIND_MASK, UCX_LINK_MASK, ucxTag, ucxTagKinds } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { isErrorPointer, ucxError } from '../../../native/ucx-status.ts';
import { ArenaLayout } from './arena-layout.ts';
import { failures } from './failure.ts';
import { LinkBlock } from './link-block.ts';
import { LinkHalves } from './link-halves.ts';
import { CONTROL_WORDS, headerWord as at } from './message-header.ts';
import { endLink } from './sender.ts';
import { LINKS, RECEIVES, type UcxTables } from './ucx-tables.ts';
import type { UcxWorker } from './ucx-worker.ts';

/** A link's number: its index, counted from 1, and a count that makes numbers of its predecessors and successors differ. */
export const LINK_NUMBER_BITS = 9;
/** Steps after which the oldest receive is asked although its memory shows nothing: a message that did not fit. */
const STEPS_PER_TEST = 256;
/** Of a worker that is closed: peers may go on sending. */
const MAX_LAST_STEPS = 10_000;

const CONTROL_TAG = ucxTag(ucxTagKinds.control, 0, 0);

export class UcxEngine {
  readonly worker: UcxWorker;
  readonly tables: UcxTables;
  /** By index, once this thread has met it. */
  readonly #links: (LinkHalves | undefined)[] = [];
  readonly #blocks: (LinkBlock | undefined)[] = [];
  readonly #parts: (Float64Array | undefined)[] = [];
  readonly #generations: number[] = [];
  #steps = 0;

  constructor(worker: UcxWorker, tables: UcxTables) {
    this.worker = worker;
    this.tables = tables;
  }

  /** Once, before anything else. */
  postReceives(): void {
    for (let place = 0; place < RECEIVES; place++) this.#postReceive(place);
  }

  /** So that UCX can be closed: otherwise receives never end, and UCX complains about messages that nobody received. */
  cancelReceives(): void {
    const { worker, tables } = this;
    for (let steps = 0; steps < MAX_LAST_STEPS && this.step(); steps++);
    for (const request of tables.receiveRequest) {
      worker.cancel(request);
      worker.test(request);
    }
    this.#discard(0, 0);
  }

  /** Of a link that has ended: UCX keeps messages that nobody has received. */
  discard(number: number): void {
    this.#discard(ucxTag(0, number, 0), UCX_LINK_MASK);
  }

  #discard(tag: number, mask: number): void {
    const { worker, tables } = this;
    for (let messages = 0; messages < MAX_LAST_STEPS; messages++) {
      const request = worker.expect(tables.receives.address, 0, tag, mask);
      if (isErrorPointer(request)) return;
      if (worker.test(request) !== ucsStatus.inProgress) continue;
      worker.cancel(request);
      worker.test(request);
      return;
    }
  }

  /** The block of a link whose memory another thread may have made. */
  block(index: number): LinkBlock {
    return (this.#blocks[index] ??= new LinkBlock(
      ArenaLayout.at(this.tables.linkAddress[index]!, LinkBlock.bytes),
      index,
    ));
  }

  link(index: number): LinkHalves {
    return (this.#links[index] ??= new LinkHalves(
      { block: this.block(index), worker: this.worker, tables: this.tables },
      (slot) => this.#partsOf(slot),
    ));
  }

  /** Hot path. False if nothing happened. */
  step(): boolean {
    const { tables } = this;
    const { words } = tables;
    let isBusy = this.worker.progress() > 0;
    const word = (words[tableWord.receiveAt]! & (RECEIVES - 1)) * CONTROL_WORDS + at.link;
    if (isBusy || tables.receives.words[word] !== 0 || ++this.#steps % STEPS_PER_TEST === 0) {
      while (this.#takeNext()) isBusy = true;
    }
    const count = words[tableWord.activeCount]!;
    for (let index = 0; index < count; index++) {
      if (this.link(tables.active[index]!).step()) isBusy = true;
    }
    // What arrives in one piece with its answer needs no message of its own.
    for (let index = 0; index < count; index++) this.link(tables.active[index]!).acknowledge(!isBusy);
    return isBusy;
  }

  #takeNext(): boolean {
    const { tables, worker } = this;
    const { words, receives } = tables;
    const place = words[tableWord.receiveAt]! & (RECEIVES - 1);
    const status = worker.test(tables.receiveRequest[place]!);
    if (status === ucsStatus.inProgress) return false;
    const base = place * CONTROL_WORDS;
    if (status === ucsStatus.ok) this.#dispatch(base, receives.address + base * 4, worker.received);
    receives.words[base + at.link] = 0;
    this.#postReceive(place);
    words[tableWord.receiveAt] = words[tableWord.receiveAt]! + 1;
    return true;
  }

  #dispatch(base: number, address: number, length: number): void {
    const { tables } = this;
    const { words } = tables.receives;
    const index = (words[base + at.link]! >>> LINK_NUMBER_BITS) - 1;
    if (index < 0 || index >= LINKS || tables.linkAddress[index] === 0) return;
    try {
      this.link(index).take(words, base, address, length);
    } catch {
      // A peer's message must not end the work for the others.
      endLink({ block: this.block(index), worker: this.worker, tables }, failures.defect, 0);
    }
  }

  #postReceive(place: number): void {
    const { tables, worker } = this;
    const address = tables.receives.address + place * UCX_CONTROL_BYTES;
    const request = worker.expect(address, UCX_CONTROL_BYTES, CONTROL_TAG, UCX_KIND_MASK);
    if (isErrorPointer(request) || request === 0) throw ucxError('ucp_tag_recv_nbx', request, 'receiving messages');
    tables.receiveRequest[place] = request;
  }

  #partsOf(slot: number): Float64Array {
    const { tables } = this;
    const generation = tables.generation[slot]!;
    if (this.#generations[slot] !== generation || this.#parts[slot] === undefined) {
      const count = tables.partCount[slot]! * PART_FIELDS;
      this.#parts[slot] = ArenaLayout.at(tables.partAddress[slot]!, count * 8).numbers(count);
      this.#generations[slot] = generation;
    }
    return this.#parts[slot];
  }
}
