// The run that is being collected: consecutive segments of one message that lie side by side in one received packet.
// Hot path: no allocation.
import { DATA_HEADER_BYTES, dataHeader, dataWord, packetFlags } from '../wire/packet-layout.ts';

const DATA = dataHeader.offset;
const WORD = dataWord;
const TWO_32 = 2 ** 32;
/** Flags of segments that say what to do with a chunk. */
export const ORDERS: number = packetFlags.scatter | packetFlags.gather;
/** Flags that may differ between the segments of a run. */
const SAME_FLAGS = ~packetFlags.ackNow;

/** One object. */
export const run = {
  view: undefined as DataView | undefined,
  /** Header of the first in the view, and the distance to the next. */
  at: 0,
  stride: 0,
  count: 0,
  flags: 0,
  sequence: 0,
  target: 0,
  targetKey: 0,
  offset: 0,
  messageBytes: 0,
  base: 0,
  payloadBytes: 0,
  lastPayloadBytes: 0,
  /** The payload has been received straight into its place. */
  isPlaced: false,
};

/** Begins a run with the segment whose header, checked by the decoder, is at `at`. */
export function startRun(view: DataView, at: number, stride: number): void {
  run.view = view;
  run.at = at;
  run.stride = stride;
  run.count = 1;
  run.flags = view.getUint16(at + DATA.flags, true);
  run.sequence = view.getInt32(at + DATA.sequence, true);
  run.target = view.getUint32(at + DATA.target, true);
  run.targetKey = view.getUint32(at + DATA.targetKey, true);
  run.offset = view.getUint32(at + DATA.offset, true) + view.getUint8(at + DATA.offsetHigh) * TWO_32;
  run.messageBytes = view.getUint32(at + DATA.messageBytes, true) + view.getUint8(at + DATA.messageBytesHigh) * TWO_32;
  run.base = view.getUint32(at + DATA.base, true) + view.getUint16(at + DATA.baseHigh, true) * TWO_32;
  run.payloadBytes = view.getUint16(at + DATA.length, true);
  run.lastPayloadBytes = run.payloadBytes;
}

/** Adds the segment at `at`, behind the run so far in the same packet. False if it does not go on where the run ends. */
export function extendRun(view: DataView, at: number): boolean {
  const { count, flags, payloadBytes } = run;
  const bytes = view.getUint16(at + DATA.length, true);
  const offset = run.offset + count * payloadBytes;
  const joins =
    at === run.at + count * run.stride &&
    run.lastPayloadBytes === payloadBytes &&
    bytes <= payloadBytes &&
    (flags & (packetFlags.skip | packetFlags.signal | ORDERS | packetFlags.eager)) === 0 &&
    view.getInt32(at + DATA.sequence, true) === ((run.sequence + count) | 0) &&
    view.getUint32(at + DATA.target, true) === run.target &&
    view.getUint32(at + DATA.targetKey, true) === run.targetKey &&
    ((view.getUint16(at + DATA.flags, true) ^ flags) & SAME_FLAGS) === 0 &&
    view.getUint32(at + DATA.offset, true) === offset % TWO_32 &&
    view.getUint8(at + DATA.offsetHigh) === Math.floor(offset / TWO_32) &&
    view.getUint32(at + DATA.messageBytes, true) === run.messageBytes % TWO_32 &&
    view.getUint8(at + DATA.messageBytesHigh) === Math.floor(run.messageBytes / TWO_32) &&
    view.getUint32(at + DATA.base, true) === run.base % TWO_32 &&
    view.getUint16(at + DATA.baseHigh, true) === Math.floor(run.base / TWO_32);
  if (!joins) return false;
  run.flags |= view.getUint16(at + DATA.flags, true) & packetFlags.ackNow;
  run.lastPayloadBytes = bytes;
  run.count = count + 1;
  return true;
}

/** All of the first word but the flag that the last of a burst may have; and flags of segments that are taken one by one. */
const COMMON = ~(packetFlags.ackNow << 16);
const ALONE = (packetFlags.skip | packetFlags.signal | ORDERS | packetFlags.eager | packetFlags.payloadChecksum) << 16;

/**
 * Adds the segments from `at` on, up to `end`, whose headers are what the one before lets expect: the next numbers, the
 * next place, and otherwise the same words. Such a header is undamaged if the one before is, so nobody sums it. Returns how
 * many there were. The segment before `at` is the last of the run, its header has been checked; places in `words` are those
 * of the view, and all are multiples of four.
 */
export function extendRunAlike(words: Int32Array, at: number, end: number): number {
  const { stride, payloadBytes, count } = run;
  let last = (at - stride) >>> 2;
  const first = words[last]!;
  let offset = run.offset + count * payloadBytes;
  // The low words of the places do not wrap within the packet.
  const isPlain = (offset % TWO_32) + (end - at) < TWO_32 && (first & ALONE) === 0;
  if (!isPlain || run.lastPayloadBytes !== payloadBytes) return 0;
  offset |= 0;
  const path = words[last + WORD.path]! & 0xffff;
  let added = 0;
  for (let from = at; from + DATA_HEADER_BYTES <= end; from += stride) {
    const word = from >>> 2;
    const bytes = Math.min(stride, end - from) - DATA_HEADER_BYTES;
    const isAlike =
      ((words[word]! ^ first) & COMMON) === 0 &&
      words[word + WORD.path] === (path | (bytes << 16)) &&
      bytes <= payloadBytes &&
      words[word + WORD.sequence] === ((words[last + WORD.sequence]! + 1) | 0) &&
      words[word + WORD.pathSequence] === ((words[last + WORD.pathSequence]! + 1) | 0) &&
      words[word + WORD.offset] === offset &&
      haveSameWords(words, word, last);
    if (!isAlike) break;
    run.flags |= (words[word]! >>> 16) & packetFlags.ackNow;
    run.lastPayloadBytes = bytes;
    added++;
    if (bytes !== payloadBytes) break;
    offset = (offset + payloadBytes) | 0;
    last = word;
  }
  run.count = count + added;
  return added;
}

/** True if two neighbours in a run have the same words but for the first, length, checksum, numbers and place. */
function haveSameWords(words: Int32Array, word: number, last: number): boolean {
  return (
    words[word + WORD.connection] === words[last + WORD.connection] &&
    words[word + WORD.secretLow] === words[last + WORD.secretLow] &&
    words[word + WORD.secretHigh] === words[last + WORD.secretHigh] &&
    words[word + WORD.timestamp] === words[last + WORD.timestamp] &&
    words[word + WORD.target] === words[last + WORD.target] &&
    words[word + WORD.targetKey] === words[last + WORD.targetKey] &&
    words[word + WORD.demand] === words[last + WORD.demand] &&
    words[word + WORD.messageBytes] === words[last + WORD.messageBytes] &&
    words[word + WORD.base] === words[last + WORD.base] &&
    words[word + WORD.offsetHigh] === words[last + WORD.offsetHigh]
  );
}

/** Bytes that the run covers in its message. */
export function runBytes(): number {
  return (run.count - 1) * run.payloadBytes + run.lastPayloadBytes;
}
