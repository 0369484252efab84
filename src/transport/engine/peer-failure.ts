// The error of a request that the peer refused or gave up.
import { failReasons } from '../../abi/transport-packet.ts';
import { type ErrorCode, WeftlineError } from '../../core/errors.ts';
import type { Request } from './request.ts';

/** `bytes`: the room that there was, or what the peer wanted to send. */
// oxlint-disable-next-line max-params -- four plain facts
export function peerFailure(peer: string, request: Request, reason: number, bytes: number): WeftlineError {
  const incoming = request.kind === 'receive' || request.kind === 'read';
  const what = `Cannot ${request.kind} ${request.bytes} bytes ${incoming ? 'from' : 'to'} ${peer}`;
  const [code, why] = explain(request, reason, bytes);
  return new WeftlineError(code, `${what}: ${why}`, {
    details: { peer, kind: request.kind, bytes: request.bytes, flow: request.flow, room: bytes },
  });
}

function explain(request: Request, reason: number, bytes: number): readonly [ErrorCode, string] {
  const region = `region ${request.target}`;
  switch (reason) {
    case failReasons.key:
      return ['WL_UNAUTHORIZED', `${region} is not registered there, or the key is not its key`];
    case failReasons.access:
      return ['WL_UNAUTHORIZED', `${region} was not registered for that`];
    case failReasons.bounds:
      return ['WL_INVALID_ARGUMENT', `${region} has ${bytes} bytes, and offset ${request.base} was asked`];
    case failReasons.tooLarge:
      return request.kind === 'receive'
        ? ['WL_CAPACITY', `the message has ${bytes} bytes`]
        : ['WL_CAPACITY', `the receive that it met has room for ${bytes}`];
    default:
      return ['WL_PEER_FAILED', 'the peer has cancelled it'];
  }
}
