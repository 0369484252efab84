// Reads received packets: checks version, connection, tag or secret and checksum, and lengths, and hands each to its part.
// Hot path: no allocation. Whatever a packet holds, it is taken in or counted as dropped.
import { getWide } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { PacketGuard } from '../authentication/packet-guard.ts';
import type { Connection } from '../engine/connection.ts';
import type { EngineCore } from '../engine/engine-core.ts';
import type { Region } from '../engine/region.ts';
import { peerFailure, type Request } from '../engine/request.ts';
import type { DropReason } from '../engine/transport-engine.ts';
import type { ReceivedBatch } from '../io/packet-io.ts';
import { takeRetract } from '../receive/announce.ts';
import { endRun, raiseAck } from '../receive/data-input.ts';
import { extendRun, extendRunAlike, run, startRun } from '../receive/segment-run.ts';
import { onAck } from '../send/ack-input.ts';
import { CRC32C_START, crc32cEnd, crc32cUpdate, crc32cZeroWord } from './crc32c.ts';
import {
  ackHeader,
  controlHeader,
  controlKinds,
  controlRecord,
  DATA_HEADER_BYTES,
  dataHeader,
  EAGER_SLOTS,
  failReasons,
  MAX_OPEN_RECEIVES,
  packetFlags,
  packetKinds,
  packetPrefix,
  TRANSPORT_VERSION,
} from './packet-layout.ts';

const PREFIX = packetPrefix.offset;
const DATA = dataHeader.offset;
const PREFIX_BYTES = packetPrefix.size;

interface Connections extends EngineCore {
  find(id: number): Connection | undefined;
}

export class Decoder {
  readonly #engine: Connections;
  #bytes: Uint8Array | undefined;
  #view: DataView = new DataView(new ArrayBuffer(0));
  /** The same in words; empty if it does not begin at one. */
  #words: Int32Array = new Int32Array(0);
  /** The end of the datagram at hand, and which part of it has been copied to the memory where tags are checked. */
  #datagramEnd = 0;
  #copiedFrom = 0;
  #copiedTo = 0;
  /** The connection and path of the run that is being collected. */
  #running: Connection | undefined;
  #path = 0;

  constructor(engine: Connections) {
    this.#engine = engine;
  }

  take(batch: ReceivedBatch): void {
    const { bytes } = batch;
    this.#lookAt(bytes);
    this.#engine.placement.source = bytes;
    for (let index = 0; index < batch.count; index++) {
      const at = batch.offset[index]!;
      const length = batch.length[index]!;
      if (at + length > bytes.byteLength) this.#drop('short');
      else this.#takeJoined(batch, index, at, at + length);
    }
  }

