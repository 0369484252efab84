// Errors of blocks that cannot be moved; each names the block and, where there is one, the descriptor.
import { type ErrorDetails, WeftlineError } from '../core/errors.ts';

/** Two fragments of one launch that would be written to the same bytes. */
export interface Overlap {
  readonly block: number;
  readonly descriptor: number;
  readonly otherBlock: number;
  readonly otherDescriptor: number;
  /** The first byte that both have. */
  readonly address: number;
}

type Side = 'source' | 'destination';

interface Outside {
  readonly block: number;
  readonly descriptor: number;
  readonly side: Side;
  readonly offset: number;
  readonly length: number;
  /** What that side has, or what offsets reach of it. */
  readonly bytes: number;
}

export function outsideError(outside: Outside): WeftlineError {
  const { block, descriptor, side, offset, length, bytes } = outside;
  const memory = side === 'source' ? 'bounce buffer' : 'destination';
  const isAllThatOffsetsReach = side === 'source' && bytes === 2 ** 32;
  const hint = isAllThatOffsetsReach ? ' that offsets of 32 bits reach' : bytes === 0 ? ' that begin() was given' : '';
  return wrongDescriptor(
    { block, descriptor },
    `its ${length} bytes at ${side} offset ${offset} end at ${offset + length}, expected at most ${bytes}, the bytes of the ${memory}${hint}`,
    { ...outside },
  );
}

export function overlapError(overlap: Overlap, side: Side): WeftlineError {
  return wrongDescriptor(
    overlap,
    `it writes the same ${side} bytes as descriptor ${overlap.otherDescriptor} of block ${overlap.otherBlock}, from address ${overlap.address} on; expected ranges that do not overlap`,
    { ...overlap, side },
  );
}

export function tooManyError(block: number, count: number, capacity: number): WeftlineError {
  const what = `its header counts ${count} descriptors, expected at most ${capacity}: descriptor ${capacity} has no room`;
  return wrongBlockError(block, what, { count, capacity, descriptor: capacity });
}

export function sumError(
  block: number,
  { said, total, count }: { readonly said: number; readonly total: number; readonly count: number },
): WeftlineError {
  const what = `its header says ${said} bytes in all, but descriptors 0 to ${count - 1} have ${total}`;
  return wrongBlockError(block, what, { totalBytes: said, sum: total });
}

export function wrongBlockError(block: number, what: string, details: ErrorDetails): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid block ${block} of the launch: ${what}. Nothing was moved`, {
    details: { block, ...details },
  });
}

/** Memory that is not the launcher's to use. */
export function disposedError(block: number, memory: string): WeftlineError {
  return new WeftlineError(
    'WL_CLOSED',
    `Cannot launch block ${block}: the tensor of its ${memory} was disposed. Nothing was moved`,
    { details: { block, memory } },
  );
}

function wrongDescriptor(
  { block, descriptor }: { readonly block: number; readonly descriptor: number },
  what: string,
  details: ErrorDetails,
): WeftlineError {
  return new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Invalid descriptor ${descriptor} of block ${block} of the launch: ${what}. Nothing was moved`,
    { details: { block, descriptor, ...details } },
  );
}

/** `block` of its launch; `seen` if it is known. */
export function notReadyError(
  block: number,
  seen: number | undefined,
  threshold: number,
  timeoutMs: number,
): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `The ready flag of block ${block} of a launch was ${seen ?? 'lower'} after ${timeoutMs} ms, expected at least ${threshold}: see whether its producer still runs, or raise timeoutMs of the launcher`,
    { details: { block, seen, threshold, timeoutMs } },
  );
}
