// What time brings to a connection: acks and control records that are due, silent paths, a peer that is gone.
import { controlHeader, controlKinds, controlRecord, failReasons } from '../wire/packet-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { announce } from '../receive/announce.ts';
import { ackDue, type ReceiveSide } from '../receive/receive-side.ts';
import { finishFlushes, loseAll } from '../send/ack-input.ts';
import { NO_BURST } from '../send/send-window.ts';
import { transmit } from '../send/transmit.ts';
import { sendAck, sendControl, sendProbe } from '../wire/packet-writer.ts';
import type { Connection } from './connection.ts';

/** Does everything that is due and sends at most `bursts` bursts. Returns how many it sent. */
export function runConnection(connection: Connection, now: number, bursts: number): number {
  if (connection.error !== undefined) {
    sendEnd(connection, now);
    return 0;
  }
  if (connection.life.pendingSince === Number.POSITIVE_INFINITY) connection.life.pendingSince = now;
  if (isGone(connection, now)) return 0;
  connection.refuseUnfit();
  announce(connection);
  if (connection.send.eager?.hasRetracts === true) tellRetracts(connection);
  if (connection.send.unrequested > 0) requestToSend(connection);
  if (now >= ackTime(connection.receive)) runAcks(connection, now);
  runControl(connection, now);
  if (now >= connection.send.lossDeadline) checkPaths(connection, now);
  keepAlive(connection, now);
  traceBegin('transport.burst');
  const sent = transmit(connection, now, bursts);
  traceEnd('transport.burst');
  // A flush behind nothing waits for no ack.
  if (connection.send.flushes.head !== undefined) finishFlushes(connection);
  return sent;
}

/** When the connection next has something to do. */
export function deadlineOf(connection: Connection): number {
  if (connection.error !== undefined)
    return connection.life.endsUnsent > 0 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  let deadline = Math.min(connection.send.deadline, connection.send.lossDeadline, ackTime(connection.receive));
  deadline = Math.min(deadline, connection.receive.holdDeadline);
  if (connection.control.open > 0) deadline = Math.min(deadline, controlTime(connection));
  if (connection.life.pending > 0) deadline = Math.min(deadline, keepAliveTime(connection), giveUpTime(connection));
  return deadline;
}

function ackTime(receive: ReceiveSide): number {
  if (receive.ackDue === ackDue.no) return Number.POSITIVE_INFINITY;
  return receive.ackDue === ackDue.now ? Number.NEGATIVE_INFINITY : receive.ackDeadline;
}

function runAcks(connection: Connection, now: number): void {
  do {
    if (!sendAck(connection, now)) return;
  } while (connection.receive.arrivals.touchedCount > 0);
  connection.receive.ackDue = ackDue.no;
  connection.receive.unackedArrivals = 0;
}

/** Tells the peer that the connection is over, with an ack of everything that had come. */
function sendEnd(connection: Connection, now: number): void {
  const { life } = connection;
  for (let path = connection.replyPath(); life.endsUnsent > 0; path = connection.pathBesides(path)) {
    if (!sendAck(connection, now, life.endReason, path)) return;
    life.endsUnsent--;
  }
}

function silentFrom(connection: Connection): number {
  return Math.max(connection.receive.heardAt, connection.life.pendingSince);
}

function keepAliveTime(connection: Connection): number {
  return Math.max(silentFrom(connection), connection.life.probedAt) + connection.engine.settings.keepAlive;
}

function keepAlive(connection: Connection, now: number): void {
  if (connection.life.pending === 0 || now < keepAliveTime(connection)) return;
  const path = connection.pathBesides(connection.life.probedPath);
  if (!sendProbe(connection, path, now)) return;
  connection.life.probedAt = now;
  connection.life.probedPath = path;
}

function giveUpTime(connection: Connection): number {
  const { control, engine } = connection;
  const { window } = connection.send;
  const { heardAt } = connection.receive;
  const { pending, pendingSince } = connection.life;
  if (pending === 0) {
    // Nobody waits, but records are repeated, and segments of requests that have failed: not for ever.
    const segments = window.outstanding > 0 ? connection.send.progressAt : 0;
    return Math.max(heardAt, control.progressAt, segments) + engine.settings.giveUp;
  }
  let since = silentFrom(connection);
  if (window.outstanding > 0) since = Math.min(since, Math.max(connection.send.progressAt, pendingSince));
  if (control.sent !== control.first) since = Math.min(since, Math.max(control.progressAt, pendingSince));
  return since + engine.settings.giveUp;
}

/** Gives the connection up if the peer, or one segment, has been waited for too long. */
function isGone(connection: Connection, now: number): boolean {
  const { control } = connection;
  const { window } = connection.send;
  const waits = connection.life.pending > 0 || control.sent !== control.first || window.outstanding > 0;
  if (!waits) return false;
  if (now < giveUpTime(connection)) return false;
  const { engine, peerName } = connection;
  const { pending } = connection.life;
  const silence = now - (pending === 0 ? connection.receive.heardAt : silentFrom(connection));
  // What it said last may have come shortly after what it had not confirmed was sent.
  const silent = silence >= engine.settings.giveUp / 2;
  const seconds = Math.round((silent ? silence : engine.settings.giveUp) / 1e5) / 10;
  const what = silent
    ? `nothing was heard from it for ${seconds} s`
    : `nothing that is sent has arrived for ${seconds} s`;
  const message = `Lost the connection to ${peerName}: ${what} while ${pending} requests were pending`;
  const error = new WeftlineError(silent ? 'WL_PEER_LOST' : 'WL_TIMEOUT', message, {
    details: { peer: peerName, pending, seconds },
  });
  connection.end(error, failReasons.silent);
  return true;
}

