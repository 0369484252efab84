// Hands messages of one link to UCX and takes note of what UCX has finished. Hot path: no allocation.
import { putWide } from '../../../abi/wide-words.ts';
import { linkWord } from '../../../abi/ucx-words.ts';
import { ucxMessageKinds, ucxTag, ucxTagKinds } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { isErrorPointer } from '../../../native/ucx-status.ts';
import { failures } from './failure.ts';
import { type LinkBlock, OUT_RING_BYTES, SENDS, WINDOW } from './link-block.ts';
import { CONTROL_WORDS, HEADER_BYTES, headerWord as at } from './message-header.ts';
import type { UcxTables } from './ucx-tables.ts';
import type { MappedPlace, UcxWorker } from './ucx-worker.ts';

/** `region`: the number of a region of this side that must stay until then, or -1. */
export interface MessagePlace extends MappedPlace {
  region: number;
}

/** What the halves of a link work with. */
export interface LinkTools {
  readonly block: LinkBlock;
  readonly worker: UcxWorker;
  readonly tables: UcxTables;
}

/** Room for acknowledgements and refusals, and for the data of a control message. */
const KEPT = 16;
/** Of that, for a flush before a release: the next put, and so the next such flush, needs `hasRoom` first. */
const KEPT_FOR_FLUSH = 1;
const NO_REGION = -1;
/** UCX sends these at once, and faster without a handle of their memory. */
const SHORT_BYTES = 1024;
/** The far side is told at once when this much has arrived, because it may be waiting for just that. */
const UNACKNOWLEDGED_BYTES = 256 * 1024;
const UNACKNOWLEDGED_MESSAGES = WINDOW / 8;

export class Sender {
  readonly #tools: LinkTools;
  readonly #control: MappedPlace = { address: 0, bytes: 0, memory: 0 };
  /** The first word of the header that was begun last, in `buffers`. */
  base = 0;

  constructor(tools: LinkTools) {
    this.#tools = tools;
  }

  get hasRoom(): boolean {
    const { words } = this.#tools.block;
    return ((words[linkWord.sendsPushed]! - words[linkWord.sendsPopped]!) | 0) < SENDS - KEPT;
  }

  get hasControlRoom(): boolean {
    const { words } = this.#tools.block;
    return ((words[linkWord.sendsPushed]! - words[linkWord.sendsPopped]!) | 0) < SENDS - KEPT_FOR_FLUSH;
  }

  /** Where bytes go that follow the header. */
  get inlineAddress(): number {
    return this.#tools.block.buffers.address + this.base * 4 + HEADER_BYTES;
  }

  /** Writes a header; what it does not set is 0. */
  begin(kind: number, sequence: number, operation: number): void {
    const { buffers, words } = this.#tools.block;
    const header = buffers.words;
    const base = (words[linkWord.sendsPushed]! & (SENDS - 1)) * CONTROL_WORDS;
    this.base = base;
    header[base + at.link] = words[linkWord.remoteNumber]!;
    header[base + at.secretLow] = words[linkWord.secretLow]!;
    header[base + at.secretHigh] = words[linkWord.secretHigh]!;
    header[base + at.kind] = kind;
    header[base + at.sequence] = sequence;
    // A refusal must come before the acknowledgement of what was refused.
    const hasNotices = words[linkWord.noticesHead] !== words[linkWord.noticesTail];
    const told = words[hasNotices ? linkWord.told : linkWord.watermark]!;
    header[base + at.acknowledged] = told;
    header[base + at.taken] = words[linkWord.taken]!;
    header[base + at.region] = 0;
    header[base + at.key] = 0;
    header[base + at.operation] = operation;
    header[base + at.reason] = 0;
    header[base + at.messageBytes] = 0;
    putWide(header, base + at.offset, 0);
    putWide(header, base + at.bytes, 0);
    words[linkWord.told] = told;
    words[linkWord.toldTaken] = words[linkWord.taken]!;
    words[linkWord.unacknowledgedBytes] = 0;
  }

