// What the threads of a process share about one link, in native memory. Everything is read and written under the lock.
import { LINK_WORDS, linkWord } from '../../../abi/ucx-words.ts';
import { UCX_CONTROL_BYTES } from '../../../abi/ucx-message.ts';
import { ArenaLayout } from './arena-layout.ts';
import { REGIONS } from './ucx-tables.ts';

/** Messages that UCX has not finished sending. */
export const SENDS = 256;
/** Messages without acknowledgement; the receiving half tells as many apart. A power of two. */
export const WINDOW = 1024;
/** What waits to be told, see Notices. A power of two. */
export const NOTICES = 2048;
export const NOTICE_FIELDS = 4;
/** Operations under way. A power of two. */
export const QUEUE = 8192;
/** Notifications that were posted and are not yet done with. A power of two. */
export const OUT_RING_BYTES: number = 256 * 1024;
/** Notifications that have come and were not taken: room for those of the far side's ring, and for skips at the end. */
export const IN_RING_BYTES: number = 512 * 1024;
/** Operations of the far side that failed; older ones are forgotten. */
export const FAILED_OPERATIONS = 256;

export class LinkBlock {
  static readonly bytes: number = ((): number => {
    const arena = ArenaLayout.counting();
    void new LinkBlock(arena, 0);
    return arena.end;
  })();

  readonly index: number;
  readonly words: Int32Array;
  readonly lostWord: number;
  /** The endpoint; 0 once it was given up. */
  readonly endpoint: Float64Array;
  /** UCX's handle of this block, whose rings hold notifications. */
  readonly ownMemory: Float64Array;

  /** By send: the request, 0 once ended, and the region that is read, or -1. Control messages lie in `buffers`. */
  readonly sendRequest: Float64Array;
  readonly sendRegion: Int32Array;
  readonly buffers: ReturnType<ArenaLayout['bytes']>;

  /** By operation: see Outgoing. */
  readonly kind: Int32Array;
  readonly slot: Int32Array;
  readonly operation: Int32Array;
  readonly first: Int32Array;
  readonly last: Int32Array;
  readonly hasSent: Int32Array;
  readonly failure: Int32Array;
  readonly failureDetail: Int32Array;
  readonly unanswered: Int32Array;
  readonly cursor: Int32Array;
  readonly messagePlace: Int32Array;
  readonly messageBytes: Int32Array;
  readonly messageEnd: Int32Array;
  readonly isMessageSent: Int32Array;
  readonly isReported: Int32Array;
  readonly region: Int32Array;
  readonly key: Int32Array;
  readonly remote: Int32Array;
  /** 1: it has direct puts or gets, all before that mark of the sends. */
  readonly isDirect: Int32Array;
  readonly directEnd: Int32Array;
  readonly cursorOffset: Float64Array;
  readonly local: Float64Array;
  /** UCX's handle of the local memory. */
  readonly memory: Float64Array;
  readonly remoteOffset: Float64Array;
  readonly size: Float64Array;
  readonly outRing: ReturnType<ArenaLayout['bytes']>;

  /** By place in the window: see Incoming. */
  readonly inState: Int32Array;
  readonly inAction: Int32Array;
  readonly inOperation: Int32Array;
  readonly inRegion: Int32Array;
  readonly inKey: Int32Array;
  readonly inEnd: Int32Array;
  readonly inRequest: Float64Array;
  readonly inOffset: Float64Array;
  readonly inBytes: Float64Array;
  readonly inAdd: Float64Array;
  readonly inRing: ReturnType<ArenaLayout['bytes']>;
  readonly failed: Int32Array;
  readonly notices: Int32Array;
  /** A bit for each region of this side: the far side may use it directly, or was asked to release it. */
  readonly granted: Int32Array;
  readonly withdrawn: Int32Array;

  /** Answers that are to be sent: sequence of the question, region, address, bytes. */
  readonly answerSequence: Int32Array;
  readonly answerRegion: Int32Array;
  readonly answerAddress: Float64Array;
  readonly answerBytes: Float64Array;

  /** Reads that wait for their data: request, operation's place, sequence of the question. */
  readonly readRequest: Float64Array;
  readonly readEntry: Int32Array;
  readonly readSequence: Int32Array;

  constructor(arena: ArenaLayout, index: number) {
    this.index = index;
    const head = arena.bytes(LINK_WORDS * 4);
    this.words = new Int32Array(head.bytes.buffer, head.bytes.byteOffset, head.bytes.length / 4);
    this.lostWord = head.address + linkWord.lost * 4;
    this.endpoint = arena.numbers(1);
    this.ownMemory = arena.numbers(1);
    this.sendRequest = arena.numbers(SENDS);
    this.sendRegion = arena.integers(SENDS);
    this.kind = arena.integers(QUEUE);
    this.slot = arena.integers(QUEUE);
    this.operation = arena.integers(QUEUE);
    this.first = arena.integers(QUEUE);
    this.last = arena.integers(QUEUE);
    this.hasSent = arena.integers(QUEUE);
    this.failure = arena.integers(QUEUE);
    this.failureDetail = arena.integers(QUEUE);
    this.unanswered = arena.integers(QUEUE);
    this.cursor = arena.integers(QUEUE);
    this.messagePlace = arena.integers(QUEUE);
    this.messageBytes = arena.integers(QUEUE);
    this.messageEnd = arena.integers(QUEUE);
    this.isMessageSent = arena.integers(QUEUE);
    this.isReported = arena.integers(QUEUE);
    this.region = arena.integers(QUEUE);
    this.key = arena.integers(QUEUE);
    this.remote = arena.integers(QUEUE);
    this.isDirect = arena.integers(QUEUE);
    this.directEnd = arena.integers(QUEUE);
    this.cursorOffset = arena.numbers(QUEUE);
    this.local = arena.numbers(QUEUE);
    this.memory = arena.numbers(QUEUE);
    this.remoteOffset = arena.numbers(QUEUE);
    this.size = arena.numbers(QUEUE);
    this.inState = arena.integers(WINDOW);
    this.inAction = arena.integers(WINDOW);
    this.inOperation = arena.integers(WINDOW);
    this.inRegion = arena.integers(WINDOW);
    this.inKey = arena.integers(WINDOW);
    this.inEnd = arena.integers(WINDOW);
    this.inRequest = arena.numbers(WINDOW);
    this.inOffset = arena.numbers(WINDOW);
    this.inBytes = arena.numbers(WINDOW);
    this.inAdd = arena.numbers(WINDOW);
    this.failed = arena.integers(FAILED_OPERATIONS);
    this.notices = arena.integers(NOTICES * NOTICE_FIELDS);
    this.granted = arena.integers(REGIONS / 32);
    this.withdrawn = arena.integers(REGIONS / 32);
    this.answerSequence = arena.integers(WINDOW);
    this.answerRegion = arena.integers(WINDOW);
    this.answerAddress = arena.numbers(WINDOW);
    this.answerBytes = arena.numbers(WINDOW);
    this.readRequest = arena.numbers(WINDOW);
    this.readEntry = arena.integers(WINDOW);
    this.readSequence = arena.integers(WINDOW);
    this.outRing = arena.bytes(OUT_RING_BYTES);
    this.inRing = arena.bytes(IN_RING_BYTES);
    this.buffers = arena.bytes(SENDS * UCX_CONTROL_BYTES);
  }
}
