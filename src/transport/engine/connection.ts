// A connection: its sides, and the calls of its user. What happens to packets is beside each side: send/transmit.ts and
// send/ack-input.ts, receive/data-input.ts, control/control-input.ts; upkeep.ts has the order.
import {
  ackHeader,
  ackPath,
  controlKinds,
  DATA_HEADER_BYTES,
  failReasons,
  LANDING_BYTES,
  MAX_FLOWS,
  MAX_MESSAGE_BYTES,
  MAX_PATHS,
  PLACE_BYTES,
} from '../wire/packet-layout.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { PACKET_KEY_BYTES, PacketGuard, type PacketKeys } from '../authentication/packet-guard.ts';
import { ControlLog } from '../control/control-log.ts';
import { PathTable } from '../paths/path-table.ts';
import { MAX_ECHOES, RECEIVE_WINDOW_SEGMENTS, ReceiveSide } from '../receive/receive-side.ts';
import { MAX_RANGE_BYTES, type RangeList } from '../send/range-list.ts';
import { ChunkSender } from '../send/chunk-sender.ts';
import { SPECULATIVE_BYTES } from '../send/receiver-credits.ts';
import { NO_SLOT, SendSide } from '../send/send-side.ts';
import type { EngineCore } from './engine-core.ts';
import type { Region, RegionTable } from './region.ts';
import { peerFailure, type Request, type RequestKind, type RequestOwner } from './request.ts';
import type {
  ConnectionOptions,
  ConnectionStatistics,
  EngineHandle,
  LocalRange,
  MessageOptions,
  PathStatistics,
  RemoteOptions,
  RemoteRange,
  ScatterOptions,
  SignalOptions,
  TransportConnection,
} from './transport-engine.ts';

/** Value of a receive's `base` while nobody knows which part of its message it takes in. */
const UNKNOWN_BASE = -1;

export class Connection implements TransportConnection, RequestOwner {
  readonly id: number;
  readonly peerName: string;
  error: WeftlineError | undefined;

  readonly engine: EngineCore;
  readonly peer: number;
  readonly remoteId: number;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** Exists on connections whose packets are authenticated. */
  readonly guard: PacketGuard | undefined;
  readonly segmentBytes: number;
  /** Payload of a full segment. */
  readonly payloadBytes: number;
  /** Segments of a full burst. */
  readonly burstSegments: number;

  /** Cancelled messages and receives keep their places in their flow. */
  readonly keepsPlaces: boolean;

  readonly paths: PathTable;
  readonly send: SendSide;
  readonly receive: ReceiveSide;
  readonly control: ControlLog;
  readonly life = new Liveness();
  readonly counters = createCounters();

  constructor(engine: EngineCore, options: ConnectionOptions) {
    checkConnection(options);
    const { settings, outbox, now } = engine;
    const { segmentBytes, paths, rails = 1, packetKeys } = options;
    const { receiverCredits = settings.receiverCredits, eagerBytes = settings.eagerBytes } = options;
    this.engine = engine;
    this.id = options.localId;
    this.peer = options.peer;
    this.peerName = options.peerName;
    this.remoteId = options.remoteId | 0;
    this.secretLow = Number(BigInt.asIntN(32, options.secret));
    this.secretHigh = Number(BigInt.asIntN(32, options.secret >> 32n));
    this.segmentBytes = segmentBytes;
    this.payloadBytes = segmentBytes - DATA_HEADER_BYTES;
    const fitting = Math.floor(outbox.io.burstBytes / segmentBytes);
    this.burstSegments = Math.max(1, Math.min(64, outbox.io.burstSegments, fitting));
    // Every number that wraps begins anywhere: both ends take it from what only they know.
    const start = this.secretHigh;
    if (packetKeys !== undefined) this.guard = new PacketGuard(engine.tagMemory, packetKeys, start >>> 0);
    this.paths = new PathTable(paths, rails, start, (path, isAlive) => engine.pathChanged(this, path, isAlive));
    this.control = new ControlLog(start);
    const ackRoom = segmentBytes - ackHeader.size - MAX_ECHOES * ackPath.size;
    const ackWords = Math.min(Math.floor(ackRoom / 4), RECEIVE_WINDOW_SEGMENTS / 32);
    const wake = (): void => this.wake();
    const credit = (start + SPECULATIVE_BYTES) | 0;
    this.keepsPlaces = options.keepsPlaces ?? false;
    const { keepsPlaces, control } = this;
    this.receive = new ReceiveSide({ paths, ackWords, start, credit, now, control, wake, keepsPlaces, eagerBytes });
    this.send = new SendSide({
      settings,
      receiverCredits,
      eagerBytes,
      paths,
      rails,
      segmentBytes,
      payloadBytes: this.payloadBytes,
      // An ack can list every segment of the window, so that what it does not list has not arrived.
      limit: Math.min(settings.windowSegments, ackWords * 32, RECEIVE_WINDOW_SEGMENTS) - 32,
      start,
      now,
      wake,
      keepsPlaces,
      refuse: (target, flow) => this.#tellCancelled(target, flow),
    });
  }