// Retransmission timeouts: finds paths that are silent although something is in flight on them, asks those, and gives up
// the dead ones. path-table.ts has how long an answer may take.

/** Probes of a path without an answer, while other paths answer, after which it is dead. */
const PROBES_BEFORE_DEAD = 2;
/** Dead paths and silent peers are asked at most this seldom, in microseconds. */
const MAX_PROBE_INTERVAL = 1_000_000;

/** How long to wait after asking `times` times without an answer. */
function backOff(patience: number, times: number): number {
  return Math.min(patience * 2 ** Math.min(times, 16), MAX_PROBE_INTERVAL);
}

/**
 * Looks for paths that are silent although something is in flight on them, and asks those. Only an answer, or silence
 * while other paths speak, makes anything lost: if all are silent the peer is slow or gone, and repeating helps neither.
 */
function checkPaths(connection: Connection, now: number): void {
  const { paths, counters } = connection;
  const { bursts } = connection.send;
  let next = Number.POSITIVE_INFINITY;
  for (let path = 0; path < paths.count; path++) {
    const idle = bursts.oldest[path] === NO_BURST;
    if (idle && paths.alive[path] === 1) {
      paths.unanswered[path] = 0;
      continue;
    }
    const patience = paths.timeout(path, connection.engine.settings.minRto) + connection.engine.settings.ackDelay;
    const unanswered = paths.unanswered[path]!;
    const since = paths.silentSince[path]!;
    let due = since + backOff(patience, Math.max(0, unanswered - 1));
    if (now >= due) {
      counters.timeouts++;
      // What was sent on a dead path because all were dead is lost as well, as soon as another has come back.
      const canDie = paths.alive[path] === 1 || bursts.oldest[path] !== NO_BURST;
      const compared = unanswered === 0 || !canDie || othersSpeak(connection, path);
      if (compared && canDie && unanswered >= PROBES_BEFORE_DEAD) {
        paths.kill(path);
        loseAll(connection, path);
      }
      paths.penalise(path);
      // Is it the path, or the peer? Where nothing else is under way, others have no reason to speak.
      if (!compared && paths.count > 1) sendProbe(connection, connection.pathBesides(path), now);
      if (!sendProbe(connection, path, now)) {
        next = Math.min(next, now + patience);
        continue;
      }
      if (unanswered === 0) paths.askedAt[path] = now;
      paths.unanswered[path] = Math.min(255, unanswered + 1);
      paths.silentSince[path] = now;
      due = now + backOff(patience, unanswered);
    }
    next = Math.min(next, due);
  }
  connection.send.lossDeadline =
    connection.life.pending > 0 || connection.send.window.outstanding > 0 ? next : Infinity;
}

/** Another path has answered something that was sent since this one was first asked. */
function othersSpeak({ paths }: Connection, path: number): boolean {
  const since = paths.askedAt[path]!;
  for (let other = 0; other < paths.count; other++) {
    if (other !== path && paths.echoedSentAt[other]! >= since) return true;
  }
  return false;
}

// Sends control records: those of posts and grants, new ones at once, open ones again until the peer confirms them.

/** Records before the new ones that are sent along, in case they were lost. */
const REPEATED_RECORDS = 8;

/** Sends that have met a receive without a grant ask for one. */
function requestToSend(connection: Connection): void {
  const { control } = connection;
  const { flowOrder } = connection.send;
  for (const flow of flowOrder) {
    for (let request = flow.messages.head; request !== undefined; request = request.next) {
      // A message of no bytes goes without a grant.
      if (request.announced || request.granted > 0 || request.bytes === 0) continue;
      if (!control.hasRoom()) return;
      control.append(controlKinds.requestToSend, request.flow);
      control.setIds(request.target, 0, 0);
      control.setSizes(request.bytes, 0);
      request.announced = true;
    }
  }
  connection.send.unrequested = 0;
}

/** Messages that went before their receives were announced, and were withdrawn since. */
function tellRetracts({ control, send: { eager } }: Connection): void {
  eager?.tellRetracts((handle, flow, number, slot) => {
    if (!control.hasRoom()) return false;
    control.append(controlKinds.retract, flow);
    control.setIds(handle, number, slot);
    return true;
  });
}

function runControl(connection: Connection, now: number): void {
  const { control } = connection;
  if (control.open === 0) return;
  const due = now >= controlTime(connection);
  if (!due) return;
  const most = Math.floor((connection.segmentBytes - controlHeader.size) / controlRecord.size);
  const isNew = control.end !== control.sent && !control.missing;
  // New records take a few that are still open along; a repetition begins with the oldest.
  const repeated = Math.min(REPEATED_RECORDS, most - 1, (control.sent - control.first) | 0);
  if (control.sent === control.first) control.progressAt = now;
  let from = isNew ? (control.sent - repeated) | 0 : control.first;
  if (!isNew && !control.missing) control.repeats++;
  control.missing = false;
  while (from !== control.end) {
    const count = Math.min(most, (control.end - from) | 0);
    // What was lost on one path is repeated on another.
    const path = isNew ? connection.replyPath() : connection.pathBesides(control.path);
    if (!sendControl(connection, from, count, path)) return;
    control.path = path;
    from = (from + count) | 0;
    if (((from - control.sent) | 0) > 0) control.sent = from;
    if (!isNew) break;
  }
  control.sentAt = now;
}

/** When control records are next sent: at once if there are new ones, else when their confirmation is overdue. */
function controlTime(connection: Connection): number {
  const { control, paths, engine } = connection;
  if (control.end !== control.sent || control.missing) return Number.NEGATIVE_INFINITY;
  const patience = paths.timeout(Math.max(0, connection.receive.arrivals.latestPath), engine.settings.minRto);
  return control.sentAt + backOff(patience + engine.settings.ackDelay, control.repeats);
}
