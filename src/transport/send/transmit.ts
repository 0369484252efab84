// Sends segments: lost ones first, then those of the flows in turn, as far as windows, pacing and the I/O allow.
// Hot path: no allocation.
import { DATA_HEADER_BYTES, MAX_SCATTER_ENTRIES, packetFlags, SCATTER_ENTRY_BYTES } from '../wire/packet-layout.ts';
import type { Connection } from '../engine/connection.ts';
import type { Request } from '../engine/request.ts';
import { traceSent } from '../engine/trace-messages.ts';
import { ackDue } from '../receive/receive-side.ts';
import { writeData, writeScatter } from '../wire/packet-writer.ts';
import { RANGE_STRIDE, type RangeList } from './range-list.ts';
import { NO_SLOT } from './send-side.ts';

/** When sending can go on: now with the next round, not before an ack or a post, or when the I/O has room again. */
const AGAIN = Number.NEGATIVE_INFINITY;
/** How long to wait for a full socket, in microseconds. */
const SOCKET_WAIT = 50;
/** Header of a scattered segment, with all that say where its bytes belong. */
const SCATTER_BYTES = DATA_HEADER_BYTES + MAX_SCATTER_ENTRIES * SCATTER_ENTRY_BYTES;

/** The burst that is being made: its headers' place, its number, its payload. */
const outgoing = { at: 0, burst: 0, bytes: 0 };

/** Sends at most `bursts` bursts, and notes in `sendDeadline` when to go on. Returns how many it sent. */
export function transmit(connection: Connection, now: number, bursts: number): number {
  const { window, schedule } = connection.send;
  let sent = 0;
  connection.send.deadline = AGAIN;
  while (sent < bursts) {
    if (window.lostCount === 0 && schedule.size === 0) {
      connection.send.deadline = NOT_BEFORE_NEWS;
      return sent;
    }
    const went = window.lostCount > 0 ? retransmit(connection, now) : sendNext(connection, now);
    if (went === WENT) sent++;
    else if (went === STUCK) return sent;
  }
  return sent;
}

const WENT = 0;
/** Nothing was sent, but the next attempt may do better. */
const SKIPPED = 1;
/** `sendDeadline` says when to try again. */
const STUCK = 2;
type Outcome = typeof WENT | typeof SKIPPED | typeof STUCK;

function sendNext(connection: Connection, now: number): Outcome {
  const { schedule, window } = connection.send;
  const queue = schedule.current();
  const request = queue.ready();
  if (request === undefined) {
    schedule.dropCurrent();
    return SKIPPED;
  }
  if (request.kind === 'flush') {
    queue.shift();
    request.value = window.next;
    connection.send.flushes.push(request);
    return SKIPPED;
  }
  const { ranges } = request;
  const isGathered = ranges?.isShort(request.nextRange, connection.payloadBytes) === true;
  const wanted = isGathered ? 1 : Math.max(1, Math.ceil(readyBytes(request) / connection.payloadBytes));
  const room = window.room();
  if (room <= 0) return stuck(connection, NOT_BEFORE_NEWS);
  if (!choosePath(connection, queue.flow.controller, Math.min(wanted, connection.burstSegments, room))) {
    return stuck(connection, chosen.resumeAt);
  }
  const at = connection.engine.outbox.reserve(isGathered ? SCATTER_BYTES : chosen.segments * DATA_HEADER_BYTES);
  if (at === -1) return stuck(connection, now + SOCKET_WAIT);
  if (ranges !== undefined && isGathered) sendScattered(connection, request, ranges, at);
  else sendFresh(connection, request, at, now);
  if (request.segmented) {
    queue.remove(request);
    traceSent(connection, request);
  }
  schedule.advance();
  return WENT;
}

/** What may go of the request; of a scattered write, of the range that is next. */
function readyBytes({ kind, granted, bytes, position, ranges, nextRange, rangePosition }: Request): number {
  if (ranges !== undefined) return ranges.lengths[nextRange]! - rangePosition;
  return (kind === 'send' ? granted : bytes) - position;
}

/**
 * Cuts the next segments of a request, or of a range of it that is too long to share a packet, and sends them on the chosen
 * chosen. The window's entry of a range names the range beside the place in it.
 */
