// A connection: everything one engine knows of one peer, and the calls of its user. What happens to packets is in
// transmit.ts (sending), ack-input.ts, data-input.ts and control-input.ts (receiving) and upkeep.ts (time).
import { ackHeader, ackPath, controlKinds, DATA_HEADER_BYTES, failReasons } from '../../abi/transport-packet.ts';
import { WeftlineError } from '../../core/errors.ts';
import { Arrivals, MOST_ECHOES } from '../receive/arrivals.ts';
import { PacketGuard } from '../authentication/packet-guard.ts';
import { BurstTable } from '../send/burst-table.ts';
import { checkConnection, checkFlow, checkLocal, checkRemote, checkScatter, checkSignal } from './check-options.ts';
import type { Congestion } from '../congestion/congestion.ts';
import { createCongestion } from '../congestion/create-congestion.ts';
import { type CreditAccount, EqdsCredits, SPECULATIVE_BYTES } from '../congestion/eqds.ts';
import { connectionStatistics, createCounters } from './connection-statistics.ts';
import { ControlLog } from '../control/control-log.ts';
import type { EngineCore } from './engine-core.ts';
import { Flow, Schedule, type SendQueue } from './flow.ts';
import { PathTable } from '../paths/path-table.ts';
import { PendingSignals } from '../receive/pending-signals.ts';
import { RECEIVE_WINDOW_SEGMENTS, ReceiveWindow } from '../receive/receive-window.ts';
import { type Request, type RequestKind, RequestQueue } from './request.ts';
import { SendWindow } from '../send/send-window.ts';
import type {
  ConnectionOptions,
  ConnectionStatistics,
  MessageOptions,
  RemoteOptions,
  RequestHandle,
  ScatterOptions,
  SignalOptions,
  TransportConnection,
} from './transport-engine.ts';

/** `now`: before the next flush. `later`: with more, or at its deadline. */
export const ackDue = { no: 0, later: 1, now: 2 } as const;

export class Connection implements TransportConnection {
  readonly id: number;
  readonly peerName: string;
  error: WeftlineError | undefined;

  readonly engine: EngineCore;
  readonly peer: number;
  readonly remoteId: number;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** On connections whose packets are authenticated. */
  readonly guard: PacketGuard | undefined;
  readonly segmentBytes: number;
  /** Payload of a full segment. */
  readonly payloadBytes: number;
  /** Segments of a full burst. */
  readonly burstSegments: number;
  /** Words of the bitmap that fit an ack. */
  readonly ackWords: number;

  readonly paths: PathTable;
  readonly sendWindow: SendWindow;
  readonly bursts: BurstTable;
  readonly receiveWindow: ReceiveWindow;
  readonly arrivals: Arrivals;
  readonly control: ControlLog;
  readonly signals = new PendingSignals();
  readonly flows = new Map<number, Flow>();
  readonly flowOrder: Flow[] = [];
  readonly schedule = new Schedule();
  /** Receives and reads whose control record did not fit yet. */
  readonly unannounced = new RequestQueue();
  readonly unannouncedReads = new RequestQueue();
  /** Receives that the peer was told of and has no message for, as far as this side knows. */
  unclaimedReceives = 0;
  /** Flushes, and signals that have arrived, in the order of the segments before which everything must have arrived. */
  readonly flushes = new RequestQueue();
  /** Sends that are too large for the receives they met: the next `onTimer` fails them. */
  readonly oversized = new RequestQueue();
  /** Receives that want more than they were granted. */
  readonly grantQueue = new RequestQueue();
  waitsForGrant = false;
  /** Bytes that were granted to claimed receives and have not come, and since when they do not count: Infinity if they do. */
  // -0 is held as a double from the start. When the first 64-bit size came, all compiled code that knows a connection was lost.
  claimedBytes: number = -0;
  silentSince = Number.POSITIVE_INFINITY;
  /** Receives of the peer that wait for a send of this side. */
  clearCount = 0;
  /** Sends that may have to ask for a first grant. */
  unrequested = 0;
  /** Answers that this side owes to reads of the peer. */
  replyCount = 0;

  /** One per flow, or per path. */
  readonly congestion: Congestion[] = [];
  readonly eqds: EqdsCredits | undefined;
  readonly credit: CreditAccount;
  /** Per congestion window: when the next packet may go, with pacing. */
  nextSendAt: Float64Array;
  /** Payload that waits in send queues. */
  backlogBytes = 0;

  /** Requests that are not done, and since when there have been any: Infinity until the next `onTimer` tells the time. */
  pending = 0;
  pendingSince = 0;
  /** When a packet of the peer last came, and when one of this side's segments was last acknowledged. */
  heardAt: number;
  progressAt: number;
  /** When and where the peer was last asked whether it is there. */
  probedAt = 0;
  probedPath = 0;

