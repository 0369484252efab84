// One command as numbers, and how it lies in the 16 bytes of its slot. Hot path: no allocation.
import { commandBits, queueCommandKinds } from '../../abi/device-api.ts';

const TWO_31 = 2 ** 31;
const TWO_32 = 2 ** 32;

/** One object per side, used again for each command. */
export interface QueueCommand {
  kind: number;
  request: number;
  remote: number;
  target: number;
  /** Of a put. */
  source: number;
  bytes: number;
  /** Of others: the halves of their number. */
  low: number;
  high: number;
  /** The host leaves it in the queue until a command behind it is not deferred. */
  isDeferred: boolean;
}

export function emptyQueueCommand(): QueueCommand {
  return { kind: 0, request: 0, remote: 0, target: 0, source: 0, bytes: 0, low: 0, high: 0, isDeferred: false };
}

/** Reads the slot at `first` into `command`; false if it does not hold the command of the lap with this phase. */
export function decodeCommand(words: Uint32Array, first: number, phase: number, command: QueueCommand): boolean {
  // ORDER: the phase of a half is read before the rest of it; the writer writes each half at once.
  const high = Atomics.load(words, first);
  if ((high & 1) !== phase) return false;
  const low = Atomics.load(words, first + 1);
  const target = Atomics.load(words, first + 2);
  if ((target & 1) !== phase) return false;
  const last = Atomics.load(words, first + 3);
  command.kind = (high >>> commandBits.kind) & 3;
  command.remote = (high >>> commandBits.remote) & 63;
  command.request = (high >>> commandBits.request) & 4095;
  command.isDeferred = high >>> commandBits.deferred !== 0;
  command.target = ((high >>> commandBits.targetHigh) & 31) * TWO_31 + (target >>> commandBits.targetLow);
  if (command.kind === queueCommandKinds.put) {
    command.source = ((high >>> commandBits.sourceHigh) & 15) * TWO_32 + low;
    command.bytes = ((high >>> commandBits.bytesHigh) & 1) * TWO_32 + last;
    command.low = 0;
    command.high = 0;
  } else {
    command.source = 0;
    command.bytes = 0;
    command.low = low;
    command.high = last;
  }
  return true;
}

/** Writes a command whose parts are in range; its first word goes last, so that it appears whole. */
export function encodeCommand(words: Uint32Array, first: number, phase: number, command: QueueCommand): void {
  const isPut = command.kind === queueCommandKinds.put;
  const low = isPut ? command.source : command.low;
  const last = isPut ? command.bytes : command.high;
  let high = phase | (command.kind << commandBits.kind) | (command.remote << commandBits.remote);
  high |= command.request << commandBits.request;
  high |= Math.floor(command.target / TWO_31) << commandBits.targetHigh;
  if (isPut) {
    high |= Math.floor(command.source / TWO_32) << commandBits.sourceHigh;
    high |= Math.floor(command.bytes / TWO_32) << commandBits.bytesHigh;
  }
  words[first + 1] = low;
  words[first + 3] = last;
  Atomics.store(words, first + 2, phase | ((command.target % TWO_31) << commandBits.targetLow));
  if (command.isDeferred) high |= 1 << commandBits.deferred;
  Atomics.store(words, first, high >>> 0);
}

/** What is in the slot at `first`: the command of the lap with this phase or none, and whether that one is deferred. */
export function peekCommand(words: Uint32Array, first: number, phase: number): 'none' | 'deferred' | 'ready' {
  const high = Atomics.load(words, first);
  if ((high & 1) !== phase || (Atomics.load(words, first + 2) & 1) !== phase) return 'none';
  return high >>> commandBits.deferred === 0 ? 'ready' : 'deferred';
}