  /** Sends what was begun, with so many bytes behind the header. */
  sendControl(inlineBytes: number): void {
    const { block, worker } = this.#tools;
    const tag = ucxTag(ucxTagKinds.control, block.words[linkWord.remoteNumber]!, 0);
    const address = block.buffers.address + this.base * 4;
    const bytes = HEADER_BYTES + inlineBytes;
    const to = block.endpoint[0]!;
    if (bytes <= SHORT_BYTES) {
      this.note(worker.send(to, address, bytes, tag));
      return;
    }
    this.#control.address = address;
    this.#control.bytes = bytes;
    this.#control.memory = block.ownMemory[0]!;
    this.note(worker.sendFrom(this.#control, to, tag));
  }

  /** Sends memory as a message of its own. */
  sendData(tagKind: number, sequence: number, place: MessagePlace): void {
    const { block, worker } = this.#tools;
    const tag = ucxTag(tagKind, block.words[linkWord.remoteNumber]!, sequence);
    this.note(worker.sendFrom(place, block.endpoint[0]!, tag), place.region);
  }

  /** False if nothing has ended. */
  pop(): boolean {
    const { block, worker } = this.#tools;
    const { words } = block;
    let isBusy = false;
    while (words[linkWord.sendsPopped] !== words[linkWord.sendsPushed]) {
      const place = words[linkWord.sendsPopped]! & (SENDS - 1);
      const request = block.sendRequest[place]!;
      const status = request === 0 ? ucsStatus.ok : worker.check(request);
      if (status === ucsStatus.inProgress) return isBusy;
      this.#settle(place);
      if (status !== ucsStatus.ok) this.break(status);
      isBusy = true;
    }
    return isBusy;
  }

  /** Tells the far side what has taken effect here, unless a message has. `isIdle`: there is nothing else to do. */
  acknowledge(isIdle: boolean): void {
    const { words } = this.#tools.block;
    const unacknowledged = (words[linkWord.watermark]! - words[linkWord.told]!) | 0;
    const hasNews = unacknowledged !== 0 || words[linkWord.taken] !== words[linkWord.toldTaken];
    const isUrgent =
      unacknowledged >= UNACKNOWLEDGED_MESSAGES ||
      words[linkWord.unacknowledgedBytes]! >= UNACKNOWLEDGED_BYTES ||
      this.owesRoom;
    if (!hasNews || !(isIdle || isUrgent) || !this.hasControlRoom) return;
    this.begin(ucxMessageKinds.acknowledge, 0, 0);
    this.sendControl(0);
  }

  /** The agent has taken so many notifications that the far side may wait to hear of it. */
  get owesRoom(): boolean {
    const { words } = this.#tools.block;
    return ((words[linkWord.taken]! - words[linkWord.toldTaken]!) | 0) >= OUT_RING_BYTES / 4;
  }

  /** UCX says that the peer cannot be reached any more. */
  break(status: number): void {
    endLink(this.#tools, failures.lost, status);
  }

  #settle(place: number): void {
    const { block, tables } = this.#tools;
    const region = block.sendRegion[place]!;
    if (region !== NO_REGION) tables.regionUses[region] = tables.regionUses[region]! - 1;
    block.words[linkWord.sendsPopped] = block.words[linkWord.sendsPopped]! + 1;
  }

  /** What UCX has returned for a send, which names a region of this side that must stay until then. */
  note(request: number, region: number = NO_REGION): void {
    const { block, tables } = this.#tools;
    const { words } = block;
    if (isErrorPointer(request)) {
      this.break(request);
      return;
    }
    if (request === 0) return;
    const place = words[linkWord.sendsPushed]! & (SENDS - 1);
    block.sendRequest[place] = request;
    block.sendRegion[place] = region;
    if (region !== NO_REGION) tables.regionUses[region] = tables.regionUses[region]! + 1;
    words[linkWord.sendsPushed] = words[linkWord.sendsPushed]! + 1;
  }
}

/** The link cannot be used any more; all that is pending fails with its next step. Idempotent. */
export function endLink({ block: { words }, tables }: LinkTools, failure: number, detail: number): void {
  if (words[linkWord.failure] !== failures.none) return;
  words[linkWord.failureDetail] = detail;
  // ORDER: the detail first, so that a thread that sees the failure finds it.
  Atomics.store(words, linkWord.failure, failure);
  tables.tell();
}
