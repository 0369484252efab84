// Why a send or a receive of an endpoint failed, as its two sides are told.
import { MAX_OFFERED_BYTES } from '../../abi/endpoint-message.ts';
import { WeftlineError } from '../../core/errors.ts';

export function sendFailed(who: string): WeftlineError {
  return new WeftlineError(
    'WL_PEER_FAILED',
    `The send that matched this receive failed at ${who}: its own error says why`,
  );
}

export function tooSmall(bytes: number, allowed: number, who: string): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `A message of ${bytes} bytes met a receive of ${allowed} bytes (connection to ${who}): give the receive more memory`,
    { details: { bytes, allowed } },
  );
}

/** A receive that cannot be offered to the peer: WL_CAPACITY if it never can, WL_BUSY while earlier ones wait. */
export function tooManyOffers(
  offer: { readonly parts: number; readonly bytes: number; readonly offered: number },
  who: string,
): WeftlineError {
  const details = { ...offer, allowed: MAX_OFFERED_BYTES };
  return offer.bytes > MAX_OFFERED_BYTES
    ? new WeftlineError('WL_CAPACITY', `A receive of ${offer.parts} parts is too long: give it fewer, larger ones`, {
        details,
      })
    : new WeftlineError('WL_BUSY', `Too many receives are offered to ${who}: wait for some first`, { details });
}
