// Takes in acks: what has arrived leaves the window, echoes give round-trip times and show what was lost on each path.
// Hot path: no allocation.
import { ackHeader, ackPath, EAGER_SLOTS, failReasons, packetFlags, PARKED_SHIFT } from '../wire/packet-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Connection } from '../engine/connection.ts';
import { CHUNK_ENTRY, RANGE_ENTRY } from './chunk-sender.ts';
import { NO_SLOT, type SendSide } from './send-side.ts';
import { NO_BURST } from './send-window.ts';

const ACK = ackHeader.offset;
const ECHO = ackPath.offset;
/** Echoes beyond this are of another clock, in microseconds. */
const MAX_RTT = 60_000_000;
/** What the echoes of the ack at hand said. */
const echoes = { rttSum: 0, baseSum: 0, rtts: 0, marks: 0 };
/** A bit for each slot whose message, the ack at hand says, has arrived and is not delivered. */
let parked = 0;

/** Takes in the ack at `at`, which has `bytes` bytes and has been authenticated. False if it is malformed. */
export function onAck(connection: Connection, view: DataView, at: number, bytes: number): boolean {
  const { control, engine } = connection;
  const { window } = connection.send;
  if (bytes < ackHeader.size) return false;
  const paths = view.getUint16(at + ACK.paths, true);
  const words = view.getUint16(at + ACK.bitmapWords, true);
  if (bytes !== ackHeader.size + paths * ackPath.size + words * 4) return false;
  const cumulative = view.getInt32(at + ACK.cumulative, true);
  if (((cumulative - window.next) | 0) > 0) return false;
  if (!control.confirm(view.getInt32(at + ACK.controlExpected, true), engine.now)) return false;
  const flags = view.getUint16(at + ACK.flags, true);
  if ((flags & packetFlags.controlGap) !== 0) repeatControl(connection);
  connection.counters.receivedAcks++;
  connection.send.credits?.onCredit(view.getInt32(at + ACK.credit, true));
  parked = flags >>> PARKED_SHIFT;
  advance(connection, cumulative);
  const bitmap = at + ackHeader.size + paths * ackPath.size;
  takeBitmap(connection, { view, at: bitmap, words, from: cumulative & ~31 });
  const isOwnFault = connection.counters.retransmittedSegments > 0;
  connection.send.tolerance.note(view.getInt32(at + ACK.duplicates, true), isOwnFault, engine.now);
  echoes.rttSum = 0;
  echoes.baseSum = 0;
  echoes.rtts = 0;
  echoes.marks = 0;
  for (let echo = 0; echo < paths; echo++) takeEcho(connection, view, at + ackHeader.size + echo * ackPath.size);
  notifyCongestion(connection);
  finishFlushes(connection);
  connection.wake();
  if ((flags & packetFlags.reset) !== 0) {
    finishDelivered(connection);
    endedByPeer(connection, view.getUint32(at + ACK.reason, true));
  }
  return true;
}

/** The peer misses control records: they go again, but once in a while, because the peer says so until they come. */
function repeatControl({ control, paths, engine }: Connection): void {
  // A side that only receives knows no round trip.
  const pause = Math.max(paths.rtt[control.path]!, engine.settings.minRto / 8);
  if (control.sent === control.first || engine.now - control.missingAt < pause) return;
  control.missing = true;
  control.missingAt = engine.now;
}

/** Everything before `cumulative` has arrived. */
function advance(connection: Connection, cumulative: number): void {
  const { engine } = connection;
  const { window, bursts } = connection.send;
  if (((cumulative - window.first) | 0) <= 0) return;
  connection.send.progressAt = engine.now;
  let sequence = window.first;
  while (sequence !== cumulative) {
    const slot = sequence & window.mask;
    const burst = window.burst[slot]!;
    if (burst !== NO_BURST && bursts.firstSequence[burst] === sequence && bursts.isWhole(burst)) {
      const count = bursts.count[burst]!;
      if (((cumulative - sequence - count) | 0) >= 0) {
        bursts.arriveWhole(burst);
        // INVARIANT: a slot names a burst only while its segment is in flight in it.
        for (let index = 0; index < count; index++) window.burst[(sequence + index) & window.mask] = NO_BURST;
        arrived(connection, sequence, count);
        sequence = (sequence + count) | 0;
        continue;
      }
    }
    if (!window.isAcked(sequence)) {
      window.acknowledge(sequence, bursts);
      arrived(connection, sequence, 1);
    }
    sequence = (sequence + 1) | 0;
  }
  window.first = cumulative;
}

interface Bitmap {
  readonly view: DataView;
  readonly at: number;
  readonly words: number;
  /** The segment of bit 0. */
  readonly from: number;
}

