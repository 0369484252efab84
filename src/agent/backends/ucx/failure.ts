// Why a transfer, channel or link failed: two numbers in memory that threads share, an error for the user.
import { ucxRefusals } from '../../../abi/ucx-message.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { ucxStatusName } from '../../../native/ucx-status.ts';
import type { LinkState } from '../../backend.ts';

export const failures = {
  none: 0,
  /** The detail is one of ucxRefusals. */
  refused: 1,
  cancelled: 2,
  released: 3,
  channelClosed: 4,
  /** The detail is a status of UCX; 0 if it gave none. */
  lost: 5,
  processEnded: 6,
  peerClosed: 7,
  connectionEnded: 8,
  linkClosed: 9,
  agentClosed: 10,
  defect: 11,
  /** It did not finish its work on memory that was deregistered. */
  stalled: 12,
} as const;

/** By which a link is closed in order; by any other it is dead. */
const closings: ReadonlySet<number> = new Set([failures.peerClosed, failures.linkClosed, failures.agentClosed]);

export function linkStateOf(failure: number): LinkState {
  if (failure === failures.none) return 'open';
  return closings.has(failure) ? 'closed' : 'dead';
}

export function failureError(failure: number, detail: number, peer: string): WeftlineError {
  const details = { peer, failure, detail };
  const gone = (how: string): WeftlineError =>
    new WeftlineError('WL_PEER_LOST', `${peer} is gone: ${how}`, { details });
  const closed = (message: string): WeftlineError => new WeftlineError('WL_CLOSED', message, { details });
  switch (failure) {
    case failures.refused:
      return refusal(detail, peer);
    case failures.cancelled:
      return closed('The transfer was cancelled');
    case failures.released:
      return closed('The transfer was released');
    case failures.channelClosed:
      return closed('The channel was closed');
    case failures.lost:
      return gone(`UCX says ${detail === 0 ? 'that the connection broke' : ucxStatusName(detail)}`);
    case failures.processEnded:
      return gone('its process ended');
    case failures.peerClosed:
      return closed(`${peer} closed the link`);
    case failures.connectionEnded:
      return gone('its process ended or the network broke');
    case failures.stalled:
      return gone('it did not let a transfer end in time whose memory was released');
    case failures.linkClosed:
      return closed(`The link to ${peer} was closed`);
    case failures.agentClosed:
      return closed('The agent was closed');
    default:
      return new WeftlineError('WL_INTERNAL', `A message of ${peer} broke the link`, { details });
  }
}

function refusal(reason: number, peer: string): WeftlineError {
  const details = { peer, reason };
  if (reason === ucxRefusals.region) {
    const message = `${peer} has no such region, or the key is not its: it was deregistered, or the metadata are of another life of the peer`;
    return new WeftlineError('WL_UNAUTHORIZED', message, { details });
  }
  if (reason === ucxRefusals.range) {
    return new WeftlineError('WL_INVALID_ARGUMENT', `The range lies outside the region of ${peer}`, { details });
  }
  if (reason === ucxRefusals.earlier) {
    return new WeftlineError('WL_CLOSED', `An earlier operation with ${peer} failed, so this one was not carried out`, {
      details,
    });
  }
  const what = reason === ucxRefusals.native ? 'its UCX could not receive it' : 'it is not of the protocol';
  return new WeftlineError('WL_PROTOCOL', `${peer} refused a message: ${what}`, { details });
}
