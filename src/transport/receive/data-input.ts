// Takes in runs of segments: checks where they belong, has them placed, and notes them.
// Hot path: no allocation. Nothing is placed before every bound is checked.
import {
  controlKinds,
  DATA_HEADER_BYTES,
  failReasons,
  LANDING_BYTES,
  packetFlags,
  PLACE_BYTES,
} from '../wire/packet-layout.ts';
import type { Connection } from '../engine/connection.ts';
import { met, takeEager, TAKEN } from './announce.ts';
import { ChunkOrder, Landing } from './landing.ts';
import { ackDue, addToCell } from './receive-side.ts';
import type { Region, RemoteAccess } from '../engine/region.ts';
import type { Request } from '../engine/request.ts';
import { traceArrived } from '../engine/trace-messages.ts';
import { ORDERS, run, runBytes } from './segment-run.ts';
import { MAX_ASKED } from '../send/send-side.ts';

const TWO_32 = 2 ** 32;
/** One refusal of the same place is enough for this many microseconds: the sender is told by a reliable record. */
const REJECTION_INTERVAL = 5000;

/**
 * Answers of a connection that are under way, each of which may have a chunk of places in memory; further ones wait. More
 * than a peer asks for at a time, because its acks may be late, and it does not count reads that it has cancelled.
 */
const MAX_ANSWERS = 2 * MAX_ASKED;

/** Flags of segments that are no part of a longer run. */
const ALONE = packetFlags.skip | packetFlags.signal | ORDERS | packetFlags.eager;

/** Takes in the run. */
export function endRun(connection: Connection): void {
  const { engine, counters } = connection;
  const { window } = connection.receive;
  const { sequence, count } = run;
  connection.receive.unackedArrivals += count;
  raiseAck(connection, (run.flags & packetFlags.ackNow) !== 0);
  if (window.isTooFar((sequence + count - 1) | 0)) {
    engine.drops.window += count;
    return;
  }
  if ((run.flags & ALONE) !== 0) {
    takeAlone(connection);
    return;
  }
  // Judged by what is new of it: the message of segments that came twice may be over.
  const first = firstMissing(connection);
  if (first === count) {
    counters.duplicateSegments += count;
    connection.receive.ackDue = ackDue.now;
    return;
  }
  const isWrite = (run.flags & (packetFlags.region | packetFlags.chunk)) !== 0;
  const region = isWrite ? writtenRegion(connection) : undefined;
  const request = isWrite ? undefined : engine.requests.find(run.target);
  const refusal = isWrite ? refuseWrite(region) : refuseMessage(connection, request);
  if (refusal !== 0) {
    run.sequence = (sequence + first) | 0;
    reject(connection, refusal, request?.bytes ?? region?.bytes.byteLength ?? 0);
    return;
  }
  if (window.isNext(sequence)) {
    place(connection, request, region, 0, count);
    window.advance(count);
  } else {
    placeMissing(connection, request, region);
  }
  applyDue(connection);
  if (request !== undefined && request.received >= request.messageBytes) {
    traceArrived(connection, 'message', request.handle);
    engine.done(request);
  }
}

/** Where a run of a write or of a chunk goes. */
function writtenRegion(connection: Connection): Region | undefined {
  if ((run.flags & packetFlags.chunk) !== 0) return landingOf(connection).region;
  return connection.engine.regions.find(run.target);
}

/** The landing memory, which is made when the first chunk or order comes. */
function landingOf({ engine, receive }: Connection): Landing {
  if (receive.landing === undefined) {
    const memory = new Uint8Array(new SharedArrayBuffer(LANDING_BYTES));
    receive.landing = new Landing(memory, engine.outbox.io.addressOf?.(memory) ?? 0);
  }
  return receive.landing;
}

