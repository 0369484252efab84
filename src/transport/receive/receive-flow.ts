// The receives of a flow that have no message yet, where messages may come before their receives are announced: both ends
// number the receives of a flow, so that either can say which message meets which.
import { type Request, RequestQueue } from '../engine/request.ts';

export class ReceiveFlow {
  readonly id: number;
  /** The last number that was given; wraps. */
  numbered: number;
  /** Receives with numbers: announced ones, and those whose messages are on their way. */
  readonly open = new RequestQueue();
  /** Receives that are not announced for a while: the message before came without. */
  readonly held = new RequestQueue();
  /** When they are announced after all; and that somebody looks at this. */
  heldUntil = Number.POSITIVE_INFINITY;
  isHolding = false;
  /** The latest message came before its receive was announced, or while that was being told. */
  isEager = false;

  /** Numbers begin after `start`. */
  constructor(id: number, start: number) {
    this.id = id;
    this.numbered = start;
  }

  /** The receive of that number, if it has no message yet. */
  find(number: number): Request | undefined {
    let request = this.open.head;
    while (request !== undefined && request.number !== number) request = request.next;
    return request;
  }
}
