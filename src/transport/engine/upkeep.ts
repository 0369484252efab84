// What time brings to a connection: acks and control records that are due, silent paths, a peer that is gone.
import {
  controlHeader,
  controlKinds,
  controlRecord,
  failReasons,
  MAX_OPEN_RECEIVES,
} from '../../abi/transport-packet.ts';
import { WeftlineError } from '../../core/errors.ts';
import { finishFlushes } from '../send/ack-input.ts';
import { NO_BURST } from '../send/burst-table.ts';
import { ackDue, type Connection } from './connection.ts';
import { loseAll } from '../send/loss.ts';
import { sendAck, sendControl, sendProbe } from '../wire/packet-writer.ts';
import { transmit } from '../send/transmit.ts';

/** Probes of a path without an answer, while other paths answer, after which it is dead. */
const PROBES_OF_THE_DYING = 2;
/** Dead paths and silent peers are asked at most this seldom, in microseconds. */
const LONGEST_PROBE_INTERVAL = 1_000_000;
/** Records before the new ones that are sent along, in case they were lost. */
const REPEATED_RECORDS = 8;

/** Does everything that is due and sends at most `bursts` bursts. Returns how many it sent. */
export function runConnection(connection: Connection, now: number, bursts: number): number {
  if (connection.error !== undefined) {
    tellEnd(connection, now);
    return 0;
  }
  if (connection.pendingSince === Number.POSITIVE_INFINITY) connection.pendingSince = now;
  if (isGone(connection, now)) return 0;
  connection.refuseOversized();
  announce(connection);
  if (connection.unrequested > 0) requestToSend(connection);
  if (connection.ackDue === ackDue.now || (connection.ackDue === ackDue.later && now >= connection.ackDeadline)) {
    runAcks(connection, now);
  }
  runControl(connection, now);
  if (now >= connection.lossDeadline) checkPaths(connection, now);
  keepAlive(connection, now);
  const sent = transmit(connection, now, bursts);
  // A flush behind nothing waits for no ack.
  if (connection.flushes.head !== undefined) finishFlushes(connection);
  return sent;
}

/** When the connection next has something to do. */
export function deadlineOf(connection: Connection): number {
  if (connection.error !== undefined) return connection.endUntold ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  let deadline = Math.min(connection.sendDeadline, connection.lossDeadline);
  if (connection.ackDue !== ackDue.no) deadline = Math.min(deadline, ackTime(connection));
  if (connection.control.open > 0) deadline = Math.min(deadline, controlTime(connection));
  if (connection.pending > 0) deadline = Math.min(deadline, keepAliveTime(connection), giveUpTime(connection));
  return deadline;
}

function ackTime(connection: Connection): number {
  return connection.ackDue === ackDue.now ? Number.NEGATIVE_INFINITY : connection.ackDeadline;
}

function runAcks(connection: Connection, now: number): void {
  do {
    if (!sendAck(connection, now)) return;
  } while (connection.arrivals.touchedCount > 0);
  connection.ackDue = ackDue.no;
  connection.unackedArrivals = 0;
}

/** Tells the peer that the connection is over, with an ack of everything that had come. */
function tellEnd(connection: Connection, now: number): void {
  if (!connection.endUntold || !sendAck(connection, now, connection.endReason)) return;
  connection.endUntold = false;
}

/** Posted receives and reads become control records as long as there is room for them. */
function announce(connection: Connection): void {
  const { unannounced, unannouncedReads, control, engine } = connection;
  for (let head = unannouncedReads.head; head !== undefined && control.hasRoom(); head = unannouncedReads.head) {
    unannouncedReads.shift();
    head.announced = true;
    control.append(controlKinds.read, head.flow);
    control.setIds(head.target, head.targetKey, head.handle);
    control.setSizes(head.bytes, head.base);
  }
  for (let head = unannounced.head; head !== undefined && control.hasRoom(); head = unannounced.head) {
    if (connection.unclaimedReceives === MAX_OPEN_RECEIVES) return;
    connection.unclaimedReceives++;
    unannounced.shift();
    head.announced = true;
    head.granted = engine.admission.firstGrant(head);
    control.append(controlKinds.clearToSend, head.flow);
    control.setIds(head.handle, 0, 0);
    control.setSizes(head.bytes, head.granted);
  }
}