/** Takes in a segment that is no part of a longer run. */
function takeAlone(connection: Connection): void {
  const { receive, counters } = connection;
  const { window } = receive;
  const { sequence, flags } = run;
  const isNext = window.isNext(sequence);
  const carriesData = (flags & (packetFlags.skip | packetFlags.signal)) === 0;
  if (carriesData && !isNext) receive.ackDue = ackDue.now;
  if (window.has(sequence)) {
    counters.duplicateSegments++;
    return;
  }
  if (!isTaken(connection)) return;
  window.add(sequence);
  applyDue(connection);
}

/** Carries out what a segment that is new and alone asks for; false if it is refused. */
function isTaken(connection: Connection): boolean {
  if ((run.flags & packetFlags.skip) !== 0) return true;
  if ((run.flags & packetFlags.signal) !== 0) return takeSignal(connection);
  return (run.flags & ORDERS) !== 0 ? takeOrder(connection) : takeEarly(connection);
}

/** Index of the first segment of the run that has not come before; the run's count if all have. */
function firstMissing({ receive: { window } }: Connection): number {
  let index = 0;
  while (index < run.count && window.has((run.sequence + index) | 0)) index++;
  return index;
}

/** Places the parts of the run that have not come before, and asks for an ack: the order is broken. */
function placeMissing(connection: Connection, request: Request | undefined, region: Region | undefined): void {
  const { counters } = connection;
  const { window } = connection.receive;
  const { sequence, count } = run;
  connection.receive.ackDue = ackDue.now;
  let from = 0;
  while (from < count) {
    if (window.has((sequence + from) | 0)) {
      counters.duplicateSegments++;
      from++;
      continue;
    }
    let to = from + 1;
    while (to < count && !window.has((sequence + to) | 0)) to++;
    place(connection, request, region, from, to - from);
    for (let index = from; index < to; index++) window.add((sequence + index) | 0);
    from = to;
  }
}

/** Has `count` segments of the run from number `from` on copied to where they belong. */
// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
function place(
  connection: Connection,
  request: Request | undefined,
  region: Region | undefined,
  from: number,
  count: number,
): void {
  const { engine, counters } = connection;
  const { placement } = engine;
  const isLast = from + count === run.count;
  const bytes = (count - 1) * run.payloadBytes + (isLast ? run.lastPayloadBytes : run.payloadBytes);
  counters.receivedSegments += count;
  counters.receivedBytes += bytes;
  if (bytes > 0 && !run.isPlaced) {
    const offset = run.offset + from * run.payloadBytes;
    placement.sourceOffset = run.at + from * run.stride + DATA_HEADER_BYTES;
    placement.sourceStride = run.stride;
    placement.region = (region ?? request?.region) as Region;
    placement.regionOffset = (region === undefined ? (request as Request).offset : 0) + run.base + offset;
    placement.count = count;
    placement.payloadBytes = run.payloadBytes;
    placement.lastPayloadBytes = isLast ? run.lastPayloadBytes : run.payloadBytes;
    engine.outbox.io.place(placement);
  }
  if (request === undefined) return;
  if (request.kind === 'receive') {
    if (!request.claimed) {
      // A peer that sends to it has read the record that announced it, and all before that: no ack need say so.
      connection.control.confirm((request.record + 1) | 0, engine.now);
      engine.admission.claim(connection.receive, request, run.messageBytes);
    }
    engine.admission.arrived(connection.receive, request, bytes);
  }
  request.received += bytes;
}

/** A message that was sent before the peer knew of its receive. */
function takeEarly(connection: Connection): boolean {
  // A receive that is too small ends with the first refusal of its message, so the sender must hear of that one.
  if (connection.control.isFull) return false;
  const reason = takeEager(connection);
  if (reason !== TAKEN) {
    // The sender's request, so that messages which have one slot after the other do not count as the same.
    run.target = -run.targetKey;
    return reject(connection, reason, reason === failReasons.tooLarge ? met.room : 0);
  }
  traceArrived(connection, 'segment', run.sequence);
  connection.counters.receivedSegments++;
  return true;
}

/** What the run orders. One object: a landing keeps a copy. */
const order = new ChunkOrder();