function sendFresh(connection: Connection, request: Request, at: number, now: number): void {
  const { engine, payloadBytes } = connection;
  const { window, bursts } = connection.send;
  const { template } = engine;
  const { ranges, nextRange, position } = request;
  const count = chosen.segments;
  const from = ranges === undefined ? position : request.rangePosition;
  const bytes = Math.min(readyBytes(request), count * payloadBytes);
  const lastBytes = bytes - (count - 1) * payloadBytes;
  const burst = bursts.open(chosen.path, chosen.controller, now);
  if (position === 0 && request.kind === 'send' && request.slot === NO_SLOT) saveAck(connection, request);
  if (window.outstanding === 0) connection.send.progressAt = now;
  const entry = ranges === undefined ? from : nextRange * RANGE_STRIDE + from;
  template.sequence = window.appendRun(request.handle, entry, count, payloadBytes, lastBytes, burst);
  request.position = position + bytes;
  request.segmented = ranges === undefined ? request.position === request.bytes : passRange(request, ranges, bytes);
  request.unacked += count;
  connection.send.backlogBytes -= bytes;
  template.lastPayloadBytes = lastBytes;
  template.offset = from;
  template.count = count;
  addressTo(connection, request);
  if (ranges !== undefined) addressRange(connection, request, nextRange);
  outgoing.at = at;
  outgoing.burst = burst;
  outgoing.bytes = bytes;
  sendBurst(connection, request, now);
}

/** Passes `bytes` of the next range. True if that was the rest of the last one. */
function passRange(request: Request, ranges: RangeList, bytes: number): boolean {
  const position = request.rangePosition + bytes;
  const isWhole = position === ranges.lengths[request.nextRange]!;
  request.rangePosition = isWhole ? 0 : position;
  if (isWhole) request.nextRange++;
  return request.nextRange === ranges.end;
}

/** The first bytes of a message tell the peer that its record has come; an ack that would say nothing else is not sent. */
function saveAck({ control, receive }: Connection, request: Request): void {
  const saysMore = receive.ackDue !== ackDue.later || receive.unackedArrivals > 0 || receive.arrivals.touchedCount > 0;
  if (!saysMore && ((request.record + 1) | 0) === control.expected) receive.ackDue = ackDue.no;
}

/** Sends the next ranges of a scattered write, as many as go into a segment. Its window entry names the first of them. */
function sendScattered(connection: Connection, request: Request, ranges: RangeList, at: number): void {
  const { engine, payloadBytes } = connection;
  const { window, bursts } = connection.send;
  const { now } = engine;
  const first = request.nextRange;
  const end = ranges.endOf(first, payloadBytes);
  const data = ranges.bytesOf(first, end);
  const bytes = data + (end - first) * SCATTER_ENTRY_BYTES;
  const burst = bursts.open(chosen.path, chosen.controller, now);
  if (window.outstanding === 0) connection.send.progressAt = now;
  const sequence = window.append(request.handle, first * RANGE_STRIDE, bytes);
  window.burst[sequence & window.mask] = burst;
  request.nextRange = end;
  request.position += data;
  request.segmented = end === ranges.end;
  request.unacked++;
  connection.send.backlogBytes -= data;
  outgoing.at = at;
  outgoing.burst = burst;
  outgoing.bytes = bytes;
  engine.template.sequence = sequence;
  sendRanges(connection, request, first, end);
}

/** The segments belong to a range by itself of the scattered write. */
function addressRange(connection: Connection, request: Request, range: number): void {
  const { template } = connection.engine;
  const { sources, targets, lengths } = request.ranges as RangeList;
  request.offset = sources[range]!;
  template.base = targets[range]!;
  template.messageBytes = lengths[range]!;
}

/** Sends the ranges from `first` to before `end` of a scattered write as one packet. */
function sendRanges(connection: Connection, request: Request, first: number, end: number): void {
  const { template, outbox, now } = connection.engine;
  const ranges = request.ranges as RangeList;
  template.count = 1;
  template.offset = 0;
  addressTo(connection, request);
  template.flags |= packetFlags.scatter;
  template.base = end - first;
  template.messageBytes = 0;
  template.lastPayloadBytes = outgoing.bytes;
  const { burst } = outbox;
  burst.ranges = ranges;
  burst.firstRange = first;
  burst.endRange = end;
  writeScatter(outbox.words, outgoing.at + DATA_HEADER_BYTES, burst);
  sendBurst(connection, request, now);
}

