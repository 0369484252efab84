// Takes in runs of segments: checks where they belong, has them placed, and notes them.
// Hot path: no allocation. Nothing is placed before every bound is checked.
import {
  controlKinds,
  DATA_HEADER_BYTES,
  failReasons,
  packetFlags,
  SCATTER_ENTRY_BYTES,
  scatterEntry,
} from '../wire/packet-layout.ts';
import type { Connection } from '../engine/connection.ts';
import { met, takeEager, TAKEN } from './announce.ts';
import { ackDue, addToCell } from './receive-side.ts';
import type { Region } from '../engine/region.ts';
import type { Request } from '../engine/request.ts';
import { traceArrived } from '../engine/trace-messages.ts';
import { run, runBytes } from './segment-run.ts';

const SCATTER = scatterEntry.offset;
const TWO_32 = 2 ** 32;
/** One refusal of the same place is enough for this many microseconds: the sender is told by a reliable record. */
const REJECTION_INTERVAL = 5000;

/** Flags of segments that are no part of a longer run. */
const ALONE = packetFlags.skip | packetFlags.signal | packetFlags.scatter | packetFlags.eager;

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
  const region = (run.flags & packetFlags.region) === 0 ? undefined : engine.regions.find(run.target);
  const request = (run.flags & packetFlags.region) === 0 ? engine.requests.find(run.target) : undefined;
  const refusal = (run.flags & packetFlags.region) === 0 ? refuseMessage(connection, request) : refuseWrite(region);
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
  applySignals(connection);
  if (request !== undefined && request.received >= request.messageBytes) {
    traceArrived(connection, 'message', request.handle);
    engine.done(request);
  }
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
  applySignals(connection);
}

/** Carries out what a segment that is new and alone asks for; false if it is refused. */
function isTaken(connection: Connection): boolean {
  if ((run.flags & packetFlags.skip) !== 0) return true;
  if ((run.flags & packetFlags.signal) !== 0) return takeSignal(connection);
  return (run.flags & packetFlags.scatter) !== 0 ? takeScattered(connection) : takeEarly(connection);
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

/** A segment whose payload goes to several places of a region. */
function takeScattered(connection: Connection): boolean {
  const isOfRegion = (run.flags & packetFlags.region) !== 0;
  const region = isOfRegion ? connection.engine.regions.find(run.target) : undefined;
  const refusal = refuseScattered(region);
  if (refusal !== 0 || region === undefined) return reject(connection, refusal, region?.bytes.byteLength ?? 0);
  placeScattered(connection, region);
  return true;
}

/** Why a scattered segment cannot be written; 0 if it can, with every range inside the region. */
function refuseScattered(region: Region | undefined): number {
  const refusal = refuseRegion(region);
  if (refusal !== 0 || region === undefined) return refusal;
  const view = run.view as DataView;
  const count = run.base;
  const places = count * SCATTER_ENTRY_BYTES;
  if (count === 0 || places > run.payloadBytes) return failReasons.bounds;
  const most = region.bytes.byteLength;
  let left = run.payloadBytes - places;
  let at = run.at + DATA_HEADER_BYTES;
  for (let entry = 0; entry < count; entry++, at += SCATTER_ENTRY_BYTES) {
    const length = view.getUint16(at + SCATTER.length, true);
    if (scatterBase(view, at) + length > most) return failReasons.bounds;
    left -= length;
  }
  return left === 0 ? 0 : failReasons.bounds;
}

function placeScattered({ engine, counters }: Connection, region: Region): void {
  const { placement } = engine;
  const view = run.view as DataView;
  let at = run.at + DATA_HEADER_BYTES;
  placement.sourceOffset = at + run.base * SCATTER_ENTRY_BYTES;
  placement.region = region;
  placement.count = 1;
  for (let entry = 0; entry < run.base; entry++, at += SCATTER_ENTRY_BYTES) {
    const length = view.getUint16(at + SCATTER.length, true);
    placement.regionOffset = scatterBase(view, at);
    placement.payloadBytes = length;
    placement.lastPayloadBytes = length;
    if (length > 0) engine.outbox.io.place(placement);
    placement.sourceOffset += length;
  }
  counters.receivedSegments++;
  counters.receivedBytes += run.payloadBytes;
}

function scatterBase(view: DataView, at: number): number {
  return view.getUint32(at + SCATTER.base, true) + view.getUint16(at + SCATTER.baseHigh, true) * TWO_32;
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
  const refusal = refuseRegion(region);
  if (refusal !== 0 || region === undefined) return refusal;
  if (run.base + run.messageBytes > region.bytes.byteLength) return failReasons.bounds;
  return run.offset + runBytes() > run.messageBytes ? failReasons.bounds : 0;
}

/** Why the peer may write nothing to a region; 0 if it has shown the key of one that it may write to. */
function refuseRegion(region: Region | undefined): number {
  if (region === undefined || region.key !== run.targetKey) return failReasons.key;
  return region.remote.write ? 0 : failReasons.access;
}

/** Adds to a counter, or keeps what is to be added until all segments before have come. */
function takeSignal(connection: Connection): boolean {
  const { engine, counters } = connection;
  const { window, signals } = connection.receive;
  const { sequence, base } = run;
  const region = engine.regions.find(run.target);
  const refusal = refuseRegion(region);
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

function applySignals({ engine, receive: { signals, window } }: Connection): void {
  if (signals.count > 0 && signals.apply(window.next)) engine.signalled();
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
