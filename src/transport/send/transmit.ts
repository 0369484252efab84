// Sends segments: lost ones first, then those of the flows in turn, as far as windows, pacing and the I/O allow.
// Hot path: no allocation.
import { CHUNK_BYTES, DATA_HEADER_BYTES, LANDING_BYTES, packetFlags } from '../wire/packet-layout.ts';
import type { Connection } from '../engine/connection.ts';
import type { DataTemplate } from '../engine/engine-core.ts';
import type { Region } from '../engine/region.ts';
import { NO_CHUNK, type Request } from '../engine/request.ts';
import { traceSent } from '../engine/trace-messages.ts';
import { ackDue } from '../receive/receive-side.ts';
import { writeData } from '../wire/packet-writer.ts';
import { CHUNK_ENTRY, RANGE_ENTRY, RANGE_STRIDE, SCATTER_ENTRY } from './chunk-sender.ts';
import { RangeCursor, type RangeList } from './range-list.ts';
import { NO_SLOT, type SendSide } from './send-side.ts';

/** When sending can go on: now with the next round, not before an ack or a post, or when the I/O has room again. */
const AGAIN = Number.NEGATIVE_INFINITY;
/** How long to wait for a full socket, in microseconds. */
const SOCKET_WAIT = 50;
/** The burst that is being made: its headers' place, its number, its payload and where that lies. */
const outgoing = { at: 0, burst: 0, bytes: 0, region: undefined as Region | undefined, from: 0 };

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
  const needsChunk = request.ranges !== undefined && request.chunk === NO_CHUNK && !isDirect(request);
  if (needsChunk && !connection.send.gather(request)) return SKIPPED;
  const wanted = Math.max(1, Math.ceil(readyBytes(connection.send, request) / connection.payloadBytes));
  const room = window.room();
  if (room <= 0) return stuck(connection, NOT_BEFORE_NEWS);
  if (!choosePath(connection, queue.flow.controller, Math.min(wanted, connection.burstSegments, room))) {
    return stuck(connection, chosen.resumeAt);
  }
  const at = connection.engine.outbox.reserve(chosen.segments * DATA_HEADER_BYTES);
  if (at === -1) return stuck(connection, now + SOCKET_WAIT);
  sendFresh(connection, request, at, now);
  if (request.segmented) {
    queue.remove(request);
    traceSent(connection, request);
  }
  schedule.advance();
  return WENT;
}

/** True if the next range of the request goes by itself. */
function isDirect({ kind, ranges, nextRange }: Request): boolean {
  return kind === 'write' && ranges !== undefined && ranges.lengths[nextRange.row]! >= ranges.directBytes;
}

/** What may go of the request; of a scattered write, of its chunk or of its next range. */
function readyBytes({ chunks }: SendSide, request: Request): number {
  const { kind, granted, bytes, position, chunk, ranges } = request;
  if (chunk !== NO_CHUNK && chunks !== undefined) return chunks.bytes[chunk]! - request.chunkPosition;
  if (ranges !== undefined) return ranges.lengths[request.nextRange.row]! - request.rangePosition;
  return (kind === 'send' ? granted : bytes) - position;
}

/**
 * Cuts the next segments of a request, or of the chunk or the long range that it sends, and sends them on the chosen path. A chunk of
 * which all has been cut is told to be scattered by a segment without bytes.
 */
function sendFresh(connection: Connection, request: Request, at: number, now: number): void {
  const { engine, payloadBytes } = connection;
  const { window, bursts } = connection.send;
  const { template } = engine;
  const { position, chunk, ranges } = request;
  const count = chosen.segments;
  const bytes = Math.min(readyBytes(connection.send, request), count * payloadBytes);
  const lastBytes = bytes - (count - 1) * payloadBytes;
  const burst = bursts.open(chosen.path, chosen.controller, now);
  if (position === 0 && request.kind === 'send' && request.slot === NO_SLOT) saveAck(connection, request);
  if (window.outstanding === 0) connection.send.progressAt = now;
  let entry = position;
  if (ranges !== undefined) entry = chunk === NO_CHUNK ? rangeEntry(request) : chunkEntry(request, bytes);
  template.sequence = window.appendRun(request.handle, entry, count, payloadBytes, lastBytes, burst);
  request.position = position + bytes;
  if (ranges === undefined) request.segmented = request.position === request.bytes;
  else if (chunk === NO_CHUNK) passRange(request, ranges, bytes);
  else connection.send.passChunk(request, count, bytes);
  request.unacked += count;
  connection.send.backlogBytes -= bytes;
  template.lastPayloadBytes = lastBytes;
  template.count = count;
  outgoing.at = at;
  outgoing.burst = burst;
  outgoing.bytes = bytes;
  addressTo(connection, request, entry);
  sendBurst(connection, request, now);
}

