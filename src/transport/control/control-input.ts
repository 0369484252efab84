// Carries out the peer's control records, each once and in order.
import {
  controlHeader,
  controlKinds,
  controlRecord,
  EAGER_SLOTS,
  failReasons,
  MAX_OPEN_RECEIVES,
} from '../wire/packet-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Connection } from '../engine/connection.ts';
import { getWide } from '../../abi/layout.ts';
import { takeRetract } from '../receive/announce.ts';
import { raiseAck } from '../receive/data-input.ts';
import { peerFailure, type Request } from '../engine/request.ts';

const CONTROL = controlHeader.offset;
const RECORD = controlRecord.offset;
/** Reads that a peer may have open. */
const MAX_REPLIES = 1024;

interface Record {
  readonly kind: number;
  readonly flow: number;
  readonly a: number;
  readonly b: number;
  readonly c: number;
  readonly bytes: number;
  readonly more: number;
}

/** Takes in the control packet at `at`, authenticated and of `bytes` bytes. False if it is malformed. */
export function onControl(connection: Connection, view: DataView, at: number, bytes: number): boolean {
  if (bytes < controlHeader.size) return false;
  const count = view.getUint16(at + CONTROL.records, true);
  if (count === 0 || bytes !== controlHeader.size + count * controlRecord.size) return false;
  const { control } = connection;
  const first = view.getInt32(at + CONTROL.firstRecord, true);
  const known = (control.expected - first) | 0;
  // Records before these are missing: the peer repeats them. Or all are old; either way an ack says what is known.
  raiseAck(connection, known < 0 || known >= count);
  if (known < 0) {
    control.gap = true;
    return true;
  }
  for (let index = known; index < count && connection.error === undefined; index++) {
    const record = readRecord(view, at + controlHeader.size + index * controlRecord.size);
    if (!carryOut(connection, record)) break;
    control.expected = (control.expected + 1) | 0;
  }
  return true;
}

function readRecord(view: DataView, at: number): Record {
  return {
    kind: view.getUint16(at + RECORD.kind, true),
    flow: view.getUint16(at + RECORD.flow, true),
    a: view.getUint32(at + RECORD.a, true),
    b: view.getUint32(at + RECORD.b, true),
    c: view.getUint32(at + RECORD.c, true),
    bytes: getWide(view, at + RECORD.bytes),
    more: getWide(view, at + RECORD.more),
  };
}

/** False if the record must wait until there is room; it will be repeated. */
function carryOut(connection: Connection, record: Record): boolean {
  switch (record.kind) {
    case controlKinds.clearToSend:
      return takeClear(connection, record);
    case controlKinds.grant:
      return takeGrant(connection, record);
    case controlKinds.requestToSend:
      return takeRequestToSend(connection, record);
    case controlKinds.read:
      return takeRead(connection, record);
    case controlKinds.reject:
      return takeReject(connection, record);
    case controlKinds.fail:
      return takeFail(connection, record);
    case controlKinds.withdraw:
      return takeWithdraw(connection, record);
    case controlKinds.vacant:
      return takeVacant(connection, record);
    case controlKinds.delivered:
      return takeDelivered(connection, record);
    case controlKinds.retract:
      return takeRetracted(connection, record);
    default:
      return broken(connection, `a control record of the unknown kind ${record.kind}`);
  }
}

function takeClear(connection: Connection, { flow: id, a, b, bytes, more }: Record): boolean {
  if (connection.send.clearCount >= MAX_OPEN_RECEIVES)
    return broken(connection, `more than ${MAX_OPEN_RECEIVES} receives`);
  const flow = connection.send.flow(id);
  // A message is on its way to it already.
  if (connection.send.eager !== undefined && flow.announce(b | 0, 1) === 0) return true;
  flow.clears.push({ target: a, bytes, record: connection.control.expected, granted: more, vacancies: 0 });
  connection.send.clearCount++;
  connection.send.match(flow);
  return true;
}

function takeGrant(connection: Connection, { flow: id, a, more }: Record): boolean {
  const flow = connection.send.flows.get(id);
  if (flow === undefined) return true;
  const request = findSend(flow.messages.head, a);
  if (request !== undefined) {
    request.granted = Math.max(request.granted, Math.min(more, request.bytes));
    connection.send.schedule.add(flow.messages);
    connection.wake();
    return true;
  }
  const clear = flow.clears.find((waiting) => waiting.target === a && waiting.vacancies === 0);
  if (clear !== undefined) clear.granted = Math.max(clear.granted, more);
  return true;
}

function takeRequestToSend(connection: Connection, { a, bytes }: Record): boolean {
  const request = ownReceive(connection, a);
  if (request === undefined || bytes > request.bytes) return true;
  connection.engine.admission.claim(connection.receive, request, bytes);
  return true;
}

