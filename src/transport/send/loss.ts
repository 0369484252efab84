// Which segments are lost: those that later ones of the same path have overtaken, by number or by time (RACK, RFC 8985,
// per path: paths overtake each other all the time). Hot path: no allocation.
import { NO_BURST } from './burst-table.ts';
import type { Connection } from '../engine/connection.ts';

/** Shortest time in microseconds by which a segment must be overtaken. */
const MIN_REORDER_TIME = 20;

/** The path has echoed a newer transmission, in an ack that lists all that had arrived. */
export function detectLosses(connection: Connection, path: number): void {
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
    // Of the burst, those with a number below the echoed one, less the tolerance unless time has decided.
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
