// Posted receives and reads become control records. A receive of a flow whose messages come before their receives are
// announced is held back for a moment: its message is probably on its way, and needs no record.
import { controlKinds, DATA_HEADER_BYTES, EAGER_SLOTS, failReasons, MAX_OPEN_RECEIVES } from '../wire/packet-layout.ts';
import type { Connection } from '../engine/connection.ts';
import { isVacancy, peerFailure, type Request } from '../engine/request.ts';
import { type EagerStore, type ReceiveFlow, slotStates } from './receive-side.ts';
import { run } from './segment-run.ts';

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
    const isHere = flow.held.head === undefined && eager.find(flow.id, (flow.numbered + 1) | 0) !== -1;
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

// Brings messages that come before their receives are announced together with them: at once, or when one is posted.
// Hot path: no allocation.

/** What is to be done with the segment at hand: taken, or refused for one of failReasons. */
export const TAKEN = 0;
/** How much room the latest receive had. */
export const met = { room: 0 };

/** A message has come. Returns TAKEN or why it is refused. */
export function takeEager(connection: Connection): number {
  const { receive } = connection;
  const { eager } = receive;
  const slot = run.target >>> 16;
  const isSound =
    eager !== undefined &&
    slot < EAGER_SLOTS &&
    run.payloadBytes <= eager.bytes &&
    run.messageBytes === run.payloadBytes &&
    run.offset === 0;
  if (!isSound) return failReasons.bounds;
  const flow = receive.flow(run.target & 0xffff);
  const wanted = run.base | 0;
  // A message that was withdrawn may come after the news of that. For any other the slot is taken.
  if (eager.isWithdrawn(slot, flow.id, wanted)) return TAKEN;
  if (!eager.isOpen(slot)) return failReasons.bounds;
  eager.clear(slot);
  flow.isEager = true;
  if (((wanted - flow.numbered) | 0) > 0 && receive.unannounced.head !== undefined) announce(connection);
  numberHeld(connection, flow, wanted);
  if (((wanted - flow.numbered) | 0) > 0) {
    park(connection, eager, slot);
    return TAKEN;
  }
  const request = flow.find(wanted);
  if (request === undefined) return failReasons.cancelled;
  flow.open.remove(request);
  met.room = request.bytes;
  const { placement } = connection.engine;
  const { source } = placement;
  const isDone = deliver(connection, request, source, run.at + DATA_HEADER_BYTES, run.payloadBytes);
  return isDone ? TAKEN : failReasons.tooLarge;
}

function park(connection: Connection, eager: EagerStore, slot: number): void {
  const { placement, outbox } = connection.engine;
  if (run.payloadBytes > 0) {
    placement.sourceOffset = run.at + DATA_HEADER_BYTES;
    placement.region = eager.region;
    placement.regionOffset = eager.offsetOf(slot);
    placement.count = 1;
    placement.payloadBytes = run.payloadBytes;
    placement.lastPayloadBytes = run.payloadBytes;
    outbox.io.place(placement);
  }
  eager.put(slot, slotStates.parked, run.target & 0xffff, run.base | 0, run.targetKey, run.payloadBytes);
}

/** Receives that are held back get numbers up to `wanted`: messages for them have come or are on their way. */
function numberHeld(connection: Connection, flow: ReceiveFlow, wanted: number): void {
  const { held } = flow;
  for (let head = held.head; head !== undefined && ((wanted - flow.numbered) | 0) > 0; head = held.head) {
    if (isVacancy(head) && head.value > 1) head.value--;
    else held.shift();
    if (isVacancy(head)) passVacancy(connection, flow);
    else if (giveNumber(connection, flow, head)) flow.open.push(head);
  }
}

/** A receive gets the next number. False if the message for it was there, so that the receive has ended. */
function giveNumber(connection: Connection, flow: ReceiveFlow, request: Request): boolean {
  const { engine, receive, keepsPlaces, peerName } = connection;
  const eager = receive.eager as EagerStore;
  for (;;) {
    flow.numbered = (flow.numbered + 1) | 0;
    const slot = eager.find(flow.id, flow.numbered);
    if (slot === -1) {
      request.number = flow.numbered;
      return true;
    }
    if (eager.stateOf(slot) === slotStates.parked) {
      deliverParked(connection, eager, slot, request);
      return false;
    }
    eager.release(slot);
    if (!keepsPlaces) continue;
    engine.fail(request, peerFailure(peerName, request, failReasons.cancelled, 0));
    return false;
  }
}