function takeRead(connection: Connection, { flow: id, a, b, c, bytes, more }: Record): boolean {
  const { engine, control } = connection;
  const region = engine.regions.find(a);
  let reason = 0;
  if (region === undefined || region.key !== b) reason = failReasons.key;
  else if (!region.remote.read) reason = failReasons.access;
  else if (more + bytes > region.bytes.byteLength) reason = failReasons.bounds;
  if (reason !== 0 || region === undefined) {
    if (!control.append(controlKinds.fail, id)) return false;
    control.setIds(c, reason, 0);
    control.setSizes(region?.bytes.byteLength ?? 0, 0);
    connection.wake();
    return true;
  }
  if (connection.send.replyCount >= MAX_REPLIES || !engine.requests.hasRoom()) return false;
  const reply = engine.requests.open('reply', connection);
  reply.flow = id;
  reply.region = region;
  reply.offset = more;
  reply.bytes = bytes;
  reply.target = c;
  reply.base = 0;
  connection.send.replyCount++;
  connection.life.addPending();
  connection.send.enqueue(connection.send.flow(id).replies, reply);
  return true;
}

/** A segment of this side was refused. If it has arrived since, or its request has ended, that is old news. */
function takeReject(connection: Connection, { a, b, bytes }: Record): boolean {
  const { engine } = connection;
  const { window } = connection.send;
  const sequence = a | 0;
  if (!window.isOutstanding(sequence) || window.isAcked(sequence)) return true;
  const request = engine.requests.find(window.request[sequence & window.mask]!);
  if (request?.isPending) fail(connection, request, b, bytes);
  return true;
}

function takeFail(connection: Connection, { a, b, bytes }: Record): boolean {
  const request = connection.engine.requests.find(a);
  if (request?.isPending && request.owner === connection && request.kind !== 'reply') {
    fail(connection, request, b, bytes);
  }
  return true;
}

/** A request that this side has cancelled, and whose fate the peer had to tell, fails for that. */
// oxlint-disable-next-line max-params -- four plain facts
function fail({ engine, peerName }: Connection, request: Request, reason: number, bytes: number): void {
  engine.fail(request, request.error ?? peerFailure(peerName, request, reason, bytes));
}

/** The receive is gone: so is the send that it has met. */
function takeWithdraw(connection: Connection, { flow: id, a }: Record): boolean {
  const flow = connection.send.flows.get(id);
  if (flow === undefined) return true;
  const at = flow.clears.findIndex((waiting) => waiting.target === a && waiting.vacancies === 0);
  if (at !== -1) {
    flow.clears.splice(at, 1);
    connection.send.clearCount--;
    if (connection.keepsPlaces) flow.addVacancies(at, 1);
    return true;
  }
  const request = findSend(flow.messages.head, a);
  if (request?.isPending)
    connection.engine.fail(request, peerFailure(connection.peerName, request, failReasons.cancelled, 0));
  return true;
}

/** Receives are gone of which nothing was known yet: so are the sends that would meet them. */
function takeVacant(connection: Connection, { flow: id, b, bytes }: Record): boolean {
  if (!connection.keepsPlaces || bytes === 0) return broken(connection, `${bytes} vacant receives`);
  const flow = connection.send.flow(id);
  const count = connection.send.eager === undefined ? bytes : flow.announce(b | 0, bytes);
  if (count > 0) flow.addVacancies(flow.clears.length, count);
  connection.send.match(flow);
  return true;
}

/** A message that went before its receive was known has been delivered, or taken back: its slot is free. */
function takeDelivered(connection: Connection, { a, b, c }: Record): boolean {
  const { eager } = connection.send;
  if (eager === undefined || b >= EAGER_SLOTS) return broken(connection, `news of slot ${b}`);
  eager.free(b, a);
  const request = connection.engine.requests.find(a);
  const isWaiting = request?.isPending === true && request.owner === connection && request.slot === b;
  if (c === 1 && isWaiting) connection.engine.done(request);
  return true;
}

function takeRetracted(connection: Connection, { flow, a, b, c }: Record): boolean {
  if (connection.receive.eager === undefined || c >= EAGER_SLOTS) return broken(connection, `news of slot ${c}`);
  if (!connection.control.hasRoom()) return false;
  takeRetract(connection, flow, a, b | 0, c);
  connection.wake();
  return true;
}

function findSend(head: Request | undefined, target: number): Request | undefined {
  let request = head;
  while (request !== undefined && request.target !== target) request = request.next;
  return request;
}

function ownReceive(connection: Connection, handle: number): Request | undefined {
  const request = connection.engine.requests.find(handle);
  const own = request?.isPending === true && request.owner === connection && request.kind === 'receive';
  return own && request.announced ? request : undefined;
}

function broken(connection: Connection, what: string): boolean {
  const error = new WeftlineError('WL_PROTOCOL', `${connection.peerName} sent ${what}`, {
    details: { peer: connection.peerName },
  });
  connection.end(error, failReasons.closed);
  return false;
}