  postReceive(options: MessageOptions): EngineHandle {
    const request = this.#open('receive', options);
    request.base = UNKNOWN_BASE;
    this.receive.unannounced.push(request);
    return request.handle;
  }

  postSend(options: MessageOptions): EngineHandle {
    const request = this.#open('send', options);
    const { whole } = options;
    if (whole !== undefined) {
      request.base = whole.partOffset;
      request.wholeBytes = whole.bytes;
    }
    const flow = this.send.flow(request.flow);
    flow.unmatched.push(request);
    this.send.match(flow);
    if (flow.unmatched.head === request) this.send.sendEagerly(flow, request);
    return request.handle;
  }

  write(options: RemoteOptions): EngineHandle {
    checkRemote(options);
    const request = this.#open('write', options);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    this.send.enqueue(this.send.flow(request.flow).operations, request);
    return request.handle;
  }

  scatter(options: ScatterOptions): EngineHandle {
    return this.#chunked('write', options, options.ranges.writeBytes);
  }

  gather(options: ScatterOptions): EngineHandle {
    return this.#chunked('read', options, options.ranges.count * PLACE_BYTES);
  }

  /** A request of many ranges, for which `bytes` are sent. */
  #chunked(kind: 'read' | 'write', options: ScatterOptions, bytes: number): EngineHandle {
    checkScatter(this.engine.regions, options);
    if (this.error !== undefined) throw this.error;
    this.openChunks();
    const request = this.#openWithout(kind, options.flow ?? 0);
    request.region = options.region;
    request.ranges = options.ranges;
    request.nextRange.restart(options.ranges);
    request.nextAnswer.restart(options.ranges);
    request.bytes = bytes;
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    this.send.enqueue(this.send.flow(request.flow).operations, request);
    return request.handle;
  }

  read(options: RemoteOptions): EngineHandle {
    checkRemote(options);
    const request = this.#open('read', options);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    this.receive.unannouncedReads.push(request);
    return request.handle;
  }

  signal(options: SignalOptions): EngineHandle {
    checkSignal(options);
    const request = this.#openWithout('signal', options.flow ?? 0);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    request.value = options.add;
    this.send.enqueue(this.send.flow(request.flow).operations, request);
    return request.handle;
  }

  flush(flow = 0): EngineHandle {
    const request = this.#openWithout('flush', flow);
    this.send.enqueue(this.send.flow(flow).operations, request);
    return request.handle;
  }

  cancel(handle: EngineHandle): boolean {
    const request = this.engine.requests.find(handle);
    if (request === undefined || !request.isPending || request.owner !== this) return false;
    const what = `The ${request.kind} ${request.kind === 'receive' ? 'from' : 'to'} ${this.peerName} was cancelled`;
    const error = new WeftlineError('WL_CLOSED', what, { details: { peer: this.peerName, handle } });
    if (request.kind === 'write' && request.unacked > 0) this.withdraw(request, error);
    else if (request.slot === NO_SLOT) this.abandon(request, error);
    else if (!request.isRetracted) {
      // It may be with the peer already. It ends once the peer says whether it has been delivered.
      request.error = error;
      this.#retract(request);
    }
    return true;
  }

  /**
   * A write that has failed while segments of it are under way, which may still be written there. It ends once each of them has
   * arrived, those that were lost without their bytes: from then on it writes nothing over what follows, whichever path or engine
   * carries that.
   */
  withdraw(request: Request, error: WeftlineError): void {
    if (request.isWithdrawn) return;
    this.unqueue(request);
    request.error = error;
    request.isWithdrawn = true;
  }

  /** Fails a request for a reason of this side, and its other end, if it has one. */
  abandon(request: Request, error: WeftlineError): void {
    if (request.slot !== NO_SLOT && !request.isRetracted) this.#retract(request);
    const meets = request.kind === 'reply' || (request.kind === 'send' && request.target !== 0);
    if (meets) this.#tellCancelled(request.target, request.flow);
    const { control } = this;
    if (request.kind === 'receive' && request.announced && control.append(controlKinds.withdraw, request.flow)) {
      control.setIds(request.handle, 0, 0);
    }
    this.wake();
    this.engine.fail(request, error);
  }

  close(): void {
    if (this.error !== undefined) return;
    const error = new WeftlineError('WL_CLOSED', `The connection to ${this.peerName} was closed`, {
      details: { peer: this.peerName },
    });
    this.end(error, failReasons.closed);
  }

  get statistics(): ConnectionStatistics {
    return connectionStatistics(this, this.engine.settings.perPath);
  }

  /** The connection is over, for one of failReasons: its requests fail with `error`, and the peer is told unless it is 0. */
  end(error: WeftlineError, reason: number): void {
    if (this.error !== undefined) return;
    const { engine, receive } = this;
    this.error = error;
    this.life.end(reason, engine.now);
    engine.admission.remove(receive);
    engine.credits.remove(receive.credit);
    for (const request of engine.requests) {
      if (request.owner === this && request.isPending) engine.fail(request, error);
    }
    engine.wake();
    if (reason !== failReasons.closed || error.code !== 'WL_CLOSED') engine.connectionEnded(this, error);
  }

  unqueue(request: Request): void {
    this.receive.unqueue(request);
    this.send.unqueue(request);
  }

  ended(request: Request): void {
    this.life.pending--;
    if (request.kind === 'receive') {
      if (request.claimed) this.receive.grantQueue.remove(request);
      this.engine.admission.end(this.receive, request);
    } else if (request.kind === 'reply') {
      this.send.replyCount--;
      if (request.ranges !== undefined) this.send.answerCount--;
    } else if (request.kind === 'read') {
      this.send.noteAsked(request);
    } else if (request.slot !== NO_SLOT && !request.isRetracted) {
      this.send.eager?.free(request.slot, request.handle);
    }
  }

  /** The path of acks and control packets: back where the newest packet came from. */
  replyPath(): number {
    const { latestPath } = this.receive.arrivals;
    return latestPath === -1 ? this.paths.choose(this.engine.random, this.send.bursts) : latestPath;
  }

  /** Another path than this one, if there is one: what got no answer is tried elsewhere. */
  pathBesides(path: number): number {
    return this.paths.besides(path, this.engine.random);
  }

  /** There is work for the next `onTimer`. */
  wake(): void {
    this.send.deadline = Number.NEGATIVE_INFINITY;
    this.engine.wake();
  }

  #open(kind: RequestKind, options: MessageOptions): Request {
    checkLocal(this.engine.regions, options);
    const request = this.#openWithout(kind, options.flow ?? 0);
    request.region = options.region;
    request.offset = options.offset;
    request.bytes = options.bytes;
    request.wholeBytes = options.bytes;
    return request;
  }

  #openWithout(kind: RequestKind, flow: number): Request {
    if (this.error !== undefined) throw this.error;
    checkFlow(flow);
    const request = this.engine.requests.open(kind, this);
    request.flow = flow;
    request.region = undefined;
    request.offset = 0;
    request.bytes = 0;
    request.target = 0;
    request.base = 0;
    request.wholeBytes = 0;
    this.life.addPending();
    this.wake();
    return request;
  }

  /**
   * Answers request `target` of the peer with a part of a region, or with many ranges of it. There must be room for a request,
   * and memory for chunks if there are ranges.
   */
  reply(
    flow: number,
    region: Region,
    { target, offset = 0, bytes = 0, ranges }: { target: number; offset?: number; bytes?: number; ranges?: RangeList },
  ): void {
    const reply = this.engine.requests.open('reply', this);
    reply.flow = flow;
    reply.region = region;
    reply.offset = offset;
    reply.bytes = ranges?.chunkBytes ?? bytes;
    reply.ranges = ranges;
    if (ranges !== undefined) reply.nextRange.restart(ranges);
    reply.target = target;
    reply.targetKey = 0;
    reply.base = 0;
    this.send.replyCount++;
    if (ranges !== undefined) this.send.answerCount++;
    this.life.addPending();
    this.send.enqueue(this.send.flow(flow).replies, reply);
  }

  /** Makes memory for chunks, if there is none yet. Fails with WL_CAPACITY where a device has no room for more memory. */
  openChunks(): void {
    if (this.send.chunks !== undefined) return;
    const { io } = this.engine.outbox;
    const memory = new Uint8Array(new SharedArrayBuffer(LANDING_BYTES));
    const chunks = new ChunkSender(memory, io.addressOf?.(memory) ?? 0);
    io.adopt?.(chunks.region);
    this.send.chunks = chunks;
  }

  /** Long over: nothing reads its memory any more. */
  retire(): void {
    this.guard?.close();
    if (this.send.chunks !== undefined) this.engine.outbox.io.abandon?.(this.send.chunks.region);
  }

  /** A message that was sent before its receive was announced is taken back. */
  #retract(request: Request): void {
    this.send.eager?.retract(request);
    this.wake();
  }

  /** Fails the sends that are too large, here and at the peer, and those whose receives were withdrawn. */
  refuseUnfit(): void {
    const { oversized, withdrawn } = this.send;
    for (let head = withdrawn.head; head !== undefined; head = withdrawn.head) {
      this.engine.fail(head, peerFailure(this.peerName, head, failReasons.cancelled, 0));
    }
    for (let head = oversized.head; head !== undefined; head = oversized.head) this.#tooLarge(head, head.granted);
  }

  /** A request of the peer will get nothing: its other end was cancelled. */
  #tellCancelled(target: number, flow: number): void {
    if (!this.control.append(controlKinds.fail, flow)) return;
    this.control.setIds(target, failReasons.cancelled, 0);
    this.wake();
  }

  #tooLarge(request: Request, room: number): void {
    if (this.control.append(controlKinds.fail, request.flow)) {
      this.control.setIds(request.target, failReasons.tooLarge, 0);
      this.control.setSizes(request.wholeBytes, 0);
    }
    const message = `Cannot send ${request.wholeBytes} bytes to ${this.peerName}: the receive it met has room for ${room}`;
    const details = { peer: this.peerName, bytes: request.wholeBytes, room, flow: request.flow };
    this.engine.fail(request, new WeftlineError('WL_CAPACITY', message, { details }));
  }
}