/** Segments beyond the cumulative one that have arrived. Bits of both sides stand in the same words. */
function takeBitmap(connection: Connection, { view, at, words, from }: Bitmap): void {
  const { engine } = connection;
  const { window, bursts } = connection.send;
  const { acked, mask } = window;
  for (let index = 0; index < words; index++) {
    const base = (from + index * 32) | 0;
    if (((base + 31 - window.first) | 0) < 0) continue;
    if (((base - window.next) | 0) >= 0) return;
    let fresh = view.getInt32(at + index * 4, true) & ~acked[(base & mask) >>> 5]!;
    while (fresh !== 0) {
      const bit = 31 - Math.clz32(fresh & -fresh);
      fresh &= fresh - 1;
      const sequence = (base + bit) | 0;
      if (!window.isOutstanding(sequence)) continue;
      connection.send.progressAt = engine.now;
      window.acknowledge(sequence, bursts);
      arrived(connection, sequence, 1);
    }
  }
}

/** `count` segments of a request, from `sequence` on, have arrived. */
function arrived(connection: Connection, sequence: number, count: number): void {
  const { engine } = connection;
  const { window, flushes } = connection.send;
  const entry = window.offset[sequence & window.mask]!;
  if (entry >= CHUNK_ENTRY && entry < RANGE_ENTRY) connection.send.acknowledgeChunk(entry, count);
  const request = engine.requests.find(window.request[sequence & window.mask]!);
  if (request === undefined || !request.isPending) return;
  request.unacked -= count;
  if (request.unacked !== 0) return;
  if (request.isWithdrawn) return engine.fail(request, request.error as WeftlineError);
  if (!request.segmented) return;
  // It ends with its answers.
  if (request.kind === 'read') return;
  if (request.kind !== 'signal') {
    // A record will tell when there is a receive for it.
    const isParked = request.slot !== NO_SLOT && ((parked >>> request.slot) & 1) === 1;
    if (!isParked) engine.done(request);
    return;
  }
  // The peer adds it when everything before it has come as well.
  request.value = (sequence + 1) | 0;
  flushes.insertByValue(request);
}

/** The newest arrival of one path: a sample of its round-trip time, and news of what it overtook. */
function takeEcho(connection: Connection, view: DataView, at: number): void {
  const { paths, engine } = connection;
  const path = view.getUint16(at + ECHO.path, true);
  if (path >= paths.count) return;
  const sequence = view.getInt32(at + ECHO.pathSequence, true);
  const isSent = ((sequence - paths.nextSequence[path]!) | 0) < 0;
  const isNewer = ((sequence - paths.echoedSequence[path]!) | 0) > 0;
  if (!isSent || !isNewer) return;
  echoes.marks += view.getUint16(at + ECHO.marks, true);
  const age = ((engine.now | 0) - view.getInt32(at + ECHO.timestamp, true)) | 0;
  const hold = view.getInt32(at + ECHO.hold, true);
  if (age < 0 || age > MAX_RTT || hold < 0 || hold > age) return;
  paths.echoedSequence[path] = sequence;
  paths.echoedSentAt[path] = engine.now - age;
  paths.echoedAt[path] = engine.now;
  paths.silentSince[path] = engine.now;
  paths.revive(path);
  // Clocks count whole microseconds.
  const rtt = Math.max(1, age - hold);
  paths.sample(path, rtt);
  const base = paths.leastRtt[path]!;
  echoes.rttSum += rtt;
  echoes.baseSum += base;
  echoes.rtts++;
  const { congestion } = connection.send;
  if (engine.settings.perPath && congestion.length > 1) {
    const { sample } = engine;
    sample.rtt = rtt;
    sample.baseRtt = base;
    sample.marked = view.getUint16(at + ECHO.marks, true) > 0;
    sample.now = engine.now;
    sample.ackedBytes = takeAcked(connection.send, path);
    congestion[path]?.onAck(sample);
  }
  detectLosses(connection, path);
}

function takeAcked({ bursts }: SendSide, controller: number): number {
  const bytes = bursts.controllerAcked[controller]!;
  // The count is not set to zero, so that the window is not listed as touched once more before the list is emptied.
  if (bytes > 0) bursts.controllerAcked[controller] = Number.MIN_VALUE;
  return bytes;
}

/** Tells each window what arrived of it. */
function notifyCongestion(connection: Connection): void {
  const { engine } = connection;
  const { bursts, congestion } = connection.send;
  const { sample } = engine;
  sample.now = engine.now;
  const perPath = engine.settings.perPath && congestion.length > 1;
  sample.rtt = echoes.rtts === 0 || perPath ? 0 : echoes.rttSum / echoes.rtts;
  sample.baseRtt = echoes.rtts === 0 || perPath ? 0 : echoes.baseSum / echoes.rtts;
  sample.marked = echoes.marks > 0;
  for (let index = 0; index < bursts.touchedCount; index++) {
    const controller = bursts.touched[index]!;
    sample.ackedBytes = bursts.controllerAcked[controller]!;
    bursts.controllerAcked[controller] = 0;
    if (sample.ackedBytes >= 1) congestion[controller]?.onAck(sample);
  }
  bursts.touchedCount = 0;
}

