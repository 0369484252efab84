// The receiving side of a connection: what has arrived, what it may still be sent, and the ack that is due.
// data-input.ts takes in segments, admission.ts grants receives their bytes.
import { controlKinds } from '../../abi/transport-packet.ts';
import type { ControlLog } from '../control/control-log.ts';
import { type Request, RequestQueue } from '../engine/request.ts';
import { EagerStore } from './eager-store.ts';
import { ReceiveFlow } from './receive-flow.ts';
import { Arrivals } from './arrivals.ts';
import type { CreditAccount } from './credit-pacer.ts';
import { PendingSignals } from './pending-signals.ts';
import { ReceiveWindow } from './receive-window.ts';

/** `now`: before the next flush. `later`: with more, or at its deadline. */
export const ackDue = { no: 0, later: 1, now: 2 } as const;

/** No deadline. */
const NEVER = Number.POSITIVE_INFINITY;

interface ReceiveSideOptions {
  /** Messages of at most so many bytes come before their receives are announced; 0: none. */
  readonly eagerBytes: number;
  readonly paths: number;
  /** Words of the bitmap that fit an ack. */
  readonly ackWords: number;
  /** Where numbers that wrap begin. */
  readonly start: number;
  /** What the peer may send before any credit. */
  readonly credit: number;
  readonly now: number;
  /** Where grants are written. */
  readonly control: ControlLog;
  /** Called when there is work for the next `onTimer`. */
  readonly wake: () => void;
  /** Cancelled messages and receives keep their places. */
  readonly keepsPlaces: boolean;
}

export class ReceiveSide {
  readonly window: ReceiveWindow;
  readonly arrivals: Arrivals;
  readonly signals = new PendingSignals();
  /** Receives and reads whose control record did not fit yet. */
  readonly unannounced = new RequestQueue();
  readonly unannouncedReads = new RequestQueue();
  /** Receives that the peer was told of and has no message for, as far as this side knows. */
  unclaimedReceives = 0;
  /** Receives that want more than they were granted. */
  readonly grantQueue = new RequestQueue();
  waitsForGrant = false;
  /** Bytes that were granted to claimed receives and have not come, and since when they do not count: Infinity if they do. */
  // -0 is held as a double from the start. When the first 64-bit size came, all compiled code that knows a connection was lost.
  claimedBytes: number = -0;
  silentSince = Number.POSITIVE_INFINITY;
  /** If messages may come before their receives are announced: those that wait for a receive, and the flows. */
  readonly eager: EagerStore | undefined;
  readonly #flows = new Map<number, ReceiveFlow>();
  /** Flows that hold receives back, and when the first of them announces them. */
  readonly holding: ReceiveFlow[] = [];
  holdDeadline = NEVER;
  /** Some of them would announce receives now, but found no room. */
  holdIsBlocked = false;
  /** Of receiver credits. */
  readonly credit: CreditAccount;

  /** When a packet of the peer last came. */
  heardAt: number;
  readonly ackWords: number;
  ackDue: number = ackDue.no;
  ackDeadline = 0;
  /** Segments that arrived since the last ack. */
  unackedArrivals = 0;
  lastRejection = 0;
  lastRejectionAt = Number.NEGATIVE_INFINITY;

  readonly #control: ControlLog;
  readonly #wake: () => void;
  readonly #keepsPlaces: boolean;
  readonly #start: number;

  constructor(options: ReceiveSideOptions) {
    const { paths, ackWords, start, credit, now, control, wake, keepsPlaces, eagerBytes } = options;
    this.eager = eagerBytes > 0 ? new EagerStore(eagerBytes) : undefined;
    this.window = new ReceiveWindow(start);
    this.arrivals = new Arrivals(paths, start);
    this.ackWords = ackWords;
    this.credit = { demand: start, granted: credit, given: () => (this.ackDue = ackDue.now) };
    this.heardAt = now;
    this.#control = control;
    this.#wake = wake;
    this.#keepsPlaces = keepsPlaces;
    this.#start = start;
  }

  flow(id: number): ReceiveFlow {
    const known = this.#flows.get(id);
    if (known !== undefined) return known;
    const flow = new ReceiveFlow(id, this.#start);
    this.#flows.set(id, flow);
    return flow;
  }

  /** A receive is not announced before `until`. */
  hold(flow: ReceiveFlow, request: Request, until: number): void {
    if (flow.held.head === undefined) flow.heldUntil = until;
    flow.held.push(request);
    if (flow.isHolding) return;
    flow.isHolding = true;
    this.holding.push(flow);
    this.holdDeadline = Math.min(this.holdDeadline, until);
  }

  /** An announced receive waits for a message no longer: another may be announced. */
  noteClaimed(request: Request): void {
    this.unclaimedReceives--;
    if (this.eager !== undefined) this.flow(request.flow).open.remove(request);
    if (this.unannounced.head !== undefined || this.holdIsBlocked) this.#wake();
  }

  /** Raises what a receive may be sent. False if the peer cannot be told now. */
  grant(request: Request, granted: number): boolean {
    const control = this.#control;
    if (!control.raiseLast(controlKinds.grant, request.handle, granted)) {
      if (!control.hasRoom()) return false;
      control.append(controlKinds.grant, request.flow);
      control.setIds(request.handle, 0, 0);
      control.setSizes(0, granted);
    }
    request.granted = granted;
    return true;
  }

  /** Takes a request out of whatever queue it stands in. */
  unqueue(request: Request): void {
    if (this.#keepsPlaces) this.unannounced.vacate(request);
    else this.unannounced.remove(request);
    this.unannouncedReads.remove(request);
    if (this.eager === undefined || request.kind !== 'receive') return;
    const { held, open } = this.flow(request.flow);
    if (this.#keepsPlaces) held.vacate(request);
    else held.remove(request);
    open.remove(request);
  }
}
