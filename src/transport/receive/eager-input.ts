// Brings messages that come before their receives are announced together with them: at once, or when one is posted.
// Hot path: no allocation.
import { controlKinds, DATA_HEADER_BYTES, EAGER_SLOTS, failReasons } from '../../abi/transport-packet.ts';
import type { Connection } from '../engine/connection.ts';
import { peerFailure } from '../engine/peer-failure.ts';
import { isVacancy, type Request } from '../engine/request.ts';
import { type EagerStore, slotStates } from './eager-store.ts';
import type { ReceiveFlow } from './receive-flow.ts';
import { run } from './segment-run.ts';

/** What is to be done with the segment at hand: taken, or refused for one of failReasons. */
export const TAKEN = 0;
/** How much room the latest receive had. */
export const met = { room: 0 };

/** A message has come. `number`: to announce receives that are not numbered yet. Returns TAKEN or why it is refused. */
export function takeEager(connection: Connection, number: (connection: Connection) => void): number {
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
  if (((wanted - flow.numbered) | 0) > 0 && receive.unannounced.head !== undefined) number(connection);
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
export function giveNumber(connection: Connection, flow: ReceiveFlow, request: Request): boolean {
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
export function passVacancy({ receive }: Connection, flow: ReceiveFlow): void {
  const eager = receive.eager as EagerStore;
  flow.numbered = (flow.numbered + 1) | 0;
  const slot = eager.find(flow.id, flow.numbered);
  if (slot === -1) return;
  if (eager.stateOf(slot) === slotStates.parked) eager.refuse(slot, failReasons.cancelled, 0);
  else eager.release(slot);
}

/** True if the message for the next receive of the flow is here. */
export function isNextHere(flow: ReceiveFlow, eager: EagerStore): boolean {
  const slot = eager.find(flow.id, (flow.numbered + 1) | 0);
  return slot !== -1;
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
// oxlint-disable-next-line max-params -- four plain facts
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
export function tellEager({ receive: { eager }, control }: Connection): void {
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