/** Sends the oldest run of lost segments again. */
function retransmit(connection: Connection, now: number): Outcome {
  const { engine } = connection;
  const { window, bursts } = connection.send;
  const { requests, template } = engine;
  const first = window.firstLost();
  const slot = first & window.mask;
  const handle = window.request[slot]!;
  const found = requests.find(handle);
  const request = found !== undefined && found.isPending ? found : undefined;
  const controller = request === undefined ? 0 : connection.send.flow(request.flow).controller;
  const ranges = request?.ranges;
  const range = ranges === undefined ? 0 : Math.floor(window.offset[slot]! / RANGE_STRIDE);
  const isGathered = ranges?.isShort(range, connection.payloadBytes) === true;
  if (!choosePath(connection, controller, lostRun(connection, first, isGathered)))
    return stuck(connection, chosen.resumeAt);
  const at = engine.outbox.reserve(isGathered ? SCATTER_BYTES : chosen.segments * DATA_HEADER_BYTES);
  if (at === -1) return stuck(connection, now + SOCKET_WAIT);
  const count = chosen.segments;
  const burst = bursts.open(chosen.path, chosen.controller, now);
  let bytes = 0;
  for (let segment = 0; segment < count; segment++) {
    const sequence = (first + segment) | 0;
    // What a request that has ended would have carried is nobody's any more.
    if (request === undefined) window.bytes[sequence & window.mask] = 0;
    bytes += window.bytes[sequence & window.mask]!;
    window.setInFlight(sequence, burst);
  }
  if (request !== undefined && ranges !== undefined && isGathered) {
    template.sequence = first;
    outgoing.at = at;
    outgoing.burst = burst;
    outgoing.bytes = bytes;
    sendRanges(connection, request, range, ranges.endOf(range, bytes));
    connection.counters.retransmittedSegments++;
    return WENT;
  }
  template.lastPayloadBytes = window.bytes[(first + count - 1) & window.mask]!;
  template.sequence = first;
  template.offset = window.offset[slot]! - range * RANGE_STRIDE;
  template.count = count;
  addressTo(connection, request);
  if (request !== undefined && ranges !== undefined) addressRange(connection, request, range);
  // A segment that a grant cut short may be followed by its like.
  template.payloadBytes = window.bytes[slot]!;
  outgoing.at = at;
  outgoing.burst = burst;
  outgoing.bytes = bytes;
  sendBurst(connection, request, now);
  connection.counters.retransmittedSegments += count;
  return WENT;
}

/** How many segments from `first` on are lost, of the same request and, but for the last, full. */
function lostRun(connection: Connection, first: number, isGathered: boolean): number {
  const { burstSegments } = connection;
  const { window } = connection.send;
  const { mask, request, bytes, offset } = window;
  const full = bytes[first & mask]!;
  let count = 1;
  if (isGathered) return count;
  while (count < burstSegments && bytes[(first + count - 1) & mask] === full) {
    const sequence = (first + count) | 0;
    const next = sequence & mask;
    const joins =
      window.isOutstanding(sequence) &&
      window.isLost(sequence) &&
      request[next] === request[first & mask] &&
      // What follows in a scattered write may be another range.
      offset[next] === offset[first & mask]! + count * full &&
      bytes[next]! <= full;
    if (!joins) break;
    count++;
  }
  return count;
}

/** Fills in where the segments belong; `undefined`: nowhere, they only take their numbers. */
function addressTo(connection: Connection, request: Request | undefined): void {
  const { template } = connection.engine;
  template.payloadBytes = connection.payloadBytes;
  template.target = request?.target ?? 0;
  template.targetKey = request?.targetKey ?? 0;
  template.base = request?.base ?? 0;
  template.messageBytes = request?.bytes ?? 0;
  if (request === undefined) {
    template.flags = packetFlags.skip;
    template.payloadBytes = 0;
    template.lastPayloadBytes = 0;
    template.offset = 0;
  } else if (request.kind === 'signal') {
    template.flags = packetFlags.region | packetFlags.signal;
    template.offset = request.value % 2 ** 32;
    template.messageBytes = Math.floor(request.value / 2 ** 32);
  } else if (request.kind === 'write') {
    template.flags = packetFlags.region;
    template.offset += request.partOffset;
    template.messageBytes = request.wholeBytes;
  } else if (request.slot !== NO_SLOT) {
    template.flags = packetFlags.eager;
    template.target = request.flow | (request.slot << 16);
    template.targetKey = request.handle;
    template.base = request.number >>> 0;
  } else {
    template.flags = 0;
    template.targetKey = 0;
  }
}

function sendBurst(connection: Connection, request: Request | undefined, now: number): void {
  const { at, burst, bytes } = outgoing;
  const { engine, paths, counters } = connection;
  const { bursts } = connection.send;
  const { template, outbox } = engine;
  const { path, controller } = chosen;
  const { count } = template;
  const wireBytes = bytes + count * DATA_HEADER_BYTES;
  const pathSequence = paths.nextSequence[path]!;
  if (bursts.oldest[path] === burst) paths.silentSince[path] = now;
  bursts.firstPathSequence[burst] = pathSequence;
  bursts.fill(burst, template.sequence, count, bytes);
  paths.nextSequence[path] = pathSequence + count;
  paths.sentSegments[path] = paths.sentSegments[path]! + count;
  template.path = path;
  template.pathSequence = pathSequence;
  charge(connection, controller, wireBytes, now);
  template.lastFlags = wantsAck(connection, request) ? packetFlags.ackNow : 0;
  writeData(connection, template, at, now);
  const { burst: out } = outbox;
  out.peer = connection.peer;
  out.path = path;
  out.count = count;
  out.headerOffset = at;
  out.region = bytes === 0 ? undefined : request?.region;
  if (out.ranges === undefined) {
    out.headerBytes = DATA_HEADER_BYTES;
    out.payloadOffset = (request?.offset ?? 0) + template.offset;
    out.payloadBytes = template.payloadBytes;
    out.lastPayloadBytes = template.lastPayloadBytes;
  } else {
    out.payloadBytes = wireBytes - out.headerBytes;
    out.lastPayloadBytes = out.payloadBytes;
  }
  out.urgent = false;
  // A peer may read memory that its owner is writing.
  outbox.sendBurst(connection.guard, request?.kind === 'reply');
  out.ranges = undefined;
  counters.sentSegments += count;
  counters.sentBytes += bytes;
  const deadline = now + paths.timeout(path, engine.settings.minRto) + engine.settings.ackDelay;
  if (deadline < connection.send.lossDeadline) connection.send.lossDeadline = deadline;
}