/** Sends that have met a receive without a grant ask for one. */
function requestToSend(connection: Connection): void {
  const { control, flowOrder } = connection;
  for (const flow of flowOrder) {
    for (let request = flow.messages.head; request !== undefined; request = request.next) {
      if (request.announced || request.granted > 0) continue;
      if (!control.hasRoom()) return;
      control.append(controlKinds.requestToSend, request.flow);
      control.setIds(request.target, 0, 0);
      control.setSizes(request.bytes, 0);
      request.announced = true;
    }
  }
  connection.unrequested = 0;
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
    const path = isNew ? connection.replyPath() : pathBesides(connection, control.path);
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
  const patience = paths.timeout(Math.max(0, connection.arrivals.latestPath), engine.settings.minRto);
  return control.sentAt + backOff(patience + engine.settings.ackDelay, control.repeats);
}

function backOff(patience: number, times: number): number {
  return Math.min(patience * 2 ** Math.min(times, 16), LONGEST_PROBE_INTERVAL);
}

/**
 * Looks for paths that are silent although something is in flight on them, and asks those. Only an answer, or silence
 * while other paths speak, makes anything lost: if all are silent the peer is slow or gone, and repeating helps neither.
 */
function checkPaths(connection: Connection, now: number): void {
  const { paths, bursts, counters } = connection;
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
      if (compared && canDie && unanswered >= PROBES_OF_THE_DYING) {
        paths.kill(path);
        loseAll(connection, path);
      }
      paths.penalise(path);
      // Is it the path, or the peer? Where nothing else is under way, others have no reason to speak.
      if (!compared && paths.count > 1) sendProbe(connection, pathBesides(connection, path), now);
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
  connection.lossDeadline = connection.pending > 0 || connection.sendWindow.outstanding > 0 ? next : Infinity;
}

/** Another path has answered something that was sent since this one was first asked. */
function othersSpeak({ paths }: Connection, path: number): boolean {
  const since = paths.askedAt[path]!;
  for (let other = 0; other < paths.count; other++) {
    if (other !== path && paths.echoedSentAt[other]! >= since) return true;
  }
  return false;
}

function silentFrom(connection: Connection): number {
  return Math.max(connection.heardAt, connection.pendingSince);
}

function keepAliveTime(connection: Connection): number {
  return Math.max(silentFrom(connection), connection.probedAt) + connection.engine.settings.keepAlive;
}

function keepAlive(connection: Connection, now: number): void {
  if (connection.pending === 0 || now < keepAliveTime(connection)) return;
  const path = pathBesides(connection, connection.probedPath);
  if (!sendProbe(connection, path, now)) return;
  connection.probedAt = now;
  connection.probedPath = path;
}

function giveUpTime(connection: Connection): number {
  const { sendWindow, control, engine, heardAt, pending, pendingSince } = connection;
  if (pending === 0) {
    // Nobody waits, but records are repeated, and segments of requests that have failed: not for ever.
    const segments = sendWindow.outstanding > 0 ? connection.progressAt : 0;
    return Math.max(heardAt, control.progressAt, segments) + engine.settings.giveUp;
  }
  let since = silentFrom(connection);
  if (sendWindow.outstanding > 0) since = Math.min(since, Math.max(connection.progressAt, pendingSince));
  if (control.sent !== control.first) since = Math.min(since, Math.max(control.progressAt, pendingSince));
  return since + engine.settings.giveUp;
}

/** Gives the connection up if the peer, or one segment, has been waited for too long. */
function isGone(connection: Connection, now: number): boolean {
  const { control, sendWindow } = connection;
  const waits = connection.pending > 0 || control.sent !== control.first || sendWindow.outstanding > 0;
  if (!waits) return false;
  if (now < giveUpTime(connection)) return false;
  const { engine, peerName, pending } = connection;
  const silence = now - (pending === 0 ? connection.heardAt : silentFrom(connection));
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
  engine.end(connection, error, failReasons.silent);
  return true;
}

/** Another path than this one, if there is one: what got no answer is tried elsewhere. */
function pathBesides({ paths, engine, bursts }: Connection, path: number): number {
  const choice = paths.choose(engine.random, bursts.pathBytes);
  return choice === path ? (path + 1) % paths.count : choice;
}
