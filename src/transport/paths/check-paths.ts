// Retransmission timeouts: finds paths that are silent although something is in flight on them, asks those, and gives up
// the dead ones. path-table.ts has how long an answer may take.
import type { Connection } from '../engine/connection.ts';
import { NO_BURST } from '../send/burst-table.ts';
import { loseAll } from '../send/loss.ts';
import { sendProbe } from '../wire/packet-writer.ts';

/** Probes of a path without an answer, while other paths answer, after which it is dead. */
const PROBES_BEFORE_DEAD = 2;
/** Dead paths and silent peers are asked at most this seldom, in microseconds. */
const MAX_PROBE_INTERVAL = 1_000_000;

/** How long to wait after asking `times` times without an answer. */
export function backOff(patience: number, times: number): number {
  return Math.min(patience * 2 ** Math.min(times, 16), MAX_PROBE_INTERVAL);
}

/**
 * Looks for paths that are silent although something is in flight on them, and asks those. Only an answer, or silence
 * while other paths speak, makes anything lost: if all are silent the peer is slow or gone, and repeating helps neither.
 */
export function checkPaths(connection: Connection, now: number): void {
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
