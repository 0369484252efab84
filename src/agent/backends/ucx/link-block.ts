// What the threads of a process share about one link, in native memory. Everything is read and written under the lock.
import { LINK_WORDS, linkWord } from '../../../abi/ucx-words.ts';
import { UCX_CONTROL_BYTES } from '../../../abi/ucx-message.ts';
import { Carver } from './carver.ts';

/** Messages that UCX has not finished sending. */
export const SENDS = 256;
/** Messages without acknowledgement; the receiving half tells as many apart. A power of two. */
export const WINDOW = 1024;
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
    const carver = Carver.counting();
    void new LinkBlock(carver, 0);
    return carver.end;
  })();

  readonly index: number;
  readonly words: Int32Array;
  readonly lostWord: number;
  /** The endpoint; 0 once it was given up. */
  readonly endpoint: Float64Array;

  /** By send: the request, 0 once ended, and the region that is read, or -1. Control messages lie in `buffers`. */
  readonly sendRequest: Float64Array;
  readonly sendRegion: Int32Array;
  readonly buffers: ReturnType<Carver['bytes']>;

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
  readonly cursorOffset: Float64Array;
  readonly local: Float64Array;
  readonly remoteOffset: Float64Array;
  readonly size: Float64Array;
  readonly outRing: ReturnType<Carver['bytes']>;

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
  readonly inRing: ReturnType<Carver['bytes']>;
  readonly failed: Int32Array;
  readonly refusals: Int32Array;

  /** Answers that are to be sent: sequence of the question, region, address, bytes. */
  readonly answerSequence: Int32Array;
  readonly answerRegion: Int32Array;
  readonly answerAddress: Float64Array;
  readonly answerBytes: Float64Array;

  /** Reads that wait for their data: request, operation's place, sequence of the question. */
  readonly readRequest: Float64Array;
  readonly readEntry: Int32Array;
  readonly readSequence: Int32Array;

  constructor(carver: Carver, index: number) {
    this.index = index;
    const head = carver.bytes(LINK_WORDS * 4);
    this.words = new Int32Array(head.bytes.buffer, head.bytes.byteOffset, head.bytes.length / 4);
    this.lostWord = head.address + linkWord.lost * 4;
    this.endpoint = carver.numbers(1);
    this.sendRequest = carver.numbers(SENDS);
    this.sendRegion = carver.integers(SENDS);
    this.kind = carver.integers(QUEUE);
    this.slot = carver.integers(QUEUE);
    this.operation = carver.integers(QUEUE);
    this.first = carver.integers(QUEUE);
    this.last = carver.integers(QUEUE);
    this.hasSent = carver.integers(QUEUE);
    this.failure = carver.integers(QUEUE);
    this.failureDetail = carver.integers(QUEUE);
    this.unanswered = carver.integers(QUEUE);
    this.cursor = carver.integers(QUEUE);
    this.messagePlace = carver.integers(QUEUE);
    this.messageBytes = carver.integers(QUEUE);
    this.messageEnd = carver.integers(QUEUE);
    this.isMessageSent = carver.integers(QUEUE);
    this.isReported = carver.integers(QUEUE);
    this.region = carver.integers(QUEUE);
    this.key = carver.integers(QUEUE);
    this.cursorOffset = carver.numbers(QUEUE);
    this.local = carver.numbers(QUEUE);
    this.remoteOffset = carver.numbers(QUEUE);
    this.size = carver.numbers(QUEUE);
    this.inState = carver.integers(WINDOW);
    this.inAction = carver.integers(WINDOW);
    this.inOperation = carver.integers(WINDOW);
    this.inRegion = carver.integers(WINDOW);
    this.inKey = carver.integers(WINDOW);
    this.inEnd = carver.integers(WINDOW);
    this.inRequest = carver.numbers(WINDOW);
    this.inOffset = carver.numbers(WINDOW);
    this.inBytes = carver.numbers(WINDOW);
    this.inAdd = carver.numbers(WINDOW);
    this.failed = carver.integers(FAILED_OPERATIONS);
    this.refusals = carver.integers(WINDOW * 2);
    this.answerSequence = carver.integers(WINDOW);
    this.answerRegion = carver.integers(WINDOW);
    this.answerAddress = carver.numbers(WINDOW);
    this.answerBytes = carver.numbers(WINDOW);
    this.readRequest = carver.numbers(WINDOW);
    this.readEntry = carver.integers(WINDOW);
    this.readSequence = carver.integers(WINDOW);
    this.outRing = carver.bytes(OUT_RING_BYTES);
    this.inRing = carver.bytes(IN_RING_BYTES);
    this.buffers = carver.bytes(SENDS * UCX_CONTROL_BYTES);
  }
}
