// Sends control records: those of posts and grants, new ones at once, open ones again until the peer confirms them.
import { controlHeader, controlKinds, controlRecord } from '../../abi/transport-packet.ts';
import type { Connection } from '../engine/connection.ts';
import { backOff } from '../paths/check-paths.ts';
import { sendControl } from '../wire/packet-writer.ts';

/** Records before the new ones that are sent along, in case they were lost. */
const REPEATED_RECORDS = 8;

/** Sends that have met a receive without a grant ask for one. */
export function requestToSend(connection: Connection): void {
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
export function tellRetracts({ control, send: { eager } }: Connection): void {
  eager?.tellRetracts((handle, flow, number, slot) => {
    if (!control.hasRoom()) return false;
    control.append(controlKinds.retract, flow);
    control.setIds(handle, number, slot);
    return true;
  });
}

export function runControl(connection: Connection, now: number): void {
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
export function controlTime(connection: Connection): number {
  const { control, paths, engine } = connection;
  if (control.end !== control.sent || control.missing) return Number.NEGATIVE_INFINITY;
  const patience = paths.timeout(Math.max(0, connection.receive.arrivals.latestPath), engine.settings.minRto);
  return control.sentAt + backOff(patience + engine.settings.ackDelay, control.repeats);
}