/** A receive that was withdrawn keeps its number: the message for it fails. */
function passVacancy({ receive }: Connection, flow: ReceiveFlow): void {
  const eager = receive.eager as EagerStore;
  flow.numbered = (flow.numbered + 1) | 0;
  const slot = eager.find(flow.id, flow.numbered);
  if (slot === -1) return;
  if (eager.stateOf(slot) === slotStates.parked) eager.refuse(slot, failReasons.cancelled, 0);
  else eager.release(slot);
}

function deliverParked(connection: Connection, eager: EagerStore, slot: number, request: Request): void {
  const { placement } = connection.engine;
  const { source } = placement;
  const room = request.bytes;
  const isDone = deliver(connection, request, eager.region.bytes, eager.offsetOf(slot), eager.lengthOf(slot));
  placement.source = source;
  if (isDone) eager.deliver(slot);
  else eager.refuse(slot, failReasons.tooLarge, room);
}

/** Copies a message to its receive, which ends. False if it is too large. */
// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per message
function deliver(connection: Connection, request: Request, source: Uint8Array, at: number, bytes: number): boolean {
  const { engine, counters, receive, peerName } = connection;
  const { placement, outbox } = engine;
  if (bytes > request.bytes) {
    engine.fail(request, peerFailure(peerName, request, failReasons.tooLarge, bytes));
    return false;
  }
  if (bytes > 0) {
    placement.source = source;
    placement.sourceOffset = at;
    placement.region = request.region!;
    placement.regionOffset = request.offset;
    placement.count = 1;
    placement.payloadBytes = bytes;
    placement.lastPayloadBytes = bytes;
    outbox.io.place(placement);
  }
  counters.receivedBytes += bytes;
  if (request.announced) engine.admission.arrived(receive, request, bytes);
  request.messageBytes = bytes;
  request.received = bytes;
  engine.done(request);
  return true;
}

/** The sender takes a message back. */
// oxlint-disable-next-line max-params -- hot path: the numbers of one record, for which an object would be allocated
export function takeRetract(connection: Connection, id: number, handle: number, number: number, slot: number): void {
  const { engine, receive, control, peerName } = connection;
  const eager = receive.eager as EagerStore;
  const flow = receive.flow(id);
  const isAhead = ((number - flow.numbered) | 0) > 0;
  if (eager.isFor(slot, id, number)) eager.withdraw(slot);
  else if (isAhead) eager.put(slot, slotStates.withdrawn, id, number, handle, 0);
  else {
    const request = flow.find(number);
    if (request === undefined) {
      // It was delivered or refused before.
      control.append(controlKinds.delivered, id);
      control.setIds(handle, slot, 0);
      return;
    }
    eager.put(slot, slotStates.withdrawn, id, number, handle, 0);
    eager.release(slot);
    flow.open.remove(request);
    engine.fail(request, peerFailure(peerName, request, failReasons.cancelled, 0));
  }
  control.append(controlKinds.fail, id);
  control.setIds(handle, failReasons.cancelled, 0);
  // A receive that is held back takes the place of the message, where places are kept.
  if (connection.keepsPlaces && ((number - flow.numbered) | 0) === 1) numberHeld(connection, flow, number);
}

/** Tells the sender of messages that were delivered late, and of slots that are free again. */
function tellEager({ receive: { eager }, control }: Connection): void {
  if (eager === undefined) return;
  eager.settle(control.first);
  if (!eager.owes) return;
  eager.tell((slot) => {
    const state = eager.stateOf(slot);
    const isRefused = state === slotStates.refused;
    if (!control.append(isRefused ? controlKinds.fail : controlKinds.delivered, 0)) return false;
    if (isRefused) {
      control.setIds(eager.handleOf(slot), eager.reasonOf(slot), 0);
      control.setSizes(eager.roomOf(slot), 0);
    } else {
      control.setIds(eager.handleOf(slot), slot, state === slotStates.delivered ? 1 : 0);
    }
    return true;
  }, control.end);
}
