// Sends control records: those of posts and grants, new ones at once, open ones again until the peer confirms them.
import { controlHeader, controlKinds, controlRecord, MAX_OPEN_RECEIVES } from '../../abi/transport-packet.ts';
import type { Connection } from '../engine/connection.ts';
import { backOff } from '../paths/check-paths.ts';
import { isVacancy } from '../engine/request.ts';
import { sendControl } from '../wire/packet-writer.ts';

/** Records before the new ones that are sent along, in case they were lost. */
const REPEATED_RECORDS = 8;

/** Posted receives and reads become control records as long as there is room for them. */
export function announce(connection: Connection): void {
  const { control, engine } = connection;
  const { unannounced, unannouncedReads } = connection.receive;
  for (let head = unannouncedReads.head; head !== undefined && control.hasRoom(); head = unannouncedReads.head) {
    unannouncedReads.shift();
    head.announced = true;
    control.append(controlKinds.read, head.flow);
    control.setIds(head.target, head.targetKey, head.handle);
    control.setSizes(head.bytes, head.base);
  }
  for (let head = unannounced.head; head !== undefined && control.hasRoom(); head = unannounced.head) {
    if (isVacancy(head)) {
      unannounced.shift();
      control.append(controlKinds.vacant, head.flow);
      control.setSizes(head.value, 0);
      continue;
    }
    if (connection.receive.unclaimedReceives === MAX_OPEN_RECEIVES) return;
    connection.receive.unclaimedReceives++;
    unannounced.shift();
    head.announced = true;
    head.granted = engine.admission.firstGrant(head);
    head.record = control.end;
    control.append(controlKinds.clearToSend, head.flow);
    control.setIds(head.handle, 0, 0);
    control.setSizes(head.bytes, head.granted);
  }
}

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