// Counters of a connection, and how a user sees them.

/** Each count is written by the code that does what is counted. */
type Counters = { -readonly [Name in Exclude<keyof ConnectionStatistics, 'paths'>]: number };

function createCounters(): Counters {
  return {
    sentSegments: 0,
    sentBytes: 0,
    retransmittedSegments: 0,
    receivedSegments: 0,
    receivedBytes: 0,
    duplicateSegments: 0,
    sentAcks: 0,
    receivedAcks: 0,
    timeouts: 0,
    probes: 0,
  };
}

/** A copy of the counters as they stand; `perPath`: each path has a congestion window of its own. */
function connectionStatistics(connection: Connection, perPath: boolean): ConnectionStatistics {
  const { counters, paths } = connection;
  return {
    ...counters,
    paths: Array.from({ length: paths.count }, (_, path) => pathStatistics(connection, path, perPath)),
  };
}

function pathStatistics({ paths, send }: Connection, path: number, perPath: boolean): PathStatistics {
  const { bursts, congestion } = send;
  const window = congestion[perPath && congestion.length > 1 ? path : 0];
  return {
    path,
    alive: paths.alive[path] === 1,
    smoothedRtt: paths.rtt[path]!,
    sentSegments: paths.sentSegments[path]!,
    lostSegments: paths.lostSegments[path]!,
    inFlightBytes: bursts.pathBytes[path]!,
    windowBytes: window?.windowBytes ?? Number.POSITIVE_INFINITY,
  };
}