  ackDue: number = ackDue.no;
  ackDeadline = 0;
  /** Segments that arrived since the last ack. */
  unackedArrivals = 0;
  /** A path may be silent for too long, not before this. */
  lossDeadline = Number.POSITIVE_INFINITY;
  /** When sending goes on if nothing comes before. */
  sendDeadline = Number.POSITIVE_INFINITY;
  /** The peer's last count of segments that came twice, and what that made of the tolerance for reordering. */
  peerDuplicates = 0;
  reorderSegments: number;
  reorderShare: number;
  reorderChangedAt = 0;
  /** Why the end is to be told to the peer, 0 while open; and whether it is told yet. */
  endReason = 0;
  endUntold = false;
  endedAt = 0;
  lastRejection = 0;
  lastRejectionAt = Number.NEGATIVE_INFINITY;

  readonly counters = createCounters();

  constructor(engine: EngineCore, options: ConnectionOptions) {
    checkConnection(options);
    const { settings, outbox } = engine;
    this.engine = engine;
    this.id = options.localId;
    this.peer = options.peer;
    this.peerName = options.peerName;
    this.remoteId = options.remoteId | 0;
    this.secretLow = Number(BigInt.asIntN(32, options.secret));
    this.secretHigh = Number(BigInt.asIntN(32, options.secret >> 32n));
    this.segmentBytes = options.segmentBytes;
    this.payloadBytes = options.segmentBytes - DATA_HEADER_BYTES;
    const fitting = Math.floor(outbox.io.burstBytes / options.segmentBytes);
    this.burstSegments = Math.max(1, Math.min(64, outbox.io.burstSegments, fitting));
    const ackRoom = options.segmentBytes - ackHeader.size - MOST_ECHOES * ackPath.size;
    this.ackWords = Math.min(Math.floor(ackRoom / 4), RECEIVE_WINDOW_SEGMENTS / 32);
    // Every number that wraps begins anywhere: both ends take it from what only they know.
    const start = this.secretHigh;
    const { packetKeys } = options;
    if (packetKeys !== undefined) this.guard = new PacketGuard(engine.tagMemory, packetKeys, start >>> 0);
    this.paths = new PathTable(options.paths, start);
    this.arrivals = new Arrivals(options.paths, start);
    this.receiveWindow = new ReceiveWindow(start);
    this.control = new ControlLog(start);
    this.credit = { demand: start, granted: (start + SPECULATIVE_BYTES) | 0 };
    // An ack can list every segment of the window, so that what it does not list has not arrived.
    this.sendWindow = new SendWindow(
      Math.min(settings.windowSegments, this.ackWords * 32, RECEIVE_WINDOW_SEGMENTS) - 32,
      start,
    );
    this.bursts = new BurstTable(this.sendWindow.mask + 1, options.paths, DATA_HEADER_BYTES);
    this.nextSendAt = new Float64Array(this.bursts.controllerBytes.length);
    this.reorderSegments = settings.reorderSegments;
    this.reorderShare = settings.reorderShare;
    this.heardAt = engine.now;
    this.progressAt = engine.now;
    const first = createCongestion(settings, options.segmentBytes);
    this.eqds = first instanceof EqdsCredits ? first : undefined;
    this.eqds?.begin(start);
    this.congestion.push(first);
    if (settings.perPath && this.eqds === undefined) {
      while (this.congestion.length < options.paths) {
        this.congestion.push(createCongestion(settings, options.segmentBytes));
      }
    }
  }

  postReceive(options: MessageOptions): RequestHandle {
    const request = this.#open('receive', options);
    this.unannounced.push(request);
    return request.handle;
  }

  postSend(options: MessageOptions): RequestHandle {
    const request = this.#open('send', options);
    const flow = this.flow(request.flow);
    flow.unmatched.push(request);
    this.match(flow);
    return request.handle;
  }

  write(options: RemoteOptions): RequestHandle {
    checkRemote(options);
    const request = this.#open('write', options);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    this.enqueue(this.flow(request.flow).operations, request);
    return request.handle;
  }

  scatter(options: ScatterOptions): RequestHandle {
    checkScatter(this.engine.regions, options, this.payloadBytes);
    const request = this.#openWithout('write', options.flow ?? 0);
    request.region = options.region;
    request.ranges = options.ranges;
    request.nextRange = options.ranges.first;
    request.bytes = options.ranges.bytes;
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    this.enqueue(this.flow(request.flow).operations, request);
    return request.handle;
  }

  read(options: RemoteOptions): RequestHandle {
    checkRemote(options);
    const request = this.#open('read', options);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    this.unannouncedReads.push(request);
    return request.handle;
  }

  signal(options: SignalOptions): RequestHandle {
    checkSignal(options);
    const request = this.#openWithout('signal', options.flow ?? 0);
    request.target = options.remoteRegion;
    request.targetKey = options.remoteKey;
    request.base = options.remoteOffset;
    request.value = options.add;
    this.enqueue(this.flow(request.flow).operations, request);
    return request.handle;
  }

  flush(flow = 0): RequestHandle {
    const request = this.#openWithout('flush', flow);
    this.enqueue(this.flow(flow).operations, request);
    return request.handle;
  }