  /** Does what the engine's method of this name says. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  payloadAddress(bytes: Uint8Array, at: number, size: number, peer: number): number {
    this.#lookAt(bytes);
    const view = this.#view;
    const isData =
      size > DATA_HEADER_BYTES &&
      view.getUint8(at + PREFIX.version) === TRANSPORT_VERSION &&
      view.getUint8(at + PREFIX.kind) === packetKinds.data &&
      DATA_HEADER_BYTES + view.getUint16(at + PREFIX.length, true) === size;
    // What is summed or tagged as a whole must be here as a whole.
    if (!isData || this.#engine.settings.checksum === 'full') return 0;
    const connection = this.#engine.find(view.getUint32(at + PREFIX.connection, true));
    const isKnown =
      connection !== undefined &&
      connection.error === undefined &&
      connection.guard === undefined &&
      view.getInt32(at + PREFIX.secretLow, true) === connection.secretLow &&
      view.getInt32(at + PREFIX.secretHigh, true) === connection.secretHigh &&
      (peer === -1 || peer === connection.peer) &&
      view.getUint16(at + PREFIX.path, true) < connection.paths.count;
    if (!isKnown || !this.#isIntact(at, DATA_HEADER_BYTES, DATA_HEADER_BYTES)) return 0;
    return payloadAddress(connection, view, at);
  }

  #lookAt(bytes: Uint8Array): void {
    if (this.#bytes === bytes) return;
    this.#bytes = bytes;
    const { buffer, byteOffset, byteLength } = bytes;
    this.#view = new DataView(buffer, byteOffset, byteLength);
    this.#words = byteOffset % 4 === 0 ? new Int32Array(buffer, byteOffset, byteLength >>> 2) : new Int32Array(0);
  }

  /** A datagram, or several that the kernel joined. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  #takeJoined(batch: ReceivedBatch, index: number, from: number, to: number): void {
    const joined = batch.segmentBytes[index]!;
    const stride = joined === 0 ? to - from : joined;
    const marked = batch.marked[index] === 1;
    const peer = batch.peer[index]!;
    if (stride < PREFIX_BYTES) {
      // Each of several that were joined; an empty one comes alone.
      const packets = stride === 0 ? 1 : Math.ceil((to - from) / stride);
      for (let packet = 0; packet < packets; packet++) this.#drop('short');
      return;
    }
    run.isPlaced = batch.placed[index] === 1;
    this.#datagramEnd = to;
    this.#copiedTo = -1;
    const inWords = this.#words.length > 0 && ((from | stride) & 3) === 0 && !marked;
    for (let at = from; at < to; at += stride) {
      const size = Math.min(stride, to - at);
      const connection = this.#authenticate(at, size, peer);
      if (connection === undefined) continue;
      if (marked && connection.error === undefined) connection.receive.arrivals.mark(this.#path);
      this.#takePacket(connection, at, size, stride);
      if (inWords && this.#running === connection && connection.guard === undefined)
        at += stride * this.#takeAlike(connection, at + stride, to);
    }
    this.#endRun();
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per packet
  #takePacket(connection: Connection, at: number, size: number, stride: number): void {
    const view = this.#view;
    const kind = view.getUint8(at + PREFIX.kind);
    if (kind === packetKinds.data) {
      connection.receive.arrivals.note(
        this.#path,
        view.getInt32(at + DATA.pathSequence, true),
        view.getInt32(at + DATA.timestamp, true),
        this.#engine.now,
      );
      if (this.#running === connection && extendRun(view, at)) return;
      this.#endRun();
      if (connection.error !== undefined) return;
      noteDemand(connection, view.getInt32(at + DATA.demand, true));
      startRun(view, at, stride);
      this.#running = connection;
      return;
    }
    this.#endRun();
    if (connection.error !== undefined) return;
    if (kind === packetKinds.probe) {
      const sequence = view.getInt32(at + DATA.pathSequence, true);
      connection.receive.arrivals.note(
        this.#path,
        sequence,
        view.getInt32(at + DATA.timestamp, true),
        this.#engine.now,
      );
      noteDemand(connection, view.getInt32(at + DATA.demand, true));
      raiseAck(connection, true);
      return;
    }
    const taken = kind === packetKinds.ack ? onAck(connection, view, at, size) : onControl(connection, view, at, size);
    if (!taken) this.#drop('length');
  }

  /** The segments from `at` on that go on as the run at hand does, in one step. Returns how many. */
  #takeAlike(connection: Connection, at: number, to: number): number {
    const count = extendRunAlike(this.#words, at, to);
    if (count === 0) return 0;
    const view = this.#view;
    const last = at + (count - 1) * run.stride;
    const sequence = view.getInt32(last + DATA.pathSequence, true);
    const timestamp = view.getInt32(last + DATA.timestamp, true);
    connection.receive.arrivals.note(this.#path, sequence, timestamp, this.#engine.now);
    return count;
  }

  #endRun(): void {
    const connection = this.#running;
    this.#running = undefined;
    if (connection !== undefined && connection.error === undefined) endRun(connection);
  }

