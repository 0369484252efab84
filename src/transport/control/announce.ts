// Posted receives and reads become control records. A receive of a flow whose messages come before their receives are
// announced is held back for a moment: its message is probably on its way, and needs no record.
import { controlKinds, MAX_OPEN_RECEIVES } from '../../abi/transport-packet.ts';
import type { Connection } from '../engine/connection.ts';
import { isVacancy, type Request } from '../engine/request.ts';
import { giveNumber, isNextHere, passVacancy, tellEager } from '../receive/eager-input.ts';
import type { EagerStore } from '../receive/eager-store.ts';
import type { ReceiveFlow } from '../receive/receive-flow.ts';

/** Announces what there is room for. */
export function announce(connection: Connection): void {
  const { control } = connection;
  const { unannounced, unannouncedReads, eager } = connection.receive;
  for (let head = unannouncedReads.head; head !== undefined && control.hasRoom(); head = unannouncedReads.head) {
    unannouncedReads.shift();
    head.announced = true;
    control.append(controlKinds.read, head.flow);
    control.setIds(head.target, head.targetKey, head.handle);
    control.setSizes(head.bytes, head.base);
  }
  if (eager !== undefined) {
    const { holdDeadline, holdIsBlocked } = connection.receive;
    if (holdIsBlocked || holdDeadline <= connection.engine.now) releaseHeld(connection);
    announceNumbered(connection, eager);
    tellEager(connection);
    return;
  }
  for (let head = unannounced.head; head !== undefined && control.hasRoom(); head = unannounced.head) {
    if (isVacancy(head)) {
      unannounced.shift();
      announceVacancies(connection, head, 0);
      continue;
    }
    if (connection.receive.unclaimedReceives === MAX_OPEN_RECEIVES) return;
    unannounced.shift();
    announceReceive(connection, head);
  }
}

function announceReceive({ control, engine, receive }: Connection, request: Request): void {
  receive.unclaimedReceives++;
  request.announced = true;
  request.granted = engine.admission.firstGrant(request);
  request.record = control.end;
  control.append(controlKinds.clearToSend, request.flow);
  control.setIds(request.handle, request.number, 0);
  control.setSizes(request.bytes, request.granted);
}

function announceVacancies({ control }: Connection, { flow, value }: Request, first: number): void {
  control.append(controlKinds.vacant, flow);
  control.setIds(0, first, 0);
  control.setSizes(value, 0);
}

/** The same where messages may come before: a receive meets the message that is here for it, waits for it, or is announced. */
function announceNumbered(connection: Connection, eager: EagerStore): void {
  const { control, engine, receive } = connection;
  const { unannounced } = receive;
  for (let head = unannounced.head; head !== undefined && control.hasRoom(); head = unannounced.head) {
    const flow = receive.flow(head.flow);
    const isHere = flow.held.head === undefined && isNextHere(flow, eager);
    const isExpected = flow.isEager && !isHere && !isVacancy(head) && head.bytes <= eager.bytes;
    if (flow.held.head !== undefined || isExpected) {
      unannounced.shift();
      receive.hold(flow, head, engine.now + engine.settings.ackDelay);
      continue;
    }
    if (!isVacancy(head) && receive.unclaimedReceives === MAX_OPEN_RECEIVES) return;
    unannounced.shift();
    announceNext(connection, flow, head);
  }
}

/** Numbers the next receive of a flow, and announces it unless the message for it is here. */
function announceNext(connection: Connection, flow: ReceiveFlow, request: Request): void {
  if (isVacancy(request)) {
    announceVacancies(connection, request, (flow.numbered + 1) | 0);
    for (let count = request.value; count > 0; count--) passVacancy(connection, flow);
  } else if (giveNumber(connection, flow, request)) {
    announceReceive(connection, request);
    flow.open.push(request);
  }
}

/** Receives that were held back long enough are announced, as many as there is room for. */
function releaseHeld(connection: Connection): void {
  const { control, engine, receive } = connection;
  const { holding } = receive;
  receive.holdDeadline = Number.POSITIVE_INFINITY;
  receive.holdIsBlocked = false;
  for (let at = holding.length - 1; at >= 0; at--) {
    const flow = holding[at] as ReceiveFlow;
    const isDue = flow.heldUntil <= engine.now;
    if (isDue) {
      flow.isEager = flow.held.head === undefined && flow.isEager;
      for (let head = flow.held.head; head !== undefined; head = flow.held.head) {
        if (!control.hasRoom() || receive.unclaimedReceives === MAX_OPEN_RECEIVES) break;
        flow.held.shift();
        announceNext(connection, flow, head);
      }
    }
    if (flow.held.head === undefined) {
      flow.isHolding = false;
      holding[at] = holding.at(-1) as ReceiveFlow;
      holding.pop();
    } else if (isDue) {
      // There is room when the peer confirms records or claims receives; a timer in between would be in vain.
      receive.holdIsBlocked = true;
      receive.holdDeadline = Math.min(receive.holdDeadline, engine.now + engine.settings.minRto);
    } else {
      receive.holdDeadline = Math.min(receive.holdDeadline, flow.heldUntil);
    }
  }
}