/** What the window notes of the next `bytes` of a chunk, or of the segment behind its last. */
function chunkEntry({ chunk, chunkPosition }: Request, bytes: number): number {
  return bytes === 0 ? SCATTER_ENTRY + chunk * CHUNK_BYTES : CHUNK_ENTRY + chunk * CHUNK_BYTES + chunkPosition;
}

/** The same of the next bytes of a long range. */
function rangeEntry({ nextRange, rangePosition }: Request): number {
  return RANGE_ENTRY + nextRange.passed * RANGE_STRIDE + rangePosition;
}

/** Passes bytes of the next range that are in segments now. */
function passRange(request: Request, ranges: RangeList, bytes: number): void {
  const { nextRange } = request;
  request.rangePosition += bytes;
  if (request.rangePosition < ranges.lengths[nextRange.row]!) return;
  request.rangePosition = 0;
  nextRange.pass(1, ranges);
  request.segmented = nextRange.passed === ranges.count;
}

/** The first bytes of a message tell the peer that its record has come; an ack that would say nothing else is not sent. */
function saveAck({ control, receive }: Connection, request: Request): void {
  const saysMore = receive.ackDue !== ackDue.later || receive.unackedArrivals > 0 || receive.arrivals.touchedCount > 0;
  if (!saysMore && ((request.record + 1) | 0) === control.expected) receive.ackDue = ackDue.no;
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
  const request = found !== undefined && found.isPending && !found.isWithdrawn ? found : undefined;
  const controller = request === undefined ? 0 : connection.send.flow(request.flow).controller;
  if (!choosePath(connection, controller, lostRun(connection, first))) return stuck(connection, chosen.resumeAt);
  const at = engine.outbox.reserve(chosen.segments * DATA_HEADER_BYTES);
  if (at === -1) return stuck(connection, now + SOCKET_WAIT);
  const count = chosen.segments;
  const burst = bursts.open(chosen.path, chosen.controller, now);
  let bytes = 0;
  for (let segment = 0; segment < count; segment++) {
    const sequence = (first + segment) | 0;
    // What a request that has ended or was cancelled would have carried is nobody's any more.
    if (request === undefined && !isOfChunk(window.offset[slot]!)) window.bytes[sequence & window.mask] = 0;
    bytes += window.bytes[sequence & window.mask]!;
    window.setInFlight(sequence, burst);
  }
  template.lastPayloadBytes = window.bytes[(first + count - 1) & window.mask]!;
  template.sequence = first;
  template.count = count;
  addressTo(connection, request, window.offset[slot]!);
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
function lostRun(connection: Connection, first: number): number {
  const { burstSegments } = connection;
  const { window } = connection.send;
  const { mask, request, bytes, offset } = window;
  const full = bytes[first & mask]!;
  let count = 1;
  while (count < burstSegments && bytes[(first + count - 1) & mask] === full) {
    const sequence = (first + count) | 0;
    const next = sequence & mask;
    const joins =
      window.isOutstanding(sequence) &&
      window.isLost(sequence) &&
      request[next] === request[first & mask] &&
      // What follows in a scattered write may be another chunk.
      offset[next] === offset[first & mask]! + count * full &&
      bytes[next]! <= full;
    if (!joins) break;
    count++;
  }
  return count;
}

/** True of bytes of a chunk. They go on when their request has ended: the peer may have the order by which it scatters them. */
function isOfChunk(entry: number): boolean {
  return entry >= CHUNK_ENTRY && entry < SCATTER_ENTRY;
}

/**
 * Fills in where segments belong and where their bytes lie, by what the window notes of the first; no request: nowhere, they
 * only take their numbers.
 */
function addressTo(connection: Connection, request: Request | undefined, entry: number): void {
  const { template } = connection.engine;
  template.payloadBytes = connection.payloadBytes;
  template.target = request?.target ?? 0;
  template.targetKey = request?.targetKey ?? 0;
  template.base = request?.base ?? 0;
  template.messageBytes = request?.bytes ?? 0;
  template.offset = entry;
  outgoing.region = request?.region;
  outgoing.from = (request?.offset ?? 0) + entry;
  if (entry >= CHUNK_ENTRY && (request !== undefined || isOfChunk(entry))) {
    addressScattered(connection, request as Request, entry);
  } else if (request === undefined) {
    template.flags = packetFlags.skip;
    template.payloadBytes = 0;
    template.lastPayloadBytes = 0;
    template.offset = 0;
  } else {
    addressWhole(template, request);
  }
}

/** The segments are of a message, or of a write or a signal to one place. */
function addressWhole(template: DataTemplate, request: Request): void {
  if (request.kind === 'signal') {
    template.flags = packetFlags.region | packetFlags.signal;
    template.offset = request.value % 2 ** 32;
    template.messageBytes = Math.floor(request.value / 2 ** 32);
  } else if (request.kind === 'write') {
    template.flags = packetFlags.region;
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

/** The segments are of a write or a read of many ranges. */
function addressScattered(connection: Connection, request: Request, entry: number): void {
  if (entry >= RANGE_ENTRY) addressRange(connection, request, entry - RANGE_ENTRY);
  else if (entry >= SCATTER_ENTRY) addressOrder(connection, request, (entry - SCATTER_ENTRY) / CHUNK_BYTES);
  else addressChunk(connection, entry % CHUNK_ENTRY);
}

/** One object: nothing here outlives a call. */
const addressed = new RangeCursor();

/** The segments are a part of a range, which is as a write by itself. */
function addressRange({ engine: { template } }: Connection, request: Request, place: number): void {
  const ranges = request.ranges as RangeList;
  // No range is far behind the next one: the window holds few.
  addressed.follow(request.nextRange);
  addressed.back(Math.floor(place / RANGE_STRIDE), ranges);
  template.flags = packetFlags.region;
  template.offset = place % RANGE_STRIDE;
  template.base = addressed.target(ranges);
  template.messageBytes = ranges.lengths[addressed.row]!;
  outgoing.from = addressed.source(ranges) + template.offset;
}

/** The segment says what to do with a chunk. */
function addressOrder({ engine: { template }, send: { chunks } }: Connection, request: Request, chunk: number): void {
  if (chunks === undefined) return;
  template.offset = chunk * 2 ** 32 + (chunks.checksums[chunk]! >>> 0);
  template.base = chunks.places[chunk]!;
  template.messageBytes = chunks.bytes[chunk]!;
  if (request.kind === 'read') {
    template.flags = packetFlags.region | packetFlags.gather;
    template.base += request.flow * 2 ** 32;
    template.messageBytes = request.handle;
  } else {
    template.flags = request.kind === 'write' ? packetFlags.region | packetFlags.scatter : packetFlags.scatter;
  }
}

/** The segments are a part of a chunk. */
function addressChunk({ engine: { template }, send: { chunks } }: Connection, place: number): void {
  template.flags = packetFlags.chunk;
  template.target = 0;
  template.targetKey = 0;
  template.base = 0;
  template.offset = place;
  template.messageBytes = LANDING_BYTES;
  outgoing.region = chunks?.region;
  outgoing.from = place;
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
  out.region = bytes === 0 ? undefined : outgoing.region;
  out.headerBytes = DATA_HEADER_BYTES;
  out.payloadOffset = outgoing.from;
  out.payloadBytes = template.payloadBytes;
  out.lastPayloadBytes = template.lastPayloadBytes;
  out.urgent = false;
  // A peer may read memory that its owner is writing.
  outbox.sendBurst(connection.guard, request?.kind === 'reply');
  counters.sentSegments += count;
  counters.sentBytes += bytes;
  const deadline = now + paths.timeout(path, engine.settings.minRto) + engine.settings.ackDelay;
  if (deadline < connection.send.lossDeadline) connection.send.lossDeadline = deadline;
}

/** An ack is worth its packet if this was all for now, or makes a chunk free. */
function wantsAck(connection: Connection, request: Request | undefined): boolean {
  if (request === undefined || request.segmented || outgoing.bytes === 0) return true;
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