  /** The open connection that a packet belongs to, if everything about it is right. */
  #authenticate(at: number, size: number, peer: number): Connection | undefined {
    const view = this.#view;
    if (size < PREFIX_BYTES) return this.#drop('short');
    if (view.getUint8(at + PREFIX.version) !== TRANSPORT_VERSION) return this.#drop('version');
    const kind = view.getUint8(at + PREFIX.kind);
    const header = headerBytes(kind);
    if (header === 0) return this.#drop('kind');
    const connection = this.#engine.find(view.getUint32(at + PREFIX.connection, true));
    if (connection === undefined) return this.#drop('connection');
    const { guard } = connection;
    if (guard !== undefined) {
      const reason = this.#refuse(guard, at, size);
      if (reason !== undefined) return this.#drop(reason);
    } else if (
      view.getInt32(at + PREFIX.secretLow, true) !== connection.secretLow ||
      view.getInt32(at + PREFIX.secretHigh, true) !== connection.secretHigh
    ) {
      return this.#drop('secret');
    }
    if (peer !== -1 && peer !== connection.peer) return this.#drop('peer');
    if (header + view.getUint16(at + PREFIX.length, true) !== size) return this.#drop('length');
    this.#path = view.getUint16(at + PREFIX.path, true);
    if (this.#path >= connection.paths.count) return this.#drop('length');
    if (guard === undefined && !this.#isIntact(at, size, header)) return this.#drop('checksum');
    connection.receive.heardAt = this.#engine.now;
    connection.receive.arrivals.latestPath = this.#path;
    if (connection.error === undefined) return connection;
    // The peer still sends because it has not heard of the end.
    if (connection.life.endReason !== 0 && kind !== packetKinds.ack) {
      connection.life.endsUnsent = Math.max(1, connection.life.endsUnsent);
      this.#engine.wake();
    }
    return this.#drop('stale');
  }

  /** Why a packet of a connection that authenticates its packets is not taken in. Joined packets are copied together. */
  #refuse(guard: PacketGuard, at: number, size: number): 'tag' | 'replay' | undefined {
    const { tagMemory } = this.#engine;
    if (at + size > this.#copiedTo) {
      this.#copiedFrom = at;
      this.#copiedTo = Math.min(this.#datagramEnd, at + tagMemory.room);
      if (at + size > this.#copiedTo) return 'tag';
      tagMemory.copy(this.#bytes as Uint8Array, at, this.#copiedTo, tagMemory.received);
    }
    return guard.refuse(tagMemory.received + at - this.#copiedFrom, size);
  }

  #isIntact(at: number, size: number, header: number): boolean {
    const { checksum } = this.#engine.settings;
    if (checksum === 'none') return true;
    const view = this.#view;
    const flags = view.getUint16(at + PREFIX.flags, true);
    const payload = (flags & packetFlags.payloadChecksum) !== 0;
    // Headers without payload by reference are summed whole.
    const covered = header === DATA_HEADER_BYTES && !payload ? header : size;
    if ((flags & packetFlags.checksum) === 0) return false;
    if (checksum === 'full' && covered !== size) return false;
    let crc = crc32cUpdate(CRC32C_START, view, at, at + PREFIX.checksum);
    crc = crc32cUpdate(crc32cZeroWord(crc), view, at + PREFIX.checksum + 4, at + covered);
    return crc32cEnd(crc) === view.getInt32(at + PREFIX.checksum, true);
  }

  #drop(reason: DropReason): undefined {
    this.#engine.drops[reason]++;
    return undefined;
  }
}

function headerBytes(kind: number): number {
  if (kind === packetKinds.data || kind === packetKinds.probe) return DATA_HEADER_BYTES;
  if (kind === packetKinds.ack) return ackHeader.size;
  return kind === packetKinds.control ? controlHeader.size : 0;
}

/** Demand only grows. */
function noteDemand(connection: Connection, demand: number): void {
  const { credit } = connection.receive;
  if (((demand - credit.demand) | 0) > 0) credit.demand = demand;
}

// The place of the payload of a packet of which only the header has been read: the kernel can then put it there at once.
// Hot path: no allocation. Changes nothing: the packet is taken in, and counted, once it has been received.

const TWO_32 = 2 ** 32;
/** Packets with any other flag are taken in from the receive arena. */
const PLAIN_FLAGS = packetFlags.checksum | packetFlags.ackNow | packetFlags.region | packetFlags.chunk;

/**
 * The native address for the payload of the data packet whose authenticated header is at `at`, all bounds checked; 0 if it
 * belongs nowhere, has come before, or must be looked at first.
 */
function payloadAddress(connection: Connection, view: DataView, at: number): number {
  const { window } = connection.receive;
  const flags = view.getUint16(at + DATA.flags, true);
  const sequence = view.getInt32(at + DATA.sequence, true);
  if ((flags & ~PLAIN_FLAGS) !== 0 || window.isTooFar(sequence) || window.has(sequence)) return 0;
  const bytes = view.getUint16(at + DATA.length, true);
  const offset = view.getUint32(at + DATA.offset, true) + view.getUint8(at + DATA.offsetHigh) * TWO_32;
  const messageBytes =
    view.getUint32(at + DATA.messageBytes, true) + view.getUint8(at + DATA.messageBytesHigh) * TWO_32;
  const base = view.getUint32(at + DATA.base, true) + view.getUint16(at + DATA.baseHigh, true) * TWO_32;
  if (offset + bytes > messageBytes) return 0;
  const target = view.getUint32(at + DATA.target, true);
  const isWrite = (flags & (packetFlags.region | packetFlags.chunk)) !== 0;
  if (!isWrite) return inRequest(connection, target, { bytes, offset, messageBytes, base });
  const isChunk = (flags & packetFlags.chunk) !== 0;
  const region = isChunk ? connection.receive.landing?.region : connection.engine.regions.find(target);
  const isRefused =
    region === undefined ||
    region.key !== view.getUint32(at + DATA.targetKey, true) ||
    !region.remote.write ||
    base + messageBytes > region.bytes.byteLength;
  return isRefused ? 0 : addressIn(region, base + offset);
}

interface Place {
  readonly bytes: number;
  readonly offset: number;
  readonly messageBytes: number;
  readonly base: number;
}

function inRequest(connection: Connection, target: number, { bytes, offset, messageBytes, base }: Place): number {
  const request = connection.engine.requests.find(target);
  if (request === undefined || !request.isPending || request.owner !== connection || !request.announced) return 0;
  if (base + messageBytes > request.bytes) return 0;
  if (request.messageBytes !== -1 && request.messageBytes !== messageBytes) return 0;
  if (request.kind === 'receive') {
    if (offset + bytes > request.granted || (request.base >= 0 && request.base !== base)) return 0;
  } else if (request.kind !== 'read' || base !== 0) {
    return 0;
  }
  return addressIn(request.region as Region, request.offset + base + offset);
}

function addressIn(region: Region, offset: number): number {
  return region.address === 0 ? 0 : region.address + offset;
}

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
function onControl(connection: Connection, view: DataView, at: number, bytes: number): boolean {
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
  connection.reply(id, region, { target: c, offset: more, bytes });
  return true;
}

/** A segment of this side was refused. If it has arrived since, or its request has ended, that is old news. */
function takeReject(connection: Connection, { a, b, bytes }: Record): boolean {
  const { engine } = connection;
  const { window } = connection.send;
  const sequence = a | 0;
  if (!window.isOutstanding(sequence) || window.isAcked(sequence)) return true;
  const request = engine.requests.find(window.request[sequence & window.mask]!);
  if (!request?.isPending) return true;
  // Other segments of a write may still be taken.
  if (request.kind === 'write') connection.withdraw(request, peerFailure(connection.peerName, request, b, bytes));
  else fail(connection, request, b, bytes);
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
// oxlint-disable-next-line max-params -- hands on the arguments of peerFailure()
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
