// Writes packets into the outbox: data headers word by word, acks, control packets, probes. Hot path: no allocation.
import {
  ackHeader,
  ackPath,
  controlHeader,
  controlRecord,
  DATA_HEADER_BYTES,
  dataWord,
  packetFlags,
  packetKinds,
  packetPrefix,
  PARKED_SHIFT,
  TRANSPORT_VERSION,
} from './packet-layout.ts';
import { MAX_ECHOES } from '../receive/receive-side.ts';
import type { Connection } from '../engine/connection.ts';
import type { DataTemplate } from '../engine/engine-core.ts';

const ACK = ackHeader.offset;
const ECHO = ackPath.offset;
const CONTROL = controlHeader.offset;
const WORD = dataWord;
const WORDS = DATA_HEADER_BYTES / 4;
const TWO_32 = 2 ** 32;

/** Writes the headers of a burst at `at` of the arena. */
export function writeData(connection: Connection, data: DataTemplate, at: number, now: number): void {
  const { words } = connection.engine.outbox;
  const first = TRANSPORT_VERSION | (packetKinds.data << 8) | (data.flags << 16);
  const { count, path, payloadBytes, target, targetKey, base } = data;
  const { remoteId, secretLow, secretHigh } = connection;
  const demand = connection.send.demandNow();
  const high = (Math.floor(data.messageBytes / TWO_32) << 8) | (Math.floor(base / TWO_32) << 16);
  let { offset } = data;
  let word = at >>> 2;
  for (let packet = 0; packet < count; packet++) {
    const last = packet === count - 1;
    words[word] = last ? first | (data.lastFlags << 16) : first;
    words[word + WORD.connection] = remoteId;
    words[word + WORD.secretLow] = secretLow;
    words[word + WORD.secretHigh] = secretHigh;
    words[word + WORD.checksum] = 0;
    words[word + WORD.path] = path | ((last ? data.lastPayloadBytes : payloadBytes) << 16);
    words[word + WORD.sequence] = data.sequence + packet;
    words[word + WORD.pathSequence] = data.pathSequence + packet;
    words[word + WORD.timestamp] = now;
    words[word + WORD.target] = target;
    words[word + WORD.targetKey] = targetKey;
    words[word + WORD.demand] = demand;
    words[word + WORD.offset] = offset;
    words[word + WORD.messageBytes] = data.messageBytes;
    words[word + WORD.base] = base;
    words[word + WORD.offsetHigh] = high | Math.floor(offset / TWO_32);
    offset += payloadBytes;
    word += WORDS;
  }
}

/** Asks the peer for an ack on a path. False if the I/O takes nothing now. */
export function sendProbe(connection: Connection, path: number, now: number): boolean {
  const { outbox, template } = connection.engine;
  const { paths } = connection;
  const at = outbox.reserve(DATA_HEADER_BYTES);
  if (at === -1) return false;
  template.count = 1;
  template.flags = packetFlags.ackNow;
  template.lastFlags = 0;
  template.path = path;
  template.sequence = connection.send.window.next;
  template.pathSequence = paths.nextSequence[path]!;
  template.target = 0;
  template.targetKey = 0;
  template.offset = 0;
  template.messageBytes = 0;
  template.base = 0;
  template.payloadBytes = 0;
  template.lastPayloadBytes = 0;
  writeData(connection, template, at, now);
  outbox.view.setUint8(at + packetPrefix.offset.kind, packetKinds.probe);
  paths.nextSequence[path] = template.pathSequence + 1;
  outbox.sendPacket(connection, path, at, DATA_HEADER_BYTES);
  connection.counters.probes++;
  return true;
}

function writePrefix(connection: Connection, at: number, kind: number, path: number): void {
  const { words } = connection.engine.outbox;
  const word = at >>> 2;
  words[word] = TRANSPORT_VERSION | (kind << 8);
  words[word + WORD.connection] = connection.remoteId;
  words[word + WORD.secretLow] = connection.secretLow;
  words[word + WORD.secretHigh] = connection.secretHigh;
  words[word + WORD.checksum] = 0;
  words[word + WORD.path] = path;
}

/** Tells the peer what has arrived; with a reason, that the connection is over. False if the I/O takes nothing now. */
export function sendAck(connection: Connection, now: number, reason = 0, path = connection.replyPath()): boolean {
  const { outbox } = connection.engine;
  const { arrivals, window } = connection.receive;
  const echoes = Math.min(arrivals.touchedCount, MAX_ECHOES);
  const words = Math.min(window.words(), connection.receive.ackWords);
  const bytes = ackHeader.size + echoes * ackPath.size + words * 4;
  const at = outbox.reserve(bytes);
  if (at === -1) return false;
  const { view } = outbox;
  writePrefix(connection, at, packetKinds.ack, path);
  const flags = (reason === 0 ? 0 : packetFlags.reset) | (connection.control.gap ? packetFlags.controlGap : 0);
  connection.control.gap = false;
  const parked = (connection.receive.eager?.parked ?? 0) << PARKED_SHIFT;
  view.setUint16(at + ACK.flags, flags | parked, true);
  view.setUint16(at + ACK.length, bytes - ackHeader.size, true);
  view.setInt32(at + ACK.cumulative, window.next, true);
  view.setInt32(at + ACK.controlExpected, connection.control.expected, true);
  view.setInt32(at + ACK.credit, connection.receive.credit.granted, true);
  view.setInt32(at + ACK.duplicates, connection.counters.duplicateSegments, true);
  view.setUint16(at + ACK.paths, echoes, true);
  view.setUint16(at + ACK.bitmapWords, words, true);
  view.setUint32(at + ACK.reason, reason, true);
  let to = at + ackHeader.size;
  for (let echo = 0; echo < echoes; echo++) {
    const from = arrivals.take();
    view.setUint16(to + ECHO.path, from, true);
    view.setUint16(to + ECHO.marks, arrivals.marks[from]!, true);
    view.setInt32(to + ECHO.pathSequence, arrivals.sequence[from]!, true);
    view.setInt32(to + ECHO.timestamp, arrivals.timestamp[from]!, true);
    view.setInt32(to + ECHO.hold, now - arrivals.arrivedAt[from]!, true);
    arrivals.marks[from] = 0;
    to += ackPath.size;
  }
  for (let word = 0; word < words; word++) {
    view.setInt32(to, window.word(word), true);
    to += 4;
  }
  outbox.sendPacket(connection, path, at, bytes);
  connection.counters.sentAcks++;
  return true;
}

/** Sends `count` control records from number `from` on. False if the I/O takes nothing now. */
export function sendControl(connection: Connection, from: number, count: number, path: number): boolean {
  const { outbox } = connection.engine;
  const bytes = controlHeader.size + count * controlRecord.size;
  const at = outbox.reserve(bytes);
  if (at === -1) return false;
  const { view } = outbox;
  writePrefix(connection, at, packetKinds.control, path);
  view.setUint16(at + CONTROL.length, bytes - controlHeader.size, true);
  view.setInt32(at + CONTROL.firstRecord, from, true);
  view.setUint16(at + CONTROL.records, count, true);
  view.setUint16(at + CONTROL.reserved, 0, true);
  connection.control.copy(from, count, { target: outbox.io.arena, at: at + controlHeader.size });
  outbox.sendPacket(connection, path, at, bytes);
  return true;
}