// Whether a connection is wanted, answered and open: requests that wait, probes of a silent peer, and its end.

/**
 * The packet that ends a connection also acknowledges what has come, and nobody acknowledges it: the sockets close behind
 * it. It goes several times, so that a lost packet does not fail requests of the peer that were done.
 */
const END_PACKETS = 3;

class Liveness {
  /** Requests that are not done, and since when there have been any: Infinity until the next `onTimer` tells the time. */
  pending = 0;
  pendingSince = 0;
  /** When and where the peer was last asked whether it is there. */
  probedAt = 0;
  probedPath = 0;
  /** Why the end is to be told to the peer, 0 while open; and how many packets are still to say it. */
  endReason = 0;
  endsUnsent = 0;
  endedAt = 0;

  addPending(): void {
    if (this.pending === 0) this.pendingSince = Number.POSITIVE_INFINITY;
    this.pending++;
  }

  end(reason: number, now: number): void {
    this.endReason = reason;
    this.endsUnsent = reason === 0 ? 0 : END_PACKETS;
    this.endedAt = now;
  }
}

// Checks what users pass to connections; nothing has happened when one fails.

const MAX_SEGMENT_BYTES = 65_472;

function checkConnection(options: ConnectionOptions): void {
  const { paths, rails = 1, segmentBytes, secret, packetKeys, localId, remoteId, peerName } = options;
  requireWhole('paths', paths, 1, MAX_PATHS);
  requireWhole('rails', rails, 1, paths);
  requireWhole('segmentBytes', segmentBytes, 512, MAX_SEGMENT_BYTES);
  if (segmentBytes % 8 !== 0) throw invalidArgument('segmentBytes', segmentBytes, 'a multiple of 8');
  requireWhole('localId', localId, 0, 0xffff_ffff);
  requireWhole('remoteId', remoteId, 0, 0xffff_ffff);
  if (typeof secret !== 'bigint') throw invalidArgument('secret', secret, 'a bigint of 64 bits');
  if (packetKeys !== undefined) checkKeys(packetKeys);
  if (typeof peerName !== 'string') throw invalidArgument('peerName', peerName, 'a string');
}