/** An ack is worth its packet if this was all for now. */
function wantsAck(connection: Connection, request: Request | undefined): boolean {
  if (request === undefined || request.segmented) return true;
  const { send, segmentBytes } = connection;
  return send.allowance(chosen.controller) < segmentBytes || send.window.room() === 0;
}

function charge(connection: Connection, controller: number, bytes: number, now: number): void {
  const { send } = connection;
  send.credits?.onSend(bytes);
  const { rate } = send.congestion[controller]!;
  if (rate === Number.POSITIVE_INFINITY) return;
  const start = Math.max(send.nextSendAt[controller]!, now);
  send.nextSendAt[controller] = start + bytes / rate;
}

function stuck(connection: Connection, resumeAt: number): Outcome {
  connection.send.deadline = resumeAt;
  return STUCK;
}

// Chooses the path of the next burst, the congestion window it counts against, and how much of that is free. Hot path: no
// allocation.

/** Time of a wait that only an ack or a post ends. */
const NOT_BEFORE_NEWS = Number.POSITIVE_INFINITY;
/** Share of packets that go alone which is sent on any path. */
const UNFAMILIAR_SHARE = 1 / 16;

/** The choice for the next burst. One object: nothing here outlives a call. */
const chosen: { path: number; controller: number; segments: number; resumeAt: number } = {
  path: 0,
  controller: 0,
  segments: 0,
  resumeAt: 0,
};

/** Finds a path, the window it counts against, and how many of the `wanted` segments may go. False: see `resumeAt`. */
function choosePath(connection: Connection, controller: number, wanted: number): boolean {
  const { paths, engine } = connection;
  chosen.resumeAt = NOT_BEFORE_NEWS;
  chosen.path = paths.choose(engine.random, connection.send.bursts);
  if (!engine.settings.perPath) {
    if (wanted === 1 && connection.send.window.outstanding === 0) preferFamiliar(connection);
    chosen.controller = controller;
    return admit(connection, wanted);
  }
  const first = chosen.path;
  for (let step = 0; step < paths.count; step++) {
    const path = (first + step) % paths.count;
    if (paths.alive[path] === 0 && paths.aliveCount > 0) continue;
    chosen.path = path;
    chosen.controller = path;
    if (admit(connection, wanted)) return true;
  }
  return false;
}

/**
 * A packet that goes alone takes the path that the peer's last one came on, if that is about as good: both ends then know
 * which socket to look at. Now and then it does not, so that the other paths are known too.
 */
function preferFamiliar({ paths, engine, receive, send }: Connection): void {
  const { latestPath } = receive.arrivals;
  if (latestPath === -1 || engine.random() < UNFAMILIAR_SHARE) return;
  if (paths.isNearlyAsGood(latestPath, chosen.path, send.bursts)) chosen.path = latestPath;
}

/** How many segments the window of `chosen.controller` admits: at least one if nothing of it is in flight. */
function admit(connection: Connection, wanted: number): boolean {
  const { controller } = chosen;
  const { send } = connection;
  const paced = send.nextSendAt[controller]!;
  if (paced > connection.engine.now) {
    chosen.resumeAt = Math.min(chosen.resumeAt, paced);
    return false;
  }
  const inFlight = send.bursts.controllerBytes[controller]!;
  const allowance = send.allowance(controller);
  const admitted = Math.floor(allowance / connection.segmentBytes);
  if (inFlight <= 0) {
    chosen.segments = Math.max(1, Math.min(wanted, admitted));
    return true;
  }
  // A few segments of a large window are not worth a burst of their own: acks will bring more room.
  const sliver = admitted * 2 < wanted && allowance * 4 < send.congestion[controller]!.windowBytes;
  if (admitted < 1 || sliver) return false;
  chosen.segments = Math.min(wanted, admitted);
  return true;
}
