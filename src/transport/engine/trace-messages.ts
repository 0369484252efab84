// Messages and signals in traces: their departure here and their arrival at the peer, under a name that both sides know.
import { createHash } from 'node:crypto';
import { isTraced, traceBegin, traceEnd } from '../../core/trace.ts';
import { NO_SLOT } from '../send/send-side.ts';
import type { Connection } from './connection.ts';
import type { Request } from './request.ts';

/** What tells apart messages whose receives were announced, and those that are one segment, by its number. */
type Kind = 'message' | 'segment';

interface Labels {
  readonly sent: Readonly<Record<Kind, string>>;
  readonly arrived: Readonly<Record<Kind, string>>;
}

const known = new WeakMap<Connection, Labels>();

/** Hot path: nothing without a trace. The last segment of the request was made. */
export function traceSent(connection: Connection, { kind, slot, target }: Request): void {
  if (!isTraced() || kind === 'write') return;
  const isSegment = kind === 'signal' || slot !== NO_SLOT;
  const subject = isSegment ? connection.send.window.next - 1 : target;
  const label = labelsOf(connection).sent[isSegment ? 'segment' : 'message'];
  traceBegin('transport.send', subject >>> 0, label);
  traceEnd('transport.send', subject >>> 0, label);
}

/** Hot path: nothing without a trace. `subject`: handle of the receive that is complete, or number of the segment. */
export function traceArrived(connection: Connection, kind: Kind, subject: number): void {
  if (!isTraced()) return;
  const label = labelsOf(connection).arrived[kind];
  traceBegin('transport.arrival', subject >>> 0, label);
  traceEnd('transport.arrival', subject >>> 0, label);
}

/** Both ends make the same of what only they know; nobody can tell the secret from it. */
function labelsOf(connection: Connection): Labels {
  const made = known.get(connection);
  if (made !== undefined) return made;
  const { id, remoteId, secretLow, secretHigh } = connection;
  const name = createHash('sha256').update(`weftline trace ${secretLow} ${secretHigh}`).digest('hex').slice(0, 8);
  const label = (kind: Kind, from: number, to: number): string => `${kind[0]}${name} ${from >>> 0}>${to >>> 0}`;
  const both = (from: number, to: number): Record<Kind, string> => ({
    message: label('message', from, to),
    segment: label('segment', from, to),
  });
  const labels = { sent: both(id, remoteId), arrived: both(remoteId, id) };
  known.set(connection, labels);
  return labels;
}