/** Has something done with a chunk, now or when all segments before have come. */
function takeOrder(connection: Connection): boolean {
  const isRead = (run.flags & packetFlags.gather) !== 0;
  order.sequence = run.sequence;
  order.flags = run.flags;
  order.target = run.target;
  order.targetKey = run.targetKey;
  order.chunk = Math.floor(run.offset / TWO_32);
  order.checksum = run.offset | 0;
  order.places = isRead ? run.base % TWO_32 : run.base;
  order.bytes = isRead ? order.places * PLACE_BYTES : run.messageBytes;
  order.reader = isRead ? run.messageBytes : 0;
  order.flow = isRead ? Math.floor(run.base / TWO_32) : 0;
  const landing = landingOf(connection);
  const { next } = connection.receive.window;
  const isDue = order.sequence === next;
  if (isDue && carryOut(connection)) {
    // It may have come before.
    landing.take(next);
    return true;
  }
  if (!isDue || isPostponed) landing.hold(order, next);
  return false;
}

/** The order that was looked at last waits until answers to earlier ones have gone. */
let isPostponed = false;

/** False if the order is refused: then the peer hears why, and the segment counts as one that has not come; or postponed. */
function carryOut(connection: Connection): boolean {
  const { engine, counters } = connection;
  const { flags, target, targetKey } = order;
  isPostponed = false;
  run.target = target;
  run.targetKey = targetKey;
  if ((flags & packetFlags.region) === 0) return takeAnswer(connection);
  const region = engine.regions.find(target);
  const isRead = (flags & packetFlags.gather) !== 0;
  const refusal = isRead ? refuseAccess(region, 'read') : refuseAccess(region, 'write');
  if (refusal !== 0 || region === undefined) return reject(connection, refusal, region?.bytes.byteLength ?? 0);
  if (isRead) return answer(connection, region);
  const bounds = landingOf(connection).scatter(order, region);
  if (bounds !== 0) return reject(connection, bounds, region.bytes.byteLength);
  counters.receivedSegments++;
  return true;
}

/** Takes in answers to a read of many ranges. */
function takeAnswer(connection: Connection): boolean {
  const { engine, send, counters } = connection;
  const request = engine.requests.find(order.target);
  const isOurs = request?.isPending === true && request.owner === connection && request.kind === 'read';
  if (request === undefined || !isOurs || request.ranges === undefined) {
    return reject(connection, failReasons.cancelled, 0);
  }
  const bounds = landingOf(connection).answer(order, request);
  if (bounds !== 0) return reject(connection, bounds, 0);
  counters.receivedSegments++;
  send.noteAsked(request);
  if (request.nextAnswer.passed === request.ranges.count) {
    request.received = request.ranges.bytes;
    engine.done(request);
  }
  return true;
}

/** Begins to answer a read of many ranges. */
function answer(connection: Connection, region: Region): boolean {
  const { engine, send, counters } = connection;
  isPostponed = send.answerCount >= MAX_ANSWERS || !engine.requests.hasRoom();
  if (isPostponed) return false;
  const ranges = landingOf(connection).rangesIn(order, region);
  if (ranges === undefined) return reject(connection, failReasons.bounds, region.bytes.byteLength);
  try {
    connection.openChunks();
  } catch {
    // A device has no room for the memory of chunks.
    return reject(connection, failReasons.cancelled, 0);
  }
  connection.reply(order.flow, region, { target: order.reader, ranges });
  counters.receivedSegments++;
  return true;
}

/** Carries out the orders and signals for which all segments before have come by now. */
function applyDue(connection: Connection): void {
  const { engine, receive } = connection;
  const { landing, signals, window } = receive;
  for (let held = landing?.take(window.next); held !== undefined; held = landing?.take(window.next)) {
    Object.assign(order, held);
    run.sequence = held.sequence;
    run.count = 1;
    if (!carryOut(connection)) {
      if (isPostponed) landing?.hold(order, window.next);
      break;
    }
    window.add(held.sequence);
  }
  if (signals.count > 0 && signals.apply(window.next)) engine.signalled();
}

