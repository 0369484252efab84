// Posts to a channel, or says that there is no room now: a backend may run out of what all its channels share. Hot path.
import { WeftlineError } from '../../core/errors.ts';
import type { BackendChannel, BackendRemoteRegion, BackendTransfer, PutPlace } from '../backend.ts';

export function tryPut(channel: BackendChannel, place: PutPlace): boolean {
  try {
    return channel.put(place);
  } catch (error) {
    return isFull(error);
  }
}

export function trySignal(channel: BackendChannel, remote: BackendRemoteRegion, offset: number, add: number): boolean {
  try {
    return channel.signal(remote, offset, add);
  } catch (error) {
    return isFull(error);
  }
}

export function tryPost(transfer: BackendTransfer): boolean {
  try {
    transfer.post();
    return true;
  } catch (error) {
    return isFull(error);
  }
}

/** False if it is only full. */
function isFull(error: unknown): false {
  if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
  throw error;
}