  cancel(handle: RequestHandle): boolean {
    const request = this.engine.requests.find(handle);
    if (request === undefined || !request.isPending || request.connection !== this) return false;
    const what = `The ${request.kind} ${request.kind === 'receive' ? 'from' : 'to'} ${this.peerName} was cancelled`;
    this.abandon(request, new WeftlineError('WL_CLOSED', what, { details: { peer: this.peerName, handle } }));
    return true;
  }

  /** Fails a request for a reason of this side, and its other end, if it has one. */
  abandon(request: Request, error: WeftlineError): void {
    const { control } = this;
    const meets = request.kind === 'reply' || (request.kind === 'send' && request.target !== 0);
    if (meets && control.append(controlKinds.fail, request.flow)) {
      control.setIds(request.target, failReasons.cancelled, 0);
    }
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
    this.engine.end(this, error, failReasons.closed);
  }

  get statistics(): ConnectionStatistics {
    return connectionStatistics(this);
  }

  flow(id: number): Flow {
    const known = this.flows.get(id);
    if (known !== undefined) return known;
    const { settings } = this.engine;
    const shared = settings.perPath || this.eqds !== undefined;
    const flow = new Flow(id, shared ? 0 : this.flowOrder.length);
    if (!shared && flow.controller > 0) this.congestion.push(createCongestion(settings, this.segmentBytes));
    this.bursts.reserveController(flow.controller);
    if (this.nextSendAt.length < this.bursts.controllerBytes.length) {
      const grown = new Float64Array(this.bursts.controllerBytes.length);
      grown.set(this.nextSendAt);
      this.nextSendAt = grown;
    }
    this.flows.set(id, flow);
    this.flowOrder.push(flow);
    return flow;
  }

  /** The request is ready to be cut into segments. */
  enqueue(queue: SendQueue, request: Request): void {
    queue.push(request);
    this.backlogBytes += request.bytes - request.position;
    this.schedule.add(queue);
    this.wake();
  }

  /** Brings sends of a flow together with receives of the peer. */
  match(flow: Flow): void {
    while (flow.unmatched.head !== undefined && flow.clears.length > 0) {
      const request = flow.unmatched.head;
      const clear = flow.clears.shift();
      if (clear === undefined) return;
      this.clearCount--;
      flow.unmatched.shift();
      request.target = clear.target;
      request.granted = Math.min(clear.granted, request.bytes);
      if (request.bytes > clear.bytes) {
        request.granted = clear.bytes;
        this.oversized.push(request);
        this.wake();
      } else {
        if (request.granted < request.bytes && clear.granted === 0) this.unrequested++;
        this.enqueue(flow.messages, request);
      }
    }
  }

  /** Raises what a receive of this side may be sent. False if the peer cannot be told now. */
  grant(request: Request, granted: number): boolean {
    const { control } = this;
    if (!control.raiseLast(controlKinds.grant, request.handle, granted)) {
      if (!control.hasRoom()) return false;
      control.append(controlKinds.grant, request.flow);
      control.setIds(request.handle, 0, 0);
      control.setSizes(0, granted);
    }
    request.granted = granted;
    return true;
  }

  /** Bytes that the peer should let this side send altogether, for receiver credits; wraps. */
  demandNow(): number {
    if (this.eqds === undefined) return 0;
    const factor = this.segmentBytes / this.payloadBytes;
    const open = this.backlogBytes * factor + this.sendWindow.lostCount * this.segmentBytes;
    return (this.eqds.spent + Math.min(open, this.eqds.windowBytes)) | 0;
  }

  /** Where acks and control packets go: back where the newest packet came from. */
  replyPath(): number {
    const { latestPath } = this.arrivals;
    return latestPath === -1 ? this.paths.choose(this.engine.random, this.bursts.pathBytes) : latestPath;
  }

  /** There is work for the next `onTimer`. */
  wake(): void {
    this.sendDeadline = Number.NEGATIVE_INFINITY;
    this.engine.wake();
  }

  #open(kind: RequestKind, options: MessageOptions): Request {
    checkLocal(this.engine.regions, options);
    const request = this.#openWithout(kind, options.flow ?? 0);
    request.region = options.region;
    request.offset = options.offset;
    request.bytes = options.bytes;
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
    this.addPending();
    this.wake();
    return request;
  }

  addPending(): void {
    if (this.pending === 0) this.pendingSince = Number.POSITIVE_INFINITY;
    this.pending++;
  }

  /** Fails the sends that are too large, here and at the peer. */
  refuseOversized(): void {
    for (let head = this.oversized.head; head !== undefined; head = this.oversized.head)
      this.#tooLarge(head, head.granted);
  }

  #tooLarge(request: Request, room: number): void {
    if (this.control.append(controlKinds.fail, request.flow)) {
      this.control.setIds(request.target, failReasons.tooLarge, 0);
      this.control.setSizes(request.bytes, 0);
    }
    const message = `Cannot send ${request.bytes} bytes to ${this.peerName}: the receive it met has room for ${room}`;
    const details = { peer: this.peerName, bytes: request.bytes, room, flow: request.flow };
    this.engine.fail(request, new WeftlineError('WL_CAPACITY', message, { details }));
  }
}