/** Why the run cannot go to a posted request; 0 if it can. */
function refuseMessage(connection: Connection, request: Request | undefined): number {
  if (request === undefined || !request.isPending || request.owner !== connection) return failReasons.cancelled;
  if (request.kind !== 'receive' && request.kind !== 'read') return failReasons.cancelled;
  // The peer does not know of it: it is counted among those that wait for a message only once it does.
  if (!request.announced) return failReasons.cancelled;
  if (run.base + run.messageBytes > request.bytes) return failReasons.tooLarge;
  if (run.offset + runBytes() > run.messageBytes) return failReasons.bounds;
  // A sender that goes beyond its grant would take from the others what they were promised.
  if (request.kind === 'receive' && run.offset + runBytes() > request.granted) return failReasons.bounds;
  if (request.messageBytes === -1) request.messageBytes = run.messageBytes;
  // A receive takes in one part of a message, which its first packet names.
  if (request.base < 0) request.base = run.base;
  const isSame = request.messageBytes === run.messageBytes && (request.kind === 'read' ? 0 : request.base) === run.base;
  return isSame ? 0 : failReasons.bounds;
}

/** Why the run cannot be written to a region; 0 if it can. The whole write is judged by each of its segments. */
function refuseWrite(region: Region | undefined): number {
  const refusal = refuseAccess(region, 'write');
  if (refusal !== 0 || region === undefined) return refusal;
  if (run.base + run.messageBytes > region.bytes.byteLength) return failReasons.bounds;
  return run.offset + runBytes() > run.messageBytes ? failReasons.bounds : 0;
}

/** Why the peer may not do that with a region; 0 if it has shown the key of one that allows it. */
function refuseAccess(region: Region | undefined, access: keyof RemoteAccess): number {
  if (region === undefined || region.key !== run.targetKey) return failReasons.key;
  return region.remote[access] ? 0 : failReasons.access;
}

/** Adds to a counter, or keeps what is to be added until all segments before have come. */
function takeSignal(connection: Connection): boolean {
  const { engine, counters } = connection;
  const { window, signals } = connection.receive;
  const { sequence, base } = run;
  const region = engine.regions.find(run.target);
  const refusal = refuseAccess(region, 'write');
  if (refusal !== 0 || region === undefined) return reject(connection, refusal, region?.bytes.byteLength ?? 0);
  if (base + 8 > region.bytes.byteLength || (region.bytes.byteOffset + base) % 8 !== 0) {
    return reject(connection, failReasons.bounds, region.bytes.byteLength);
  }
  const add = run.offset + run.messageBytes * TWO_32;
  traceArrived(connection, 'segment', sequence);
  if (window.isNext(sequence)) {
    addToCell(region, base, add);
    engine.signalled();
  } else {
    signals.add(sequence, region, { offset: base, add });
  }
  counters.receivedSegments++;
  return true;
}

/**
 * The run is not taken, so its segments stay unacknowledged; a record says why, unless one has just done so for the same
 * `run.target`. Returns false, as what was not taken.
 */
function reject(connection: Connection, reason: number, room: number): false {
  const { control, engine, receive } = connection;
  engine.drops[reason === failReasons.bounds || reason === failReasons.tooLarge ? 'bounds' : 'target'] += run.count;
  const again = receive.lastRejection === run.target && engine.now - receive.lastRejectionAt < REJECTION_INTERVAL;
  if (again || !control.append(controlKinds.reject, 0)) return false;
  receive.lastRejection = run.target;
  receive.lastRejectionAt = engine.now;
  control.setIds(run.sequence, reason, 0);
  control.setSizes(room, 0);
  connection.wake();
  return false;
}

/** Decides how soon to acknowledge. */
export function raiseAck(connection: Connection, now: boolean): void {
  const { engine } = connection;
  if (now || connection.receive.unackedArrivals >= engine.settings.ackSegments) {
    connection.receive.ackDue = ackDue.now;
  } else if (connection.receive.ackDue === ackDue.no) {
    connection.receive.ackDue = ackDue.later;
    connection.receive.ackDeadline = engine.now + engine.settings.ackDelay;
  }
  engine.wake();
}