function checkKeys({ outgoing, incoming }: PacketKeys): void {
  for (const [name, key] of Object.entries({ outgoing, incoming })) {
    if (key instanceof Uint8Array && key.byteLength === PACKET_KEY_BYTES) continue;
    // The key itself is not shown: errors are printed.
    const found = key instanceof Uint8Array ? `${key.byteLength} bytes` : typeof key;
    throw invalidArgument(`packetKeys.${name}`, found, `${PACKET_KEY_BYTES} bytes`);
  }
  // If one key served both directions, a packet could be sent back to its sender.
  if (Buffer.compare(outgoing, incoming) !== 0) return;
  throw invalidArgument('packetKeys', 'the same key twice', 'a key for each direction');
}

function checkFlow(flow: number): void {
  requireWhole('flow', flow, 0, MAX_FLOWS - 1);
}

function checkLocal(regions: RegionTable, { region, offset, bytes }: LocalRange): void {
  if (!regions.isRegistered(region)) throw invalidArgument('region', region, 'a region registered with this engine');
  requireWhole('offset', offset, 0, region.bytes.byteLength);
  requireWhole('bytes', bytes, 0, Math.min(MAX_MESSAGE_BYTES, region.bytes.byteLength - offset));
}

function checkRemote({ remoteRegion, remoteKey, remoteOffset }: RemoteRange): void {
  requireWhole('remoteRegion', remoteRegion, 0, 0xffff_ffff);
  requireWhole('remoteKey', remoteKey, 0, 0xffff_ffff);
  requireWhole('remoteOffset', remoteOffset, 0, 2 ** 48 - 1);
}

function checkScatter(regions: RegionTable, options: ScatterOptions): void {
  const { region, ranges, remoteRegion, remoteKey } = options;
  checkRemote({ remoteRegion, remoteKey, remoteOffset: 0 });
  if (!regions.isRegistered(region)) throw invalidArgument('region', region, 'a region registered with this engine');
  requireWhole('ranges.sourceEnd', ranges.sourceEnd, 0, region.bytes.byteLength);
  requireWhole('ranges.longest', ranges.longest, 0, MAX_RANGE_BYTES);
}

function checkSignal(options: SignalOptions): void {
  checkRemote(options);
  requireWhole('add', options.add, 0, Number.MAX_SAFE_INTEGER);
  if (options.remoteOffset % 8 !== 0) throw invalidArgument('remoteOffset', options.remoteOffset, 'a multiple of 8');
}

function requireWhole(name: string, value: number, least: number, most: number): void {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return;
  throw invalidArgument(name, value, `a whole number from ${least} to ${most}`);
}