/** A flush is done when everything before it has arrived. */
export function finishFlushes(connection: Connection): void {
  const { engine } = connection;
  const { flushes, window } = connection.send;
  for (let head = flushes.head; head !== undefined; head = flushes.head) {
    if (((head.value - window.first) | 0) > 0) return;
    flushes.shift();
    engine.done(head);
  }
}

/**
 * Messages that an earlier ack has called parked, and the peer's last one no longer does, were delivered: the record that
 * says so may be lost. Only of the last ack, because another one may be older than the message.
 */
function finishDelivered({ engine, send: { eager } }: Connection): void {
  if (eager === undefined) return;
  for (let slot = 0; slot < EAGER_SLOTS; slot++) {
    const request = engine.requests.find(eager.handleOf(slot));
    if (request === undefined || !request.isPending || request.slot !== slot) continue;
    const hasArrived = request.segmented && request.unacked === 0;
    if (hasArrived && ((parked >>> slot) & 1) === 0) engine.done(request);
  }
}

function endedByPeer(connection: Connection, reason: number): void {
  // The control connection says the same, whichever of both is quicker.
  const [code, why] =
    reason === failReasons.closed
      ? (['WL_CLOSED', 'closed the connection'] as const)
      : (['WL_PEER_LOST', 'gave the connection up'] as const);
  const error = new WeftlineError(code, `${connection.peerName} ${why}`, {
    details: { peer: connection.peerName, reason },
  });
  connection.end(error, 0);
}

// Finds the segments that are lost: those that later ones of the same path have overtaken, by number or by time (RACK, RFC 8985,
// per path: paths overtake each other all the time). Hot path: no allocation.

/** Shortest time in microseconds by which a segment must be overtaken. */
const MIN_REORDER_TIME = 20;

/** The path has echoed a newer transmission, in an ack that lists all that had arrived. */
function detectLosses(connection: Connection, path: number): void {
  const { paths, send } = connection;
  const { bursts } = send;
  const echoed = paths.echoedSequence[path]!;
  const sentAt = paths.echoedSentAt[path]!;
  const tolerance = Math.max(MIN_REORDER_TIME, paths.rtt[path]! * send.tolerance.share);
  let lost = 0;
  for (let burst = bursts.oldest[path]!; burst !== NO_BURST;) {
    const after = bursts.nextOnPath[burst]!;
    const first = bursts.firstPathSequence[burst]!;
    const overtaken = (echoed - first) | 0;
    if (overtaken <= 0) break;
    const byTime = bursts.sentAt[burst]! + tolerance < sentAt;
    // Segments of the burst with a number below the echoed one, less the tolerance unless time has decided.
    const suspects = byTime ? overtaken : overtaken - send.tolerance.segments + 1;
    if (suspects > 0) lost += loseFirst(connection, burst, suspects);
    burst = after;
  }
  if (lost === 0) return;
  paths.lostSegments[path] = paths.lostSegments[path]! + lost;
  paths.penalise(path);
}

/** The first `suspects` segments of a burst are lost, if they have not arrived. Returns how many are. */
function loseFirst(connection: Connection, burst: number, suspects: number): number {
  const { engine } = connection;
  const { window, bursts, congestion } = connection.send;
  const first = bursts.firstSequence[burst]!;
  const controller = bursts.controller[burst]!;
  const count = Math.min(suspects, bursts.count[burst]!);
  let lost = 0;
  for (let index = 0; index < count; index++) {
    const sequence = (first + index) | 0;
    if (!window.isOutstanding(sequence) || window.burst[sequence & window.mask] !== burst) continue;
    window.lose(sequence, bursts);
    lost++;
  }
  if (lost > 0) congestion[controller]?.onLoss(engine.now);
  return lost;
}

/** Everything in flight on a path is lost: the path is dead. */
export function loseAll(connection: Connection, path: number): void {
  const { paths, engine } = connection;
  const { bursts, congestion } = connection.send;
  let lost = 0;
  for (let burst = bursts.oldest[path]!; burst !== NO_BURST;) {
    const after = bursts.nextOnPath[burst]!;
    const controller = bursts.controller[burst]!;
    lost += loseFirst(connection, burst, bursts.count[burst]!);
    congestion[controller]?.onTimeout(engine.now);
    burst = after;
  }
  paths.lostSegments[path] = paths.lostSegments[path]! + lost;
  paths.penalise(path);
}
