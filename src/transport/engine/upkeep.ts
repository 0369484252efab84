// What time brings to a connection: acks and control records that are due, silent paths, a peer that is gone.
import { failReasons } from '../../abi/transport-packet.ts';
import { WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { announce } from '../control/announce.ts';
import { controlTime, requestToSend, runControl, tellRetracts } from '../control/control-output.ts';
import { checkPaths } from '../paths/check-paths.ts';
import { ackDue, type ReceiveSide } from '../receive/receive-side.ts';
import { finishFlushes } from '../send/ack-input.ts';
import { transmit } from '../send/transmit.ts';
import { sendAck, sendProbe } from '../wire/packet-writer.ts';
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
