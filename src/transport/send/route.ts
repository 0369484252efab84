// Which path the next burst takes, which congestion window it counts against, and how much of that is free. Hot path: no
// allocation.
import type { Connection } from '../engine/connection.ts';

/** Not before an ack or a post. */
const NOT_BEFORE_NEWS = Number.POSITIVE_INFINITY;
/** Of packets that go alone: the share that is sent on any path. */
const UNFAMILIAR_SHARE = 1 / 16;

/** Where the next burst may go. One object: nothing here outlives a call. */
export const route: { path: number; controller: number; segments: number; resumeAt: number } = {
  path: 0,
  controller: 0,
  segments: 0,
  resumeAt: 0,
};

/** Finds a path, the window it counts against, and how many of the `wanted` segments may go. False: see `resumeAt`. */
export function chooseRoute(connection: Connection, controller: number, wanted: number): boolean {
  const { paths, engine } = connection;
  route.resumeAt = NOT_BEFORE_NEWS;
  route.path = paths.choose(engine.random, connection.send.bursts);
  if (!engine.settings.perPath) {
    if (wanted === 1 && connection.send.window.outstanding === 0) preferFamiliar(connection);
    route.controller = controller;
    return admit(connection, wanted);
  }
  const first = route.path;
  for (let step = 0; step < paths.count; step++) {
    const path = (first + step) % paths.count;
    if (paths.alive[path] === 0 && paths.aliveCount > 0) continue;
    route.path = path;
    route.controller = path;
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
  if (paths.isNearlyAsGood(latestPath, route.path, send.bursts)) route.path = latestPath;
}

/** How many segments the window of `route.controller` admits: at least one if nothing of it is in flight. */
function admit(connection: Connection, wanted: number): boolean {
  const { controller } = route;
  const { send } = connection;
  const paced = send.nextSendAt[controller]!;
  if (paced > connection.engine.now) {
    route.resumeAt = Math.min(route.resumeAt, paced);
    return false;
  }
  const inFlight = send.bursts.controllerBytes[controller]!;
  const allowance = send.allowance(controller);
  const admitted = Math.floor(allowance / connection.segmentBytes);
  if (inFlight <= 0) {
    route.segments = Math.max(1, Math.min(wanted, admitted));
    return true;
  }
  // A few segments of a large window are not worth a burst of their own: acks will bring more room.
  const sliver = admitted * 2 < wanted && allowance * 4 < send.windowBytes(controller);
  if (admitted < 1 || sliver) return false;
  route.segments = Math.min(wanted, admitted);
  return true;
}
